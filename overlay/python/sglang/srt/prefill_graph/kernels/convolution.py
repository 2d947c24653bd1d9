"""Mamba2's causal convolution over 4 tokens with SiLU, launched over the chunks of a table on the
device, so that a captured launch serves any batch. Each sum is made in the release's order and
types: the bits are alike."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import ssd

WIDTH = 4  # tokens that one output depends on; the pool keeps the last three of a request
# Found on an H200: 78 us for 4096 rows of 12288 features, where a program that walks 16 rows one
# after another takes 88. Blocks of 8 x 128 take 75, but 142 in a graph's table: of its 96 chunks 64
# are empty then, with four times the programs.
BLOCK_ROWS, BLOCK_FEATURES, WARPS = 16, 256, 4
WINDOW_FEATURES = 1024  # of a program that keeps windows


@triton.jit
def _silu_of_sums(begun, x0, x1, x2, x3, w0, w1, w2, w3):
    y = begun + x0 * w0
    y += x1 * w1
    y += x2 * w2
    y += x3 * w3
    return y / (1 + tl.exp(-y))


@triton.jit
def _convolve_kernel(
    x,
    weight,
    bias,
    pool,
    out,
    owner,
    start,
    size,
    cu,
    first,
    slots,
    warm,
    stride_x,
    stride_out,
    stride_slot,
    stride_feature,
    stride_token,
    FEATURES: tl.constexpr,
    CHUNK: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of rows and features: all loads of its rows, one for each tap, are under way at
    once."""
    chunk = tl.program_id(1) // (CHUNK // ROWS)
    row = tl.program_id(1) % (CHUNK // ROWS) * ROWS
    count = tl.load(size + chunk)
    if row >= count:
        return
    request = tl.load(owner + chunk)
    f = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = f < FEATURES
    row0 = tl.load(start + chunk).to(tl.int64) + row
    w0 = tl.load(weight + f * 4, mask=here, other=0.0)
    w1 = tl.load(weight + f * 4 + 1, mask=here, other=0.0)
    w2 = tl.load(weight + f * 4 + 2, mask=here, other=0.0)
    w3 = tl.load(weight + f * 4 + 3, mask=here, other=0.0)
    begun = tl.zeros((BLOCK,), tl.float32)
    if BIAS:
        begun = tl.load(bias + f, mask=here, other=0.0).to(tl.float32)
    x += row0 * stride_x + f
    out += row0 * stride_out + f
    begins = (row == 0) & (chunk == tl.load(first + request))
    k = tl.arange(0, ROWS)
    # A request's first three rows depend on its window in the pool.
    mine = ((k >= tl.where(begins, 3, 0)) & (row + k < count))[:, None] & here[None, :]
    at = x[None, :] + k[:, None] * stride_x
    x0 = tl.load(at - 3 * stride_x, mask=mine, other=0.0)
    x1 = tl.load(at - 2 * stride_x, mask=mine, other=0.0)
    x2 = tl.load(at - stride_x, mask=mine, other=0.0)
    x3 = tl.load(at, mask=mine, other=0.0)
    y = _silu_of_sums(
        begun[None, :], x0, x1, x2, x3, w0[None, :], w1[None, :], w2[None, :], w3[None, :]
    )
    tl.store(out[None, :] + k[:, None] * stride_out, y.to(out.dtype.element_ty), mask=mine)
    if begins:
        # The only program that reads the request's window in the pool also writes the next one.
        rows = tl.load(cu + request + 1) - tl.load(cu + request)
        window = pool + tl.load(slots + request).to(tl.int64) * stride_slot + f * stride_feature
        was = here & (tl.load(warm + request) != 0)
        p0 = tl.load(window, mask=was, other=0.0)
        p1 = tl.load(window + stride_token, mask=was, other=0.0)
        p2 = tl.load(window + 2 * stride_token, mask=was, other=0.0)
        last = x + (rows.to(tl.int64) - 3) * stride_x
        n0 = tl.load(last, mask=here & (rows >= 3), other=0.0)
        n1 = tl.load(last + stride_x, mask=here & (rows >= 2), other=0.0)
        n2 = tl.load(last + 2 * stride_x, mask=here, other=0.0)
        n0 = tl.where(rows >= 3, n0, tl.where(rows == 2, p2, p1))
        n1 = tl.where(rows >= 2, n1, p2)
        tl.debug_barrier()
        tl.store(window, n0, mask=here)
        tl.store(window + stride_token, n1, mask=here)
        tl.store(window + 2 * stride_token, n2, mask=here)
        p0 = p0.to(x.dtype.element_ty)
        p1 = p1.to(x.dtype.element_ty)
        p2 = p2.to(x.dtype.element_ty)
        for j in tl.static_range(3):
            real = here & (j < rows)
            p3 = tl.load(x + j * stride_x, mask=real, other=0.0)
            y1 = _silu_of_sums(begun, p0, p1, p2, p3, w0, w1, w2, w3)
            tl.store(out + j * stride_out, y1.to(out.dtype.element_ty), mask=real)
            p0, p1, p2 = p1, p2, p3


def convolve(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    pool: torch.Tensor,
    out: torch.Tensor,
    plan: ssd.Plan,
    owner: torch.Tensor,
    slots: torch.Tensor,
    warm: torch.Tensor,
) -> None:
    """Fill `out`, and leave each request's last three inputs in its slot of the pool. Rows behind
    the last request are left alone.

    x, out: (rows, features) of one floating type, each row contiguous, rows at any stride. weight:
    (features, 4), contiguous. bias: (features,). pool: (slots, features, 3). owner: (chunks,)
    int32, the request of each chunk. slots, warm: (requests,), as in ssd.Launches.
    """
    features = x.shape[1]
    blocks = triton.cdiv(features, BLOCK_FEATURES), plan.chunks * (plan.chunk // BLOCK_ROWS)
    _convolve_kernel[blocks](
        *(x, weight, bias, pool, out),
        *(owner, plan.start, plan.size, plan.cu, plan.first, slots, warm),
        *(x.stride(0), out.stride(0), *pool.stride()),
        FEATURES=features,
        CHUNK=plan.chunk,
        BIAS=bias is not None,
        ROWS=BLOCK_ROWS,
        BLOCK=BLOCK_FEATURES,
        num_warps=WARPS,
    )


@triton.jit
def _window_kernel(
    x,
    pool,
    cu,
    rows,
    slots,
    stride_x,
    stride_slot,
    stride_feature,
    stride_token,
    FEATURES: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0)
    count = tl.load(rows + request)
    if count <= 0:
        return
    f = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = f < FEATURES
    begin = (tl.load(cu + request) + count - WIDTH).to(tl.int64)
    window = pool + tl.load(slots + request).to(tl.int64) * stride_slot + f * stride_feature
    for k in tl.static_range(WIDTH):
        value = tl.load(x + (begin + k) * stride_x + f, mask=here)
        tl.store(window + k * stride_token, value.to(pool.dtype.element_ty), mask=here)


def keep_windows(x: torch.Tensor, pool: torch.Tensor, plan: ssd.Plan) -> None:
    """Leave the last inputs before each tracked row of `plan`, none or 3 at least, in the track
    slot of the pool. x, pool: as in convolve."""
    features = x.shape[1]
    _window_kernel[plan.requests, triton.cdiv(features, WINDOW_FEATURES)](
        *(x, pool, plan.cu, plan.track_rows, plan.track_slots),
        *(x.stride(0), *pool.stride()),
        FEATURES=features,
        WIDTH=WIDTH - 1,
        BLOCK=WINDOW_FEATURES,
        num_warps=WARPS,
    )
