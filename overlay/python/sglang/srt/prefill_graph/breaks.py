"""What stands for a split op's function: its rows behind the batch zeroed, and on releases whose own graph has no breaks
(before 0.5.11) a break of the overlay's breakable graph.

Where the piecewise graph is split, the breakable one breaks: `register_split_op` hands every op's function to `at_op`.
These releases' functions expect a batch without padding. A break therefore gets its tensors cut to the tokens of the
batch in the forward context, and zeroes the rows behind them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from . import breakable_graph, compat, rows

_active = False


def active() -> bool:
    """Whether the forward under way is captured for, or replayed from, the overlay's breakable graph."""
    return _active


@contextlib.contextmanager
def in_breakable_graph() -> Iterator[None]:
    """Let `active` be true inside."""
    global _active
    before, _active = _active, True
    try:
        yield
    finally:
        _active = before


def at_op(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """What the release registers for a split op in place of its function; the hook in `register_split_op` calls this."""
    mended = rows.zeroed(function, name)
    return breaking(function, name, mended) if compat.lacks_breaks() else mended


def breaking(function: Callable[..., None], name: str, otherwise: Callable[..., None] | None = None) -> Callable[..., None]:
    """The function of a split op, made a break while `active`, and `otherwise` (if None, itself) at any other time."""
    broken, otherwise = breakable_graph.break_at(_cut(function, name)), otherwise or function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        return (broken if _active else otherwise)(*args, **kwargs)

    return rows.with_signature(run, function)


def _cut(function: Callable[..., None], name: str) -> Callable[..., None]:
    """Ops that rows.OPS does not list cut their input themselves, or take it whole."""
    op = rows.OPS.get(name)
    if op is None:
        return function
    cut, output_of = rows.each(function, op.ranks, op.ranks, rows.head), rows.argument(function, "output")

    @functools.wraps(function)
    def run(*given: Any, **kwargs: Any) -> None:
        count, args = len(compat.forward_context().forward_batch.input_ids), list(given)
        output = output_of(args, kwargs)
        cut(args, kwargs, count)
        function(*args, **kwargs)
        rows.zero_behind(output, op.ranks["output"], count)

    return run
