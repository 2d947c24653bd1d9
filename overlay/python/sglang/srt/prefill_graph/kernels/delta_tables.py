"""What the releases' kernels of a gated delta rule need before a captured prefill, in one launch:
chunks as pairs of a request and a number, and each request's slot.

They read and write the slot of every place in the table, and always go on from what a slot holds.
So places behind the batch get slot 0, which belongs to nobody, and the states of requests that
begin are zeroed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

FAR = tl.constexpr(1 << 20)  # of a chunk that is not there: behind the last row of every request
BLOCK_CHUNKS, BLOCK_STATE, WARPS = 128, 8192, 8


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
    """Of a place, a block of its state; the first block's programs of the others fill the pairs."""
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
    plan,
    owner: torch.Tensor,
    slots: torch.Tensor,
    warm: torch.Tensor,
    parts: int = 0,
) -> Begun:
    """Zero the states of requests that begin, and say what the release's kernels ask for.

    pool: (slots, heads, …), contiguous. plan: an ssd.Plan. owner: (chunks,), each chunk's request.
    slots, warm: (requests,), as in ssd.Launches. parts: into how many each chunk is cut; 0: no
    table.
    """
    made = torch.empty((plan.chunks, 2), dtype=torch.int32, device=pool.device)
    cut = torch.empty((plan.chunks * parts, 2), dtype=torch.int32, device=pool.device)
    places = torch.empty(plan.requests, dtype=torch.int32, device=pool.device)
    state = pool[0].numel()
    grid = (
        plan.requests + triton.cdiv(plan.chunks, BLOCK_CHUNKS),
        triton.cdiv(state, BLOCK_STATE),
    )
    _begin_kernel[grid](
        pool,
        owner,
        plan.start,
        plan.size,
        plan.cu,
        slots,
        warm,
        made,
        cut if parts else made,
        places,
        plan.chunks,
        plan.requests,
        pool.stride(0),
        STATE=state,
        CHUNK=plan.chunk,
        PARTS=parts,
        BLOCK_CHUNKS=BLOCK_CHUNKS,
        BLOCK_STATE=BLOCK_STATE,
        num_warps=WARPS,
    )
    return Begun(made, cut if parts else None, places)
