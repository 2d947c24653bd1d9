"""The squared ReLU's kernel, interpreted, against PyTorch's two operations."""

import math

import torch
from sglang.srt.layers import activation

NUMBERS = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 255.9, 256.1]
SQUARES_AT_LIMITS = [1e-38, -1e-38, 1e-22, 1e-23, 3e38, 2e-4]  # of what a dtype can hold
EDGES = NUMBERS + SQUARES_AT_LIMITS


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU; the interpreter takes it from where it is."""

    is_cuda = True


def values(shape, dtype):
    """Numbers over the dtype's whole range, denormal ones too, and EDGES."""
    torch.manual_seed(1)
    count = torch.Size(shape).numel()
    least, most = {
        torch.bfloat16: (-135, 128),
        torch.float16: (-26, 16),
        torch.float32: (-150, 128),
    }[dtype]
    made = (
        torch.randn(count, dtype=torch.float64)
        * torch.empty(count, dtype=torch.float64).uniform_(least, most).exp2()
    )
    edges = torch.tensor(EDGES[:count], dtype=torch.float64)
    made[: len(edges)] = edges
    return made.to(dtype).view(shape)


def compare(shape, dtype):
    """Returns how many elements the layer gives other bits than the two operations (NaN is NaN),
    and how many launches it takes: each goes through the module's launch()."""
    from sglang.srt.prefill_graph.kernels import relu2

    x = values(shape, getattr(torch, dtype))
    launched, launch = [], relu2.launch
    relu2.launch = lambda x: (launched.append(x), launch(x))[1]
    try:
        got = activation.ReLU2()(x.as_subclass(OnGpu)).as_subclass(torch.Tensor)
    finally:
        relu2.launch = launch
    clipped = torch.nn.functional.relu(x)
    expected = clipped * clipped
    assert got.dtype == expected.dtype and got.shape == expected.shape
    bits = {2: torch.int16, 4: torch.int32}[x.element_size()]
    same = (got.view(bits) == expected.view(bits)) | (got.isnan() & expected.isnan())
    return dict(other=(~same).sum().item(), launches=len(launched))
