"""The break that stands for a split op's function in the overlay's breakable graph.

These releases' functions (before 0.5.11) expect a batch without padding. A break therefore gets its
tensors cut to the tokens of the batch in the forward context, and zeroes the rows behind them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from ..captured.layers import run_captured
from ..compat import ops
from ..piecewise import op_function, rows
from .graph import break_at


def in_breakable_graph() -> contextlib.AbstractContextManager[None]:
    """For a forward that is captured for, or replayed from, the overlay's breakable graph: split
    ops and mixers beside attention are breaks inside."""
    return op_function.broken_by(broken)


@functools.cache
def broken(function: Callable[..., None], name: str) -> Callable[..., None]:
    """The function of the split op `name`, made a break; its layer's captured launches, while it
    has such."""
    op = rows.OPS.get(name)  # others cut their input themselves, or take it whole
    broken_off = break_at(rows.on_batch(function, op, op.ranks, _tokens) if op else function)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        if not run_captured(name, args, kwargs):
            broken_off(*args, **kwargs)

    return run


def _tokens() -> int:
    return len(ops.forward_context().forward_batch.input_ids)
