"""The states of a gated delta rule's captured prefill: those that the prefix cache keeps, rounded
as eager prefill rounds them, and for FlashInfer's kernel all of them, packed."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import ssd

# elements of a program: most places have no request, and starting their programs costs, too
BLOCK, WARPS = 8192, 8


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


@triton.jit
def _move_kernel(
    pool,
    packed,
    cu,
    slots,
    warm,
    stride_slot,
    GATHER: tl.constexpr,
    STATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0)
    if tl.load(cu + request + 1) == tl.load(cu + request):
        return
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = at < STATE
    own = pool + tl.load(slots + request).to(tl.int64) * stride_slot + at
    there = packed + request.to(tl.int64) * STATE + at
    if GATHER:
        was = here & (tl.load(warm + request) != 0)
        tl.store(there, tl.load(own, mask=was, other=0.0).to(tl.float32), mask=here)
    else:
        tl.store(own, tl.load(there, mask=here).to(pool.dtype.element_ty), mask=here)


def move(
    pool: torch.Tensor,
    packed: torch.Tensor,
    plan: ssd.Plan,
    slots: torch.Tensor,
    warm: torch.Tensor | None = None,
) -> None:
    """Fill `packed`, (requests, heads, …) float32, from the slots of the pool, with zeros for a
    request that begins; or, without `warm`, those slots from `packed`. slots, warm: (requests,), as
    in ssd.Launches. A place without a request reads and writes nothing."""
    size = packed[0].numel()
    given = pool, packed, plan.cu, slots, slots if warm is None else warm, pool.stride(0)
    grid = plan.requests, triton.cdiv(size, BLOCK)
    _move_kernel[grid](*given, GATHER=warm is not None, STATE=size, BLOCK=BLOCK, num_warps=WARPS)


@triton.jit
def _clear_kernel(x, start, size, FEATURES: tl.constexpr, BLOCK: tl.constexpr):
    chunk = tl.program_id(0)
    rows = -tl.load(size + chunk)
    if rows <= 0:
        return
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(start + chunk).to(tl.int64) * FEATURES
    none = tl.zeros((BLOCK,), x.dtype.element_ty)
    tl.store(x + first + at, none, mask=at < rows * FEATURES)


def clear_behind(x: torch.Tensor, plan: ssd.Plan) -> None:
    """Zero the rows of x, (rows, …) contiguous, behind the batch of `plan`."""
    features = x[0].numel()
    grid = plan.chunks, triton.cdiv(plan.chunk * features, BLOCK)
    _clear_kernel[grid](x, plan.start, plan.size, features, BLOCK, num_warps=WARPS)
