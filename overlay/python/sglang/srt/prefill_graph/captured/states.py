"""The tables of each size of a graph, and which size a batch replays."""

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
        slot that no request owns, and none that the prefix cache keeps."""
        made = self.tables.get(size) or self.captured.tables(size, device)
        self.tables[size] = made
        made.slots.zero_()
        made.fill([size], [False], made.slots)
        if made.plan.track_rows is not None:
            made.track(made.slots[:0], made.slots[:0])
        return made

    def size_for(self, forward_batch: Any) -> int | None:
        """The smallest size that has room for a batch's tokens, and for the states of its
        requests."""
        tokens, requests = len(forward_batch.input_ids), forward_batch.batch_size
        fitting = (
            made
            for made in self.tables.values()
            if tokens <= made.tokens and requests <= made.requests
        )
        return min((made.tokens for made in fitting), default=None)

    def why_not(self, forward_batch: Any) -> str | None:
        """Why a batch of no more tokens than the largest size has to run eagerly, or None."""
        size, tokens = self.size_for(forward_batch), len(forward_batch.input_ids)
        if size is None:
            places = max(made.requests for made in self.tables.values())
            return f"more requests than the tables of states have places, {places}"
        enough = min(one for one in self.tables if one >= tokens)
        if tables.too_large(tokens, enough, size):
            return tables.FEW_TOKENS
        return layers.why_not(forward_batch, self.captured)

    def describe(self, forward_batch: Any, size: int) -> None:
        """Fill the tables of `size` for a batch."""
        made = self.tables[size]
        made.fill(*self.captured.batch(forward_batch))
        self.captured.track(made, forward_batch)
