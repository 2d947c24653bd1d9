"""Two engines that are asked by turns: each waits until the other has answered. Standard library
only."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

LIMIT_S = 150  # longest wait for the other engine; it may still have to start
POLL_S = 0.01
SUFFIX = ".turn"  # of the file in which an engine counts its answers
Answer = TypeVar("Answer")


@dataclass
class Turns:
    """One engine's side.

    mine, other: the files that count answers, and name who does; first: whether this engine begins.
    After a wait that was in vain it waits no more, nor for an engine whose process is gone; missed
    counts the answers that were not given by turns.
    """

    mine: Path | None
    other: Path | None
    first: bool
    limit_s: float = LIMIT_S
    count: int = 0
    missed: int = 0

    @classmethod
    def of(cls, plan: dict) -> Turns:
        """By an engine's plan: out, peer (the other engine's out) and first."""
        if not plan.get("peer"):
            return NONE
        mine, other = (Path(plan[name] + SUFFIX) for name in ("out", "peer"))
        mine.write_text(_line(0))
        return cls(mine, other, plan["first"])

    @staticmethod
    def announce(plan: dict) -> None:
        """Name this process to the other engine, before it can answer."""
        if plan.get("peer"):
            Path(plan["out"] + SUFFIX).write_text(_line(-1))

    def take(self, ask: Callable[[], Answer]) -> Answer:
        """The answer, when it is this engine's turn."""
        if self.mine is None:
            return ask()
        self._wait()
        answer = ask()
        self.count += 1
        part = self.mine.with_suffix(".part")
        part.write_text(_line(self.count))
        part.replace(self.mine)
        return answer

    def _wait(self) -> None:
        needed, until = self.count + (not self.first), time.time() + self.limit_s
        while missing := (seen := self._seen())[0] < needed:
            if time.time() >= until or _gone(seen[1]):
                break
            time.sleep(POLL_S)
        if missing:
            self.missed, self.limit_s = self.missed + 1, 0.0

    def _seen(self) -> tuple[int, int]:
        """How many answers the other engine has given, and its process; -1 and 0 before it can be
        asked."""
        with contextlib.suppress(OSError, ValueError):
            count, process = map(int, self.other.read_text().split())
            return count, process
        return -1, 0

    def counts(self) -> dict:
        return {"answers": self.count, "missed": self.missed}


def _line(count: int) -> str:
    return f"{count} {os.getpid()}"


def _gone(process: int) -> bool:
    """Whether a process that said its number has ended; 0: none has yet."""
    return process > 0 and not Path(f"/proc/{process}").exists()


NONE = Turns(None, None, True)
