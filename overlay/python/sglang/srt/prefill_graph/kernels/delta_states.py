"""The states of a gated delta rule that the prefix cache keeps of a captured prefill.

The rule's kernels leave the state before each chunk, in the type of activations. Eager prefill
copies from there, so that what is kept is rounded to it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

NOTHING, LAST = 0, 1  # upstream's track_mode; its 2 is a state before a chunk
BLOCK, WARPS = 1024, 4


@triton.jit
def _keep_kernel(
    pool,
    states,
    modes,
    first,
    chunks,
    slots,
    kept,
    stride_slot,
    stride_chunk,
    STATE: tl.constexpr,
    BLOCK: tl.constexpr,
    NOTHING: tl.constexpr,
    LAST: tl.constexpr,
):
    request = tl.program_id(0)
    mode = tl.load(modes + request)
    if mode == NOTHING:
        return
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = at < STATE
    if mode == LAST:
        own = pool + tl.load(slots + request).to(tl.int64) * stride_slot
        state = tl.load(own + at, mask=here)
    else:
        chunk = (tl.load(first + request) + tl.load(chunks + request)).to(tl.int64)
        state = tl.load(states + chunk * stride_chunk + at, mask=here).to(pool.dtype.element_ty)
    place = pool + tl.load(kept + request).to(tl.int64) * stride_slot
    tl.store(place + at, state, mask=here)


def keep(pool: torch.Tensor, states: torch.Tensor, tables: Any) -> None:
    """Leave in the pool what the prefix cache keeps of each request.

    pool: (slots, heads, …), each slot contiguous. states: (chunks, heads, …), contiguous, before
    each chunk. tables: a KDAPrefillGraphMetadata (layers/attention/linear/kda_prefill_graph.py).
    """
    size = pool[0].numel()
    _keep_kernel[tables.max_seqs, triton.cdiv(size, BLOCK)](
        pool,
        states,
        tables.track_mode,
        tables.chunk_offsets,
        tables.track_chunk_idx,
        tables.cache_indices,
        tables.track_dst,
        pool.stride(0),
        states.stride(0),
        STATE=size,
        BLOCK=BLOCK,
        NOTHING=NOTHING,
        LAST=LAST,
        num_warps=WARPS,
    )
