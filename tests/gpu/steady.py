"""Hardware threads that are fast now. Standard library only.

A virtual machine's threads are halves of cores, and a neighbour on the other half slows Python down
by a factor of 1.8, for seconds at a time (docs/proof.md). So before a call the bench looks for
threads that are as fast as the fastest it has seen, lets the engine run on those alone, and looks
again behind the call: what slowed down meanwhile does not count.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

LOOP = 60_000  # rounds of the loop that is timed: about 3 ms
SLOWER = 1.25  # times the fastest span: a thread below it is fast; a shared core is at 1.8


def span_ms(cpu: int) -> float:
    """Milliseconds that one fixed loop takes on a hardware thread, by the calling thread, which
    goes there for it."""
    with on({cpu}):
        time.sleep(0)
        began, total = time.perf_counter(), 0
        for number in range(LOOP):
            total += number * number
        return (time.perf_counter() - began) * 1e3


@contextlib.contextmanager
def on(cpus: set[int]) -> Iterator[None]:
    """Run the calling thread on these hardware threads inside."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass
class Threads:
    """The hardware threads at hand. cpus: their numbers; timed: how one is timed; fastest: the
    least span seen, in ms."""

    cpus: list[int] = field(default_factory=lambda: sorted(os.sched_getaffinity(0)))
    timed: Callable[[int], float] = span_ms
    fastest: float = float("inf")

    def __post_init__(self) -> None:
        for cpu in [*self.cpus, *self.cpus]:
            self._span(cpu)

    def fast(self, count: int) -> list[int]:
        """`count` threads, fast ones first of all; those that were asked for last are tried first.
        All of them if there are no more."""
        found: dict[int, float] = {}
        for cpu in self.cpus:
            found[cpu] = self._span(cpu)
            if sum(map(self._is_fast, found.values())) == count:
                break
        chosen = sorted(found, key=found.__getitem__)[:count]
        self.cpus = [*chosen, *(cpu for cpu in self.cpus if cpu not in chosen)]
        return chosen

    def still_fast(self, cpus: Iterable[int]) -> bool:
        """Whether each of these is fast now."""
        return all(self._is_fast(self._span(cpu)) for cpu in cpus)

    def _span(self, cpu: int) -> float:
        span = self.timed(cpu)
        self.fastest = min(self.fastest, span)
        return span

    def _is_fast(self, span: float) -> bool:
        return span <= SLOWER * self.fastest


def pin(processes: Iterable[int], cpus: Iterable[int]) -> None:
    """Let every thread of these processes run on these hardware threads alone; threads that they
    start later inherit it."""
    wanted = set(cpus)
    for process in processes:
        for task in Path(f"/proc/{process}/task").glob("[0-9]*"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), wanted)
