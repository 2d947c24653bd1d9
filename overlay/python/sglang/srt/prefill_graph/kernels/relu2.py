"""The squared ReLU of NemotronH's feed-forward layers (arXiv 2109.08668) in one pass over memory.
Up to 0.5.12 a release takes two kernels; from 0.5.13 on it has a kernel of its own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

# elements of one program: 128 threads, each with four accesses of 16 bytes (float32: eight)
BLOCK = 4096
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def relu2(x: torch.Tensor) -> torch.Tensor:
    """max(x, 0) squared, in x's shape and dtype, with the bits of PyTorch's two kernels. NaN stays
    NaN."""
    if fits(x):
        return launch(x)
    x = F.relu(x)
    return x * x


def fits(x: torch.Tensor) -> bool:
    """Whether launch() may take x. In a traced graph inductor makes one kernel of the two
    operations."""
    if torch.compiler.is_compiling():
        return False
    return (
        x.is_cuda
        and x.dtype in DTYPES
        and x.is_contiguous()
        and x.numel() > 0
        and not x.requires_grad
    )


def launch(x: torch.Tensor) -> torch.Tensor:
    """max(x, 0) squared. x: contiguous, of a dtype in DTYPES, not empty."""
    y = torch.empty_like(x)
    total = x.numel()
    _relu2_kernel[(triton.cdiv(total, BLOCK),)](x, y, total, BLOCK=BLOCK, num_warps=4)
    return y


@triton.jit
def _relu2_kernel(x_ptr, y_ptr, total, BLOCK: tl.constexpr):
    """One program takes BLOCK of [total] elements. The product is rounded once, from float32; a NaN
    is not below 0, so it goes through."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    x = tl.load(x_ptr + at, mask=inside).to(tl.float32)
    x = tl.where(x < 0, 0.0, x)
    tl.store(y_ptr + at, (x * x).to(y_ptr.dtype.element_ty), mask=inside)
