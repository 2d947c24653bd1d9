"""The states of a gated delta rule that the prefix cache keeps of a captured prefill.

The rule's kernels leave the state before each chunk, in the type of activations. Eager prefill
copies from there, so that what is kept is rounded to it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import ssd

BLOCK, WARPS = 1024, 4


@triton.jit
def _keep_kernel(
    pool,
    states,
    cu,
    first,
    rows,
    slots,
    kept,
    stride_slot,
    stride_chunk,
    STATE: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0)
    count = tl.load(rows + request)
    if count <= 0:
        return
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = at < STATE
    if count == tl.load(cu + request + 1) - tl.load(cu + request):
        own = pool + tl.load(slots + request).to(tl.int64) * stride_slot
        state = tl.load(own + at, mask=here)
    else:
        chunk = (tl.load(first + request) + count // CHUNK).to(tl.int64)
        state = tl.load(states + chunk * stride_chunk + at, mask=here).to(pool.dtype.element_ty)
    place = pool + tl.load(kept + request).to(tl.int64) * stride_slot
    tl.store(place + at, state, mask=here)


def keep(pool: torch.Tensor, states: torch.Tensor, plan: ssd.Plan, slots: torch.Tensor) -> None:
    """Leave in the pool what `plan` says that the prefix cache keeps of each request.

    pool: (slots, heads, …), each slot contiguous, with every request's last state in it. states:
    (chunks, heads, …), contiguous, before each chunk. slots: (requests,), each one's own.
    """
    size = pool[0].numel()
    _keep_kernel[plan.requests, triton.cdiv(size, BLOCK)](
        pool,
        states,
        plan.cu,
        plan.first,
        plan.track_rows,
        slots,
        plan.track_slots,
        pool.stride(0),
        states.stride(0),
        STATE=size,
        CHUNK=plan.chunk,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
