"""The release's prefill kernels, interpreted, on tensors of more than 2**31 elements: a row's
number times its stride needs 64 bits, and the same rows close together must give the same bits.

The system gives a tensor pages where it is touched, so few rows far apart cost little memory. An
offset of 32 bits reads or writes before the tensor: other bits, or the end of the process.
"""

import importlib
import os
from unittest import mock

import pytest
import torch
from host import interpreted, late
from host.references import gdn_layer
from packaging.version import Version

LIMIT = 2**31  # what an offset of 32 bits can be
# Rows of Nemotron-Nano-9B-v2's projection on one GPU: 94787 of them end before the limit.
PROJECTION = 22656
CASES = {
    "convolution, row 100000": dict(kernel="convolved", first=100000, stride=PROJECTION),
    "convolution, one long request": dict(kernel="convolved", first=0, stride=LIMIT // 9),
    "gated norm, row 100000": dict(kernel="norm", stride=PROJECTION * 100000 // 4),
    "states behind requests": dict(kernel="ended", stride=LIMIT // 25),
    "states before chunks": dict(kernel="carried", heads=2**18),
}
release = Version(os.environ["PATCHQUEUE_REVISION"])
for layout in ("", "_contiguous") if release >= Version("0.5.10") else ("",):
    CASES[f"projections{layout}"] = dict(kernel="split", layout=layout, tokens=180000)
if release >= Version("0.5.7"):
    CASES["decoded states"] = dict(kernel="tracked", stride=LIMIT // 3 + 64)


def module(name):
    """A module of the release's Mamba kernels, wherever it lies."""
    srt, ops = "sglang.srt.layers.attention.mamba", "sglang.kernels.ops.mamba"
    places = f"{srt}.{name}", f"{srt}.ops.{name}", f"{ops}.{name}", f"{ops}.triton_ops.{name}"
    return late.first(*places)


def spread(rows, stride):
    """rows: (n, …), contiguous. The same values in a tensor whose rows lie `stride` elements apart,
    on pages that nothing has touched."""
    wide = torch.empty(len(rows) * stride + rows[0].numel(), dtype=rows.dtype)
    wide = wide.as_strided(rows.shape, (stride, *rows.stride()[1:]))
    wide.copy_(rows)
    return wide


def norm(stride):
    """Five rows of two groups, their gates `stride` elements apart, as in a projection's output."""
    layernorm_gated = importlib.import_module(f"{gdn_layer.fla()}.layernorm_gated")
    layernorm_gated._get_sm_count = lambda device: 1  # 0.5.8 and later ask
    x, gate = torch.randn(5, 32).half(), torch.randn(5, 32).half()
    weight = torch.rand(32).half()

    def normed(x, gate):
        return layernorm_gated.rms_norm_gated(
            x=x,
            weight=weight,
            bias=None,
            z=gate,
            eps=1e-5,
            group_size=16,
            norm_before_gate=False,
            is_rms_norm=True,
        )

    far = spread(x, stride), spread(gate, stride)
    return torch.equal(normed(x, gate), normed(*far))


def convolved(first, stride, tokens=12, features=24):
    """A request of `tokens` rows behind `first` rows of none, `stride` elements apart."""
    release = module("causal_conv1d_triton")
    x, weight = torch.randn(tokens, features).half(), torch.randn(features, 4).half()
    bias, began = torch.randn(features).half(), torch.randn(1, features, 3).half()

    def run(rows, first):
        pool = began.clone()
        out = release.causal_conv1d_fn(
            rows.transpose(0, 1),
            weight,
            bias,
            pool,
            torch.tensor([first, first + tokens], dtype=torch.int32),
            [tokens],
            cache_indices=torch.zeros(1, dtype=torch.int32),
            has_initial_state=torch.ones(1, dtype=torch.bool),
            activation="silu",
        )
        return out.transpose(0, 1)[first:].clone(), pool

    wide = spread(torch.zeros(1, 1).half(), (first + tokens) * stride)
    wide = wide.as_strided((first + tokens, features), (stride, 1))
    wide[first:].copy_(x)
    return all(map(torch.equal, run(x, 0), run(wide, first)))


def ended(stride):
    """The states behind requests that end in different chunks, whose rows lie `stride` elements
    apart, and their chunks' states 16 times that."""
    release = module("ssd_chunk_state")
    interpreted.choose_first_configs(release.__name__)
    heads, size, wide, chunk, rows = 2, 16, 16, 16, 40
    x, b = torch.randn(rows, heads, size), torch.randn(rows, 1, wide)
    dt = torch.rand(heads, 3, chunk)
    sums, states = -dt.cumsum(-1), torch.randn(3, heads, size, wide)
    cu = torch.tensor([0, 12, rows], dtype=torch.int32)

    def run(x, b, states):
        return release.chunk_state_varlen(b, x, dt, sums, cu, states)

    far = (spread(rows, apart) for rows, apart in ((x, stride), (b, stride), (states, 16 * stride)))
    return torch.equal(run(x, b, states), run(*far))


def carried(heads):
    """One head's states before three chunks of 64 rows, of a layer of `heads` heads of 64 by 64."""
    chunk_delta_h = importlib.import_module(f"{gdn_layer.fla()}.chunk_delta_h")
    interpreted.resolve_late(gdn_layer.fla())
    kernel = chunk_delta_h.chunk_gated_delta_rule_fwd_kernel_h_blockdim64
    while not hasattr(kernel, "arg_names") or hasattr(kernel, "configs"):
        kernel = kernel.fn
    rows, chunks, size = 130, 3, 64
    k, v, w = (torch.randn(rows, size).half() / 8 for _ in range(3))
    g = -torch.rand(rows, 1).cumsum(0) / 8
    offsets = dict(
        cu_seqlens=torch.tensor([0, rows], dtype=torch.int32),
        chunk_offsets=torch.zeros(1, dtype=torch.int32),
        initial_state_indices=torch.tensor([2], dtype=torch.int32),
    )
    settings = dict(T=rows, Hg=1, K=size, V=size, BT=64, BV=32, USE_G=True, USE_GK=False)
    settings |= dict(USE_INITIAL_STATE=False, SAVE_NEW_VALUE=True, IS_VARLEN=True, NT_BUCKET=0)
    settings |= dict(
        INPLACE_UPDATE=False, STORE_FINAL_STATE=False, USE_EXP2=False, TRACK_STATE=False
    )
    nothing = dict.fromkeys(("gk", "h0", "ht", "track_state", "track_chunk_idx"))
    nothing |= dict(stride_track_state=0, initial_state=torch.zeros(1))

    def run(heads):
        width = heads * size
        far = dict(v=spread(v, width), w=spread(w, width), g=spread(g, heads))
        h, new = (
            spread(torch.zeros(n, *shape).half(), apart)
            for n, shape, apart in ((chunks, (size, size), width * size), (rows, (size,), width))
        )
        given = offsets | settings | nothing | far | dict(k=k, h=h, v_new=new, H=heads)
        given["stride_init_state"] = width * size
        kernel[size // 32, 1](**{name: given[name] for name in kernel.arg_names})
        return h.clone(), new.clone()

    return all(map(torch.equal, run(1), run(heads)))


def split(layout, tokens):
    """The last of many rows, of projections as wide as Qwen3-Next's on one GPU."""
    from triton.runtime.interpreter import interpreter_builder

    release = late.first(
        "sglang.jit_kernel.triton.gdn_fused_proj",  # from 0.5.10 to 0.5.16
        "sglang.kernels.ops.attention.triton_gdn_fused_proj",
        "sglang.srt.models.qwen3_next",
    )
    function = getattr(release, f"fused_qkvzba_split_reshape_cat{layout}")
    name = f"{function.__name__}_kernel"
    kernel, heads, ratio, size = getattr(release, name), 16, 2, 128
    qkvz = torch.empty(tokens, heads * size * (2 + 2 * ratio), dtype=torch.int8)
    ba = torch.empty(tokens, heads * ratio * 2, dtype=torch.int8)
    qkvz[-1].random_(), ba[-1].random_()

    class Last:
        """The kernel, launched for the last row alone."""

        def __getitem__(self, grid):
            def launch(*given, **words):
                with mock.patch.object(
                    interpreter_builder, "set_grid_idx", lambda x, y, z: at(grid[0] - 1, y, z)
                ):
                    kernel[1, grid[1]](*given, **words)

            return launch

    def at(*place):
        interpreter_builder.grid_idx = place

    with mock.patch.object(release, name, Last()):
        far, near = (
            function(*rows, heads, heads * ratio, size, size)
            for rows in ((qkvz, ba), (qkvz[-1:].clone(), ba[-1:].clone()))
        )
    return all(torch.equal(one[-1], other[-1]) for one, other in zip(far, near))


def tracked(stride):
    """A decoded state copied from slot 2 to slot 3, of slots that lie `stride` elements apart."""
    from sglang.srt.layers.attention import hybrid_linear_attn_backend as backend

    copy = backend.track_mamba_states_if_needed
    conv, state = torch.randn(4, 24).half(), torch.randn(4, 64).half()
    kept = spread(state, stride)
    indices = [torch.tensor(slots, dtype=torch.int32) for slots in ([1, 2], [0, 3])]
    copy(conv, kept, indices[0], torch.tensor([False, True]), indices[1], 2)
    return torch.equal(kept[3], state[2]) and torch.equal(kept[:3], state[:3])


def compare(kernel, **case):
    torch.manual_seed(7)
    return globals()[kernel](**case)


@pytest.mark.parametrize("case", CASES)
def test_rows_far_apart_give_the_bits_of_rows_close_together(case, compared):
    assert compared[case]
