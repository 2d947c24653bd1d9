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


def cut(
    lengths: Sequence[int], warm: Sequence[bool], tokens: int, requests: int, chunk: int
) -> tuple[ssd.Columns, numpy.ndarray]:
    """The columns of a batch for a size's tables, and (requests,) int32, 1 for those that go on
    from a state. Raises ValueError where the batch does not fit."""
    if len(lengths) > requests or sum(lengths) > tokens:
        raise ValueError(
            f"{len(lengths)} requests of {sum(lengths)} rows, for {requests} of {tokens}"
        )
    goes_on = numpy.zeros(requests, numpy.int32)
    goes_on[: len(lengths)] = warm
    # at most so many chunks are real, or of the rows behind the batch
    room = -(-tokens // chunk) + requests
    return ssd.cut(lengths, chunk, tokens, requests, room), goes_on


class Tables:
    """The tables of one size of the graph. plan: an ssd.Plan on the device. owner: as in Columns.
    warm: (requests,), 1 for those that go on from a state. slots: (requests,) int64, their places
    in the state pool. tracks: the plan says which states the prefix cache keeps."""

    def __init__(
        self, tokens: int, requests: int, chunk: int, device: torch.device, tracks: bool = False
    ) -> None:
        self.tokens, self.requests, self.chunk = tokens, requests, chunk
        columns, warm = cut([], [], tokens, requests, chunk)
        host, places = ssd.packed([*columns, warm], torch.device("cpu"))
        self._packed = torch.zeros_like(host, device=device)
        cu, first, start, size, self.owner, self.warm = (self._packed[one] for one in places)
        kept = [torch.zeros(requests, dtype=torch.int32, device=device) for _ in range(2 * tracks)]
        self.plan = ssd.Plan(chunk, requests, len(start), cu, first, start, size, *kept)
        self.slots = torch.zeros(requests, dtype=torch.int64, device=device)

    @property
    def requests_of(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """owner, slots and warm, as launches take them behind the plan."""
        return self.owner, self.slots, self.warm

    def fill(self, lengths: Sequence[int], warm: Sequence[bool], slots: torch.Tensor) -> None:
        """Describe a batch without synchronisation. slots: (requests,) on the device."""
        columns, goes_on = cut(lengths, warm, self.tokens, self.requests, self.chunk)
        host, _ = ssd.packed([*columns, goes_on], self._packed.device)
        self._packed.copy_(host, non_blocking=True)
        self.slots[: len(lengths)].copy_(slots[: len(lengths)])

    def track(self, rows: torch.Tensor, slots: torch.Tensor) -> None:
        """Say which states of the batch are kept: (requests,) on the device each, as in
        ssd.Plan."""
        self.plan.track_rows[: len(rows)].copy_(rows)
        self.plan.track_rows[len(rows) :].zero_()
        self.plan.track_slots[: len(slots)].copy_(slots)


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
