"""What a captured launch knows of its batch: tables on the device, at fixed addresses, filled
before each replay. Grids depend on the size of the graph and on its places for requests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from ..kernels import ssd

# A size of fewer rows has a place for each row. More places cost memory: the scan keeps the state
# before each chunk, and each request has a last one.
MOST_REQUESTS = 64


@dataclass(frozen=True)
class Columns:
    """How a batch is cut into chunks, on the host, each int32: the fields of ssd.Plan; owner:
    (chunks,), the request of each chunk; warm: (requests,), 1 for those that go on from a state."""

    cu: numpy.ndarray
    first: numpy.ndarray
    start: numpy.ndarray
    size: numpy.ndarray
    owner: numpy.ndarray
    warm: numpy.ndarray


def cut(
    lengths: Sequence[int], warm: Sequence[bool], tokens: int, requests: int, chunk: int
) -> Columns:
    """The columns of a batch, padded to `tokens` rows and `requests` places. Raises ValueError
    where the batch does not fit.

    A place without a request has no rows and no chunks. Chunks behind the last real one are those
    of the rows behind the batch, with minus their rows as size, and then chunks of no rows.
    """
    counts = numpy.zeros(requests, numpy.int64)
    if len(lengths) > requests or sum(lengths) > tokens:
        raise ValueError(
            f"{len(lengths)} requests of {sum(lengths)} rows, for {requests} of {tokens}"
        )
    counts[: len(lengths)] = lengths
    chunks = -(-counts // chunk)
    cu = numpy.concatenate(([0], counts.cumsum()))
    first = numpy.concatenate(([0], chunks.cumsum()))
    room, real = chunks_of(tokens, requests, chunk), first[-1]
    start, size, owner = (numpy.zeros(room, numpy.int64) for _ in range(3))
    owner[:real] = numpy.repeat(numpy.arange(requests), chunks)
    within = (numpy.arange(real) - first[owner[:real]]) * chunk
    start[:real] = cu[owner[:real]] + within
    size[:real] = numpy.minimum(chunk, counts[owner[:real]] - within)
    behind = numpy.arange(cu[-1], tokens, chunk)
    start[real : real + len(behind)] = behind
    size[real : real + len(behind)] = -numpy.minimum(chunk, tokens - behind)
    goes_on = numpy.zeros(requests, numpy.int64)
    goes_on[: len(lengths)] = warm
    return Columns(
        *(column.astype(numpy.int32) for column in (cu, first, start, size, owner, goes_on))
    )


def chunks_of(tokens: int, requests: int, chunk: int) -> int:
    """Chunks at most of `tokens` rows of `requests` requests, and of the rows behind them."""
    return -(-tokens // chunk) + requests


class Tables:
    """The tables of one size of the graph, for `requests` requests in all. plan: an ssd.Plan on the
    device. owner, warm: as in Columns. slots: (requests,) int64, each request's place in the state
    pool. tracks: the plan also says which states the prefix cache keeps."""

    def __init__(
        self, tokens: int, requests: int, chunk: int, device: torch.device, tracks: bool = False
    ) -> None:
        self.tokens, self.requests, self.chunk = tokens, requests, chunk
        columns = _columns(cut([], [], tokens, requests, chunk))
        edges = numpy.cumsum([0, *(_aligned(len(column)) for column in columns)])
        self._edges = [int(edge) for edge in edges]
        self._packed = torch.zeros(self._edges[-1], dtype=torch.int32, device=device)
        views = [self._packed[a : a + len(column)] for a, column in zip(self._edges, columns)]
        cu, first, start, size, self.owner, self.warm = views
        kept = [torch.zeros(requests, dtype=torch.int32, device=device) for _ in range(2 * tracks)]
        self.plan = ssd.Plan(chunk, requests, len(start), cu, first, start, size, *kept)
        self.slots = torch.zeros(requests, dtype=torch.int64, device=device)

    def fill(self, lengths: Sequence[int], warm: Sequence[bool], slots: torch.Tensor) -> None:
        """Describe a batch: two copies on the current stream, and no synchronisation. slots:
        (requests,) on the device. The pinned memory is new each time: an earlier copy may be under
        way."""
        columns = _columns(cut(lengths, warm, self.tokens, self.requests, self.chunk))
        pinned = self._packed.device.type == "cuda"
        host = torch.empty(self._edges[-1], dtype=torch.int32, pin_memory=pinned)
        for place, column in zip(self._edges, columns):
            host.numpy()[place : place + len(column)] = column
        self._packed.copy_(host, non_blocking=True)
        self.slots[: len(lengths)].copy_(slots[: len(lengths)])

    def track(self, rows: torch.Tensor, slots: torch.Tensor) -> None:
        """Say which states of the batch are kept: (requests,) on the device each, as in
        ssd.Plan."""
        self.plan.track_rows[: len(rows)].copy_(rows)
        self.plan.track_rows[len(rows) :].zero_()
        self.plan.track_slots[: len(slots)].copy_(slots)


def _columns(batch: Columns) -> tuple[numpy.ndarray, ...]:
    return batch.cu, batch.first, batch.start, batch.size, batch.owner, batch.warm


def _aligned(length: int) -> int:
    return -(-length // ssd.ALIGN) * ssd.ALIGN


@dataclass(frozen=True)
class Current:
    """What a forward is captured with. states: a layer's part of the state pool, by layer_id."""

    tables: Tables
    states: Callable[[int], Any]


_current: Current | None = None


@contextlib.contextmanager
def capturing_into(tables: Tables | None, states: Callable[[int], Any]) -> Iterator[None]:
    """Let layers inside read `tables`, in place of a break. None: every layer breaks."""
    global _current
    before, _current = _current, tables and Current(tables, states)
    try:
        yield
    finally:
        _current = before


def current() -> Current | None:
    return _current
