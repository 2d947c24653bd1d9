"""What stands for a split op's function: its rows behind the batch zeroed, in the overlay's
breakable graph a break, and where its layer is captured the launches of that."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..compat import features, ops
from . import rows

Op = Callable[..., Any]
CAPTURED = f"{__package__.rpartition('.')[0]}.captured.layers"
_maker: Callable[[Op, str], Op] | None = None


@contextlib.contextmanager
def broken_by(maker: Callable[[Op, str], Op]) -> Iterator[None]:
    """Let maker(function, name) stand inside for each function that has to be a break, on releases
    without breaks of their own (before 0.5.11)."""
    global _maker
    before, _maker = _maker, maker
    try:
        yield
    finally:
        _maker = before


def broken(function: Op, name: str) -> Op | None:
    """`function` as a break; None outside of `broken_by`."""
    return _maker and _maker(function, name)


def at_op(function: Op, name: str) -> Op:
    """What the release registers for a split op in place of its function; the hook in
    `register_split_op` calls this."""
    mended = or_captured(rows.zeroed(function, name), name)
    return breaking(function, name, mended) if features.lacks_breaks() else mended


def or_captured(function: Op, name: str) -> Op:
    """The function of a split op; its layer's captured launches, while a graph is captured with
    such (see captured/layers.py)."""
    if name not in ops.RECURRENT:
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        # whatever captures layers has loaded that module; a tree without it captures none
        captured = sys.modules.get(CAPTURED)
        # a custom op must not give another memory to its argument
        if not (captured and captured.run_captured(name, args, kwargs, torch.Tensor.copy_)):
            function(*args, **kwargs)

    return rows.with_signature(run, function)


def breaking(function: Op, name: str, otherwise: Op) -> Op:
    """The function of a split op as a break inside of `broken_by`, and `otherwise` at any other
    time. Which it is is asked at each call."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return (broken(function, name) or otherwise)(*args, **kwargs)

    return rows.with_signature(run, function)
