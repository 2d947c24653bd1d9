"""What kernels of a gated delta rule need around a captured prefill: tables and states before it,
and the states that the prefix cache keeps, rounded as eager prefill rounds them.

The releases' kernels want chunks as pairs of a request and a number, and each request's slot. They
use the slot of every place in the table, and always go on from what a slot holds. So places behind
the batch get slot 0, which nobody owns, and the states of requests that begin are zeroed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from . import ssd

# elements of a program: most places have no request, and starting their programs costs, too
BLOCK, WARPS = 8192, 8
BLOCK_CHUNKS = 128  # of a program that fills pairs
FAR = tl.constexpr(1 << 20)  # of a chunk that is not there: behind the last row of every request


@triton.jit(do_not_specialize=["chunks", "requests"])
def _begin_kernel(
    pool,
    owner,
    start,
    size,
    cu,
    slots,
    warm,
    pairs,
    parts,
    places,
    chunks,
    requests,
    stride_slot,
    STATE: tl.constexpr,
    CHUNK: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
    BLOCK_STATE: tl.constexpr,
):
    """A block of a place's state; behind the places, a block of pairs."""
    place = tl.program_id(0)
    block = tl.program_id(1)
    if place < requests:
        real = tl.load(cu + place + 1) > tl.load(cu + place)
        slot = tl.where(real, tl.load(slots + place).to(tl.int64), 0)
        tl.store(places + place, slot.to(tl.int32), mask=block == 0)
        begins = real & (tl.load(warm + place) == 0)
        at = block * BLOCK_STATE + tl.arange(0, BLOCK_STATE)
        none = tl.zeros((BLOCK_STATE,), pool.dtype.element_ty)
        tl.store(pool + slot * stride_slot + at, none, mask=(at < STATE) & begins)
    elif block == 0:
        chunk = (place - requests) * BLOCK_CHUNKS + tl.arange(0, BLOCK_CHUNKS)
        here = chunk < chunks
        count = tl.load(size + chunk, mask=here, other=0)
        request = tl.load(owner + chunk, mask=here & (count > 0), other=0)
        began = tl.load(cu + request)
        number = (tl.load(start + chunk, mask=here, other=0) - began) // CHUNK
        tl.store(pairs + 2 * chunk, request, mask=here)
        tl.store(pairs + 2 * chunk + 1, tl.where(count > 0, number, FAR), mask=here)
        for k in tl.static_range(PARTS):
            part = parts + 2 * (chunk * PARTS + k)
            there = count > k * (CHUNK // PARTS)
            tl.store(part, request, mask=here)
            tl.store(part + 1, tl.where(there, number * PARTS + k, FAR), mask=here)


@dataclass(frozen=True)
class Begun:
    """pairs: (chunks, 2), each chunk's request and its number there; one that is not there is far
    behind. parts: the same of parts of chunks, or None. slots: (requests,). All int32."""

    pairs: torch.Tensor
    parts: torch.Tensor | None
    slots: torch.Tensor


def begin(
    pool: torch.Tensor,
    plan: ssd.Plan,
    owner: torch.Tensor,
    slots: torch.Tensor,
    warm: torch.Tensor,
    parts: int = 0,
) -> Begun:
    """Zero the states of requests that begin, and say what the release's kernels ask for.

    pool: (slots, heads, …), contiguous. owner: (chunks,), each chunk's request. slots, warm:
    (requests,), as in ssd.Launches. parts: into how many each chunk is cut; 0: no table.
    """
    made = owner.new_empty((plan.chunks, 2))
    cut = owner.new_empty((plan.chunks * parts, 2))
    places = owner.new_empty(plan.requests)
    state = pool[0].numel()
    grid = plan.requests + triton.cdiv(plan.chunks, BLOCK_CHUNKS), triton.cdiv(state, BLOCK)
    _begin_kernel[grid](
        *(pool, owner, plan.start, plan.size, plan.cu, slots, warm),
        *(made, cut if parts else made, places),
        *(plan.chunks, plan.requests, pool.stride(0)),
        STATE=state,
        CHUNK=plan.chunk,
        PARTS=parts,
        BLOCK_CHUNKS=BLOCK_CHUNKS,
        BLOCK_STATE=BLOCK,
        num_warps=WARPS,
    )
    return Begun(made, cut if parts else None, places)


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
    """Leave in the pool, (slots, heads, …), what `plan` says that the prefix cache keeps. states:
    (chunks, heads, …), contiguous, before each chunk. slots: (requests,), of each one's last
    state."""
    size = pool[0].numel()
    _keep_kernel[plan.requests, triton.cdiv(size, BLOCK)](
        *(pool, states, plan.cu, plan.first, plan.track_rows, slots, plan.track_slots),
        *(pool.stride(0), states.stride(0)),
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
