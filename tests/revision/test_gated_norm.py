"""The norm behind each Mamba2 layer: groups of channels in the release's one kernel."""

import pytest
from host import late
from host.compiled import compiled

with late.modules():
    from sglang.srt.layers.attention.fla import layernorm_gated

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.13")

KERNEL = {
    "NemotronH's groups": dict(tokens=3, groups=8, size=1280, wide=22656, dtype="bfloat16"),
    "gate of its own": dict(tokens=5, groups=4, size=64),
    "gate in a wider tensor": dict(tokens=5, groups=4, size=64, wide=700),
    "bfloat16": dict(tokens=9, groups=4, size=96, wide=700, dtype="bfloat16"),
    "float16": dict(tokens=9, groups=4, size=96, wide=700, dtype="float16"),
    "two groups": dict(tokens=6, groups=2, size=80, wide=333),
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


REFERENCE, CASES = "compare_gated_norm", KERNEL | NATIVE


@pytest.mark.parametrize("case", KERNEL)
def test_the_kernel_norms_each_group(case, compared):
    """Never in PyTorch, and as near as one rounding to the dtype: in 16 bits PyTorch's nine kernels
    are not."""
    found = compared[case]
    assert found["native"] == 0
    assert found["error"] < 1.1, found


@pytest.mark.parametrize("case", NATIVE)
def test_a_group_on_several_ranks_stays_in_pytorch(case, compared):
    assert compared[case]["native"] == NATIVE[case]["ranks"]


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
