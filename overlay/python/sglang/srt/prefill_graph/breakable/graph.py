"""A CUDA graph with breaks, for releases without one (before 0.5.11): segments that are captured,
and between them functions that run eagerly at every replay.

    graph = Graph()
    with Capture(graph, pool, stream):
        output = forward()      # what break_at made ends its segment, and begins the next
    graph.replay()              # writes output
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from ..compat.capture import weak_view
from ..compat.pausing import pausable
from .lifetimes import OwnMemory, hold


class Graph:
    """Segments, and the breaks between them. Everything that a break reads or writes lives as long
    as the graph."""

    def __init__(self) -> None:
        self.segments: list[torch.cuda.CUDAGraph] = []
        self.breaks: list[Callable[[], None]] = []

    def replay(self) -> None:
        """Run every segment and every break, in the order of the capture, on the current stream."""
        for segment, run in itertools.zip_longest(self.segments, self.breaks):
            segment.replay()
            if run is not None:
                run()


_current: ContextVar[Capture | None] = ContextVar("capture", default=None)


class Capture:
    """Captures what runs inside `with` into `graph`. pool: a graph memory pool's handle; stream: a
    side stream. Streams that are forked from it have to be joined before a break."""

    def __init__(self, graph: Graph, pool: Any, stream: torch.cuda.Stream | None) -> None:
        self.graph, self.pool, self.stream = graph, pool, stream
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Capture:
        self.own = OwnMemory(self.pool)
        if self.stream is not None:
            self._stack.enter_context(torch.cuda.stream(self.stream))
        token = _current.set(self)
        self._stack.callback(_current.reset, token)
        self.begin()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        with self._stack:
            try:
                self.end()
            except RuntimeError:
                if kind is None:  # otherwise the first error is the one to hear of
                    raise

    def begin(self) -> None:
        segment = pausable(torch.cuda.CUDAGraph())
        segment.capture_begin(pool=self.pool)
        self.graph.segments.append(segment)

    def end(self) -> None:
        self.graph.segments[-1].capture_end()


def break_at(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, made a break: called during a capture it runs eagerly, and again at that place in
    every replay, on the tensors of the capture as they are then.

    It returns None, or a tensor whose storage later segments read: a replay copies its result
    there. Outside of a capture it just runs.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        capture = _current.get()
        if capture is None:
            return function(*args, **kwargs)
        capture.end()
        result = function(*args, **kwargs)
        held_args, held_kwargs = hold((args, kwargs), capture.own, weak_view)

        def again() -> None:
            new = function(*held_args, **held_kwargs)
            if result is not None:
                result.copy_(new)

        capture.graph.breaks.append(again)
        capture.begin()
        return result

    return run
