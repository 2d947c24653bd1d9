"""What a gated delta net's prefill copies between its projections and its delta rule, as it is set
up on an NVIDIA GPU, which kernel convolves, and its results against the plain reference."""

import functools
import importlib
import os
import sys
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
import torch
from host import graph, standin_packages
from host.references import compare_tracked_gdn, gdn, mamba2
from packaging.version import Version
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.10")

SPLIT = {
    "uneven, one of one token": dict(lengths=[5, 1, 70, 9], prefixes=[0, 0, 0, 0]),
    "cached beginnings, one of fewer tokens than the window": dict(
        lengths=[3, 1, 66, 2], prefixes=[64, 7, 2, 0]
    ),
    "one token": dict(lengths=[1], prefixes=[5]),
    "rows of no request": dict(lengths=[5, 8], prefixes=[0, 3], rows=24),
    "a value head for each key head": dict(
        lengths=[7, 2], prefixes=[0, 4], linear_num_value_heads=2
    ),
    "four value heads for each key head": dict(
        lengths=[7, 2], prefixes=[0, 4], linear_num_value_heads=8
    ),
}
OTHERS = {
    "three value heads for each key head": dict(
        lengths=[7, 2], prefixes=[0, 4], linear_num_value_heads=6
    ),
}


CASES = SPLIT | OTHERS


TYPE, WIDTH = compare_tracked_gdn.TYPE, compare_tracked_gdn.WIDTH
LISTED = Version(os.environ["PATCHQUEUE_REVISION"]) >= Version("0.5.6")  # its pool may have several


class Copies(TorchDispatchMode):
    """In it, `names` gains the name of each op that copies a tensor, "turned" before it where
    neighbours in memory become strangers."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made, name = function(*args, **(kwargs or {})), function.overloadpacket.__name__
        if name in ("clone", "cat"):
            turned = (
                name == "clone"
                and args[0].stride(-1) != made.stride(-1)
                and made.numel() > len(made)
            )
            self.names.append("turned " * turned + name)
        return made


class CudaConvolution(ModuleType):
    """sgl_kernel with nothing but its convolution, in place and in PyTorch."""

    causal_conv1d_update = None

    def __init__(self):
        super().__init__("sgl_kernel")
        self.calls = 0

    def causal_conv1d_fwd(self, x, weight, bias, states, starts, slots, has_state, silu, pad):
        assert x.is_contiguous() and bias is None and silu
        self.calls += 1
        for i, slot in enumerate(slots.tolist()):
            rows, old = x[:, starts[i] : starts[i + 1]], states[slot] * has_state[i]
            found, new = mamba2.causal_convolution(
                rows.T.float(), weight.float(), None, old.float()
            )
            rows.copy_(found.T)
            states[slot] = new


@functools.cache
def set_up_on_nvidia():
    """Load the linear attention backends as a process on an NVIDIA GPU does."""
    standin_packages.install()
    from sglang.srt import utils
    from sglang.srt.layers.attention import hybrid_linear_attn_backend

    made = CudaConvolution()
    with (
        mock.patch.dict(sys.modules, sgl_kernel=made),
        mock.patch.object(utils, "is_cuda", lambda: True),
    ):
        importlib.reload(hybrid_linear_attn_backend)
    return made


def compare(lengths, prefixes, rows=0, **changes):
    """New tokens and cached ones of each request; more `rows`, if any, are of no request.

    Returns the names of the copies `before` the mixer's states are needed and `behind`, `cuda`: how
    often the CUDA kernel convolved, `apart`: the largest difference of outputs and states, and
    `untouched`: whether nobody's states stayed as they were.
    """
    cuda = set_up_on_nvidia()
    torch.manual_seed(2)
    layer, count = compare_tracked_gdn.layer_on_one_stream(**changes), len(lengths)
    batch = graph.batch_of(lengths, prefixes)
    # What a slot was left with by its last request must not reach one that begins.
    conv = torch.randn(count + 1, layer.conv_dim, WIDTH).to(TYPE)
    state = 0.1 * torch.randn(count + 1, layer.num_v_heads, layer.head_k_dim, layer.head_v_dim)
    state[1:] *= (torch.tensor(prefixes) > 0)[:, None, None, None]
    before = conv.clone(), state.clone()
    linear = compare_tracked_gdn.backend(batch, (conv, state))
    kept = SimpleNamespace(conv=[conv] if LISTED else conv, temporal=state)
    linear.req_to_token_pool.mamba2_layer_cache = lambda layer_id: kept
    linear.init_forward_metadata(batch)
    hidden_states = torch.randn(max(rows, sum(lengths)), 128).to(TYPE)
    hidden_states[sum(lengths) :] = float("nan")

    copies, calls, sizes = Copies(), cuda.calls, []
    forward = linear.forward_extend

    def mix(*args, **kwargs):
        sizes.append(len(copies.names))
        mixed = forward(*args, **kwargs)
        sizes.append(len(copies.names))
        return mixed

    linear.forward = mix
    with torch.no_grad(), copies:
        output = getattr(layer, "_forward", layer.forward)(hidden_states, batch)
    plain = gdn.plain(layer, hidden_states, before, prefixes)
    found = mamba2.judge(plain, output, (conv, state), before, lengths)
    return dict(
        before=copies.names[: sizes[0]],
        behind=copies.names[sizes[0] : sizes[1]],
        cuda=cuda.calls - calls,
        apart=max(found["own"]),
        untouched=not found["others"],
    )


@pytest.mark.parametrize("case", CASES)
def test_one_kernel_splits_the_projections_and_rows_are_convolved_as_they_lie(case, compared):
    """No op of PyTorch copies any of their parts, and none joins them, but for what the kernel
    cannot: blocks of Triton have sizes that are powers of two. No copy turns rows to suit CUDA's
    kernel; q, k and v are cut out of them afterwards."""
    found = compared[case]
    assert "cat" in found["before"] if case in OTHERS else found["before"] == []
    assert found["cuda"] == 0
    assert [name for name in found["behind"] if "turned" in name] == []
    # float16 kernels beside a float32 reference: outputs, convolution states and states
    assert found["apart"] < 0.01 and found["untouched"], found
