"""Which memory a breakable CUDA graph writes again in every replay."""

from __future__ import annotations

from bisect import bisect_right
from typing import Iterable, Optional

import torch

_PRIVATE_POOLS = (0, 0)  # of each segment its own


class OwnMemory:
    """What a graph pool hands out from now on, before the first segment."""

    def __init__(self, pool: tuple[int, int]) -> None:
        self._pool = pool
        self._outside: set[int] = set()
        segments = self._segments()
        self._spans = _spans_of(segments)
        self._taken = _Spans(
            (block["address"], block["size"])
            for segment in segments
            for block in segment["blocks"]
            if block["state"] != "inactive"
        )

    @staticmethod
    def of_pool(pool: tuple[int, int]) -> Optional[OwnMemory]:
        """None where the allocator does not tell whose a block is."""
        if pool == _PRIVATE_POOLS or not torch.cuda.is_available():
            return None
        if torch.cuda.get_allocator_backend() != "native":
            return None
        return OwnMemory(pool)

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the pool handed the storage out since, and had not before."""
        address = tensor.untyped_storage().data_ptr()
        if address not in self._spans and address not in self._outside:
            self._spans = _spans_of(self._segments())  # the pool may have grown
            if address not in self._spans:
                self._outside.add(address)
        return address in self._spans and address not in self._taken

    def _segments(self) -> list[dict]:
        segments = torch.cuda.memory_snapshot(self._pool, include_traces=False)
        return [one for one in segments if tuple(one["segment_pool_id"]) == self._pool]


class _Spans:
    """Spans of memory, as (address, size), that do not overlap."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self._spans = sorted(spans)

    def __contains__(self, address: int) -> bool:
        at = bisect_right(self._spans, (address, float("inf"))) - 1
        return at >= 0 and address < sum(self._spans[at])


def _spans_of(segments: list[dict]) -> _Spans:
    return _Spans((segment["address"], segment["total_size"]) for segment in segments)
