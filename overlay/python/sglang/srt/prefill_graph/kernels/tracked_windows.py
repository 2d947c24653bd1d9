"""The convolution's windows that the prefix cache keeps of a prefill, for launches that do not
depend on the batch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import ssd

WIDTH = 3  # inputs of a window
BLOCK_FEATURES, WARPS = 1024, 4


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


def keep(x: torch.Tensor, pool: torch.Tensor, plan: ssd.Plan) -> None:
    """Leave the last inputs before each tracked row of `plan` in the track slot of the pool.

    x: (rows, features), each row contiguous, rows at any stride. pool: (slots, features, 3).
    A request is tracked behind none of its rows, or behind 3 of them at least.
    """
    features = x.shape[1]
    _window_kernel[plan.requests, triton.cdiv(features, BLOCK_FEATURES)](
        x,
        pool,
        plan.cu,
        plan.track_rows,
        plan.track_slots,
        x.stride(0),
        *pool.stride(),
        FEATURES=features,
        WIDTH=WIDTH,
        BLOCK=BLOCK_FEATURES,
        num_warps=WARPS,
    )
