"""What a graph with breaks has to keep alive for its breaks, and what it may let go.

A break runs in every replay on the tensors it was captured with. One that a segment of the same
graph allocated may be held weakly: in every replay it is written again before the break reads it.
Any other is held, or whoever gets its memory next overwrites what the break will read. To hold all
would keep every layer's activations of every captured size.
"""

from __future__ import annotations

import functools
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..compat import features

logger = logging.getLogger(__name__)

# to capture_begin: a new pool for this segment alone; to memory_snapshot: every pool
NO_POOL = (0, 0)
Snapshot = Callable[[tuple[int, int]], list[dict[str, Any]]]


class OwnMemory:
    """What a graph pool hands out from now on. pool: the handle that segments are captured with.
    With None or NO_POOL, or where the allocator gives no snapshot (cudaMallocAsync, another kind of
    device), nothing counts as owned."""

    def __init__(self, pool: tuple[int, int] | None, snapshot: Snapshot | None = None) -> None:
        self._pool = NO_POOL if pool is None else tuple(pool)
        self._snapshot = snapshot or torch.cuda.memory_snapshot
        self._outside: set[int] = set()
        segments = self._segments()
        self._pools = _pools(segments)
        blocks = (
            block
            for segment in segments
            for block in segment["blocks"]
            if block["state"] != "inactive"
        )
        self._taken = _Spans((block["address"], block["size"]) for block in blocks)

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage was allocated from the pool since this object was made. No
        for a block that was taken then, even if it has been freed and taken again since."""
        address = tensor.untyped_storage().data_ptr()
        if address not in self._pools and address not in self._outside:  # the pool may have grown
            self._pools = _pools(self._segments())
            if address not in self._pools:
                self._outside.add(address)
        return address in self._pools and address not in self._taken

    def _segments(self) -> list[dict[str, Any]]:
        if self._pool == NO_POOL:
            return []
        try:
            segments = self._snapshot(self._pool)
        except (AttributeError, RuntimeError) as error:
            _warn(
                f"The allocator does not say what belongs to a graph pool ({error}): all that"
                " breaks read is kept"
            )
            self._pool = NO_POOL
            return []
        return [segment for segment in segments if segment["segment_pool_id"] == self._pool]


class _Spans:
    """Spans of memory, as (address, size), that do not overlap."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self._spans = sorted(spans)

    def __contains__(self, address: int) -> bool:
        at = bisect_right(self._spans, (address, float("inf"))) - 1
        return at >= 0 and address < sum(self._spans[at])


def _pools(segments: list[dict[str, Any]]) -> _Spans:
    return _Spans((segment["address"], segment["total_size"]) for segment in segments)


_warn = functools.lru_cache(logger.warning)  # once, not at every captured size


def hold(value: Any, own: OwnMemory, weak_view: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` as a break should keep it: tensors that are `own` become weak views, all others stay.

    Tuples, lists and dicts are made anew, any other object stays as it is. weak_view: makes a
    tensor of the same shape, strides and address that does not keep the memory.
    """
    if isinstance(value, torch.Tensor):
        return weak_view(value) if value.numel() and own.owns(value) else value
    kind, again = type(value), functools.partial(hold, own=own, weak_view=weak_view)
    if kind in (tuple, list):
        return kind(map(again, value))
    if kind is dict:
        return dict(zip(value, map(again, value.values())))
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return kind._make(map(again, value))
    return value


def holder(capture: Any) -> Callable[[Any], Any]:
    """hold() for the breaks of a release's own BreakableCUDAGraphCapture. All is held for a capture
    that owns nothing, as the stand-in of upstream's tests."""
    own = getattr(capture, "_own_memory", None)
    if own is None:
        return lambda value: value
    return functools.partial(hold, own=own, weak_view=features.weak_views(capture))
