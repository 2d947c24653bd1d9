"""The break that stands for a split op's function in the overlay's breakable graph.

These releases' functions (before 0.5.11) expect a batch without padding. A break therefore gets its
tensors cut to the tokens of the batch in the forward context, and zeroes the rows behind them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from ..captured.layers import run_captured
from ..compat import ops
from ..piecewise import op_function, rows
from . import mixers
from .graph import break_at


@contextlib.contextmanager
def in_breakable_graph() -> Iterator[None]:
    """For a forward that is captured for, or replayed from, the overlay's breakable graph: split
    ops and mixers beside attention are breaks inside."""
    with op_function.broken_by(broken), mixers.broken_by(lambda one: broken(one, one.__name__)):
        yield


@functools.cache
def broken(function: Callable[..., None], name: str) -> Callable[..., None]:
    """The function of the split op `name`, made a break; its layer's captured launches, while it
    has such."""
    broken_off = break_at(_cut(function, name))

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        if not run_captured(name, args, kwargs):
            broken_off(*args, **kwargs)

    return run


def _cut(function: Callable[..., None], name: str) -> Callable[..., None]:
    """Ops that rows.OPS does not list cut their input themselves, or take it whole."""
    op = rows.OPS.get(name)
    if op is None:
        return function
    cut, output_of = (
        rows.each(function, op.ranks, op.ranks, rows.head),
        rows.argument(function, "output"),
    )

    @functools.wraps(function)
    def run(*given: Any, **kwargs: Any) -> None:
        count, args = len(ops.forward_context().forward_batch.input_ids), list(given)
        output = output_of(args, kwargs)
        cut(args, kwargs, count)
        function(*args, **kwargs)
        rows.zero_behind(output, op.ranks["output"], count)

    return run
