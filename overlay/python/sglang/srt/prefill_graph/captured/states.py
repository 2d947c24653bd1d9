"""The tables of each size of the piecewise graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import layers, tables


@dataclass(frozen=True)
class States:
    """What a runner captures of layers with recurrent states, and the tables of each size."""

    captured: layers.Captured
    tables: dict[int, tables.Tables] = field(default_factory=dict)

    def placeholder(self, size: int, device: Any) -> tables.Tables:
        """The tables of a size, with the batch of its capture: one request, whose state is in the
        slot that no request owns."""
        made = self.tables.get(size) or self.captured.tables(size, device)
        self.tables[size] = made
        made.slots.zero_()
        made.fill([size], [False], made.slots)
        if made.plan.track_rows is not None:
            made.track(made.slots[:0], made.slots[:0])
        return made

    def describe(self, forward_batch: Any) -> None:
        """Fill the tables of the smallest size with room for a batch."""
        size = min(size for size in self.tables if size >= len(forward_batch.input_ids))
        self.captured.describe(self.tables[size], forward_batch)
