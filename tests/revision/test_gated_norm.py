"""The norm behind each Mamba2 layer: groups of channels in the release's one kernel."""

import pytest
import torch
from host import late
from host.compiled import compiled
from host.references import mamba2

with late.modules():
    from sglang.srt.layers.attention.fla import layernorm_gated
    from sglang.srt.layers.attention.mamba import mixer2_rms_norm_gated

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.13")

KERNEL = {
    "NemotronH's groups": dict(tokens=3, groups=8, size=1280, wide=22656, dtype="bfloat16"),
    "gate of its own": dict(tokens=5, groups=4, size=64),
    "float16": dict(tokens=9, groups=4, size=96, wide=700, dtype="float16"),
    "odd groups": dict(tokens=6, groups=3, size=77, wide=333, dtype="bfloat16"),
    "one row at once": dict(tokens=7, groups=2, size=64, wide=300, multiprocessors=100),
    "two rows at once": dict(tokens=4, groups=2, size=64, wide=300),
    "four rows at once, the last ones few": dict(tokens=11, groups=2, size=64, wide=300),
    "one token": dict(tokens=1, groups=8, size=80, wide=1500, dtype="bfloat16"),
    "one group": dict(tokens=5, groups=1, size=160, wide=333, dtype="bfloat16"),
    "two ranks": dict(tokens=5, groups=4, size=64, wide=700, ranks=2, dtype="bfloat16"),
    "a group each": dict(tokens=5, groups=4, size=64, wide=700, ranks=4),
}
NATIVE = {
    "one group on two ranks": dict(tokens=5, groups=1, size=64, ranks=2),
    "three groups on two ranks": dict(tokens=5, groups=3, size=64, ranks=2),
    "more ranks than groups": dict(tokens=5, groups=2, size=64, ranks=4),
}


CASES = KERNEL | NATIVE
EPS = 1e-5


def made(hidden, groups, rank, ranks):
    """The layer of one rank, in float32, as a model builds it."""
    mixer2_rms_norm_gated.get_tensor_model_parallel_world_size = lambda: ranks
    mixer2_rms_norm_gated.get_tensor_model_parallel_rank = lambda: rank
    return mixer2_rms_norm_gated.Mixer2RMSNormGated(hidden, groups, eps=EPS)


def compare(tokens, groups, size, ranks=1, dtype="float32", wide=None, multiprocessors=1):
    """tokens: rows. size: channels of a group. wide: the columns of the tensor whose first ones are
    the gate, as they are in a layer; else the gate is a tensor of its own. multiprocessors: the
    kernel takes more rows at once where they are few.

    Returns the largest error relative to the output's size, in units of what rounding once to dtype
    may cost, and how many ranks went to PyTorch (these are not compared).
    """
    layernorm_gated._get_sm_count = lambda device: multiprocessors  # 0.5.8 and later ask
    torch.manual_seed(3)
    dtype, hidden = getattr(torch, dtype), groups * size
    y = torch.randn(tokens, hidden).to(dtype)
    projected = torch.randn(tokens, wide or hidden).to(dtype)
    y[0] *= 1e-4  # where EPS matters
    gate, weight = projected[:, :hidden], (1 + torch.randn(hidden) / 4).to(dtype)
    expected = mamba2.gated_group_norm(y.double(), gate.double(), weight.double(), groups, EPS)
    native, worst = [], 0.0
    for rank in range(ranks):
        module = made(hidden, groups, rank, ranks)
        module.forward_native = lambda x, gate: native.append(x)
        width = module.per_rank_hidden_size
        assert width * ranks == module.full_hidden_size
        part = slice(rank * width, (rank + 1) * width)
        module.weight.data = weight[part].clone()
        got = module.forward_cuda(y[:, part].contiguous(), gate[:, part])
        if got is not None:
            assert got.dtype == dtype and got.shape == (tokens, hidden // ranks)
            allowed = torch.finfo(dtype).eps / 2 * expected[:, part].abs() + 1e-6
            worst = max(worst, ((got.double() - expected[:, part]).abs() / allowed).max().item())
    return dict(error=worst, native=len(native))


@pytest.mark.parametrize("case", CASES)
def test_the_kernel_norms_each_group(case, compared):
    """A group on one rank never in PyTorch, and as near as one rounding to the dtype: in 16 bits
    PyTorch's nine kernels are not. A group on several ranks stays in PyTorch."""
    found = compared[case]
    assert found["native"] == (NATIVE[case]["ranks"] if case in NATIVE else 0)
    assert found["error"] < 1.1, found


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_the_kernel_spills_nothing_at_nemotron_h_s_size(capability):
    """For a program of four rows of 1280 channels, as in a long prefill (one row up to 0.5.7)."""
    import triton

    kernel = layernorm_gated._layer_norm_fwd_1pass_kernel
    while not isinstance(kernel, triton.JITFunction):
        kernel = kernel.fn
    tensors = {"X": "*bf16", "Y": "*bf16", "W": "*bf16", "Z": "*bf16", "Rstd": "*fp32"}
    strides = {"stride_x_row": "i32", "stride_y_row": "i32", "stride_z_row": "i32"}
    signature = {**tensors, **strides, "M": "i32", "N": "i32", "eps": "fp32"}
    settings = dict(
        B=None,
        Mean=None,
        N=1280,
        BLOCK_N=2048,
        ROWS_PER_BLOCK=4,
        HAS_BIAS=False,
        HAS_Z=True,
        NORM_BEFORE_GATE=False,
        IS_RMS_NORM=True,
        ACTIVATION="swish",
    )
    constexprs = {name: value for name, value in settings.items() if name in kernel.arg_names}
    fixed = {kernel.arg_names[i] for i in kernel.constexprs}
    if "N" in fixed:  # from 0.5.8 on
        del signature["N"]
    else:
        del constexprs["N"]
    aligned = [*tensors, *strides, "M", *(["N"] if "N" in signature else [])]
    made = compiled(kernel, signature, constexprs, {"num_warps": 8}, capability, aligned)
    assert made.spilled == 0 and made.registers <= 128, made
    assert made.ptx.count("ld.global.v4.b32") >= (8 if "ROWS_PER_BLOCK" in fixed else 2)
