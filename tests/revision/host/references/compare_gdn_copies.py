"""One prefill through a gated delta net of the release, as it is set up on an NVIDIA GPU.

What it copies, which kernel convolves, and its results against the plain reference.
"""

import importlib
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from packaging.version import Version
from torch.utils._python_dispatch import TorchDispatchMode

from host import graph, standin_packages
from host.references import compare_tracked_gdn, gdn, mamba2

TYPE, WIDTH = compare_tracked_gdn.TYPE, compare_tracked_gdn.WIDTH
LISTED = Version(os.environ["PATCHQUEUE_REVISION"]) >= Version("0.5.6")  # its pool may have several


class Copies(TorchDispatchMode):
    """In it, `names` gains the name of each op that copies a tensor, "turned" before it where
    neighbours in memory become strangers."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

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

    def __init__(self) -> None:
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


def set_up_on_nvidia() -> CudaConvolution:
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


CUDA = set_up_on_nvidia()


def compare(
    lengths: list[int], prefixes: list[int], rows: int = 0, **changes: int
) -> dict[str, Any]:
    """New tokens and cached ones of each request; more `rows`, if any, are of no request.

    Returns the names of the copies `before` the mixer's states are needed and `behind`, `cuda`: how
    often the CUDA kernel convolved, `apart`: the largest difference of outputs and states, and
    `untouched`: whether nobody's states stayed as they were.
    """
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

    copies, calls, sizes = Copies(), CUDA.calls, []
    forward = linear.forward_extend

    def mix(*args, **kwargs):
        sizes.append(len(copies.names))
        mixed = forward(*args, **kwargs)
        sizes.append(len(copies.names))
        return mixed

    linear.forward = mix
    with torch.no_grad(), copies:
        output = getattr(layer, "_forward", layer.forward)(hidden_states, batch)
    found = gdn.worst(layer, hidden_states, output, (conv, state), before, lengths, prefixes)
    return dict(
        before=copies.names[: sizes[0]],
        behind=copies.names[sizes[0] : sizes[1]],
        cuda=CUDA.calls - calls,
        apart=max(found.values()),
        untouched=conv[0].equal(before[0][0]) and state[0].equal(before[1][0]),
    )
