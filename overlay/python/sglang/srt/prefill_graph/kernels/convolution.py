"""Mamba2's causal convolution over 4 tokens with SiLU, for launches that do not depend on the batch.

The release's kernel is launched over the longest request. This one is launched over the chunks of a
table on the device, so that a captured launch serves any batch. Each sum is made in the release's order and types:
bits are alike.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

WIDTH = 4  # tokens that one output depends on; the pool keeps the last three of a request
BLOCK_ROWS, BLOCK_FEATURES, WARPS = 16, 256, 4


@triton.jit
def _convolve_kernel(
    x, weight, bias, pool, out, owner, start, size, cu, first, slots, warm,
    stride_x, stride_out, stride_slot, stride_feature, stride_token,
    FEATURES: tl.constexpr, CHUNK: tl.constexpr, BIAS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0) // (CHUNK // ROWS)
    row = tl.program_id(0) % (CHUNK // ROWS) * ROWS
    count = tl.load(size + chunk)
    if row >= count:
        return
    request = tl.load(owner + chunk)
    f = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = f < FEATURES
    x += f
    row0 = tl.load(start + chunk).to(tl.int64) + row
    if (row == 0) & (chunk == tl.load(first + request)):
        # The only program that reads the request's window in the pool also writes the next one.
        begin = tl.load(cu + request).to(tl.int64)
        end = tl.load(cu + request + 1).to(tl.int64)
        rows = end - begin
        window = pool + tl.load(slots + request).to(tl.int64) * stride_slot + f * stride_feature
        was = here & (tl.load(warm + request) != 0)
        x0 = tl.load(window, mask=was, other=0.0)
        x1 = tl.load(window + stride_token, mask=was, other=0.0)
        x2 = tl.load(window + 2 * stride_token, mask=was, other=0.0)
        last = x + (end - 3) * stride_x
        n0 = tl.load(last, mask=here & (rows >= 3), other=0.0)
        n1 = tl.load(last + stride_x, mask=here & (rows >= 2), other=0.0)
        n2 = tl.load(last + 2 * stride_x, mask=here, other=0.0)
        n0 = tl.where(rows >= 3, n0, tl.where(rows == 2, x2, x1))
        n1 = tl.where(rows >= 2, n1, x2)
        tl.debug_barrier()
        tl.store(window, n0, mask=here)
        tl.store(window + stride_token, n1, mask=here)
        tl.store(window + 2 * stride_token, n2, mask=here)
        x0 = x0.to(x.dtype.element_ty)
        x1 = x1.to(x.dtype.element_ty)
        x2 = x2.to(x.dtype.element_ty)
    else:
        x0 = tl.load(x + (row0 - 3) * stride_x, mask=here, other=0.0)
        x1 = tl.load(x + (row0 - 2) * stride_x, mask=here, other=0.0)
        x2 = tl.load(x + (row0 - 1) * stride_x, mask=here, other=0.0)
    weight += f * 4
    w0 = tl.load(weight, mask=here, other=0.0)
    w1 = tl.load(weight + 1, mask=here, other=0.0)
    w2 = tl.load(weight + 2, mask=here, other=0.0)
    w3 = tl.load(weight + 3, mask=here, other=0.0)
    begun = tl.zeros((BLOCK,), tl.float32)
    if BIAS:
        begun = tl.load(bias + f, mask=here, other=0.0).to(tl.float32)
    for k in tl.static_range(ROWS):
        real = here & (row + k < count)
        x3 = tl.load(x + (row0 + k) * stride_x, mask=real, other=0.0)
        y = begun + x0 * w0
        y += x1 * w1
        y += x2 * w2
        y += x3 * w3
        y = y / (1 + tl.exp(-y))
        tl.store(out + (row0 + k) * stride_out + f, y.to(out.dtype.element_ty), mask=real)
        x0, x1, x2 = x1, x2, x3


def convolve(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, pool: torch.Tensor,
    out: torch.Tensor, plan, owner: torch.Tensor, slots: torch.Tensor, warm: torch.Tensor,
) -> None:  # fmt: skip
    """Fill `out`, and leave each request's last three inputs in its slot of the pool.

    x, out: (rows, features) of one floating type, each row contiguous, rows at any stride.
    weight: (features, 4), contiguous. bias: (features,). pool: (slots, features, 3).
    plan: an ssd.Plan. owner: (chunks,) int32, the request of each chunk.
    slots, warm: (requests,), as in ssd.Launches. Rows behind the last request are left alone.
    """
    features = x.shape[1]
    blocks = plan.chunks * (plan.chunk // BLOCK_ROWS), triton.cdiv(features, BLOCK_FEATURES)
    _convolve_kernel[blocks](
        x, weight, bias, pool, out, owner, plan.start, plan.size, plan.cu, plan.first, slots, warm,
        x.stride(0), out.stride(0), *pool.stride(),
        FEATURES=features, CHUNK=plan.chunk, BIAS=bias is not None,
        ROWS=BLOCK_ROWS, BLOCK=BLOCK_FEATURES, num_warps=WARPS,
    )  # fmt: skip
