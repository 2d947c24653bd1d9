"""The processes on this host that run a model for an sglang server, patched or not.

Each release names such a process "sglang::scheduler", with its ranks behind
(configure_scheduler_process, or run_scheduler_process, in srt/managers/scheduler.py). Linux tells
the names in /proc; inside of a container, those of its own processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TITLE = "sglang::scheduler"
PROCESSES = Path("/proc")


@dataclass(frozen=True)
class Scheduler:
    """A process that runs a model. uid: its user."""

    pid: int
    title: str
    uid: int

    def __str__(self) -> str:
        return f"Process {self.pid} ({self.title})"


def running(below: int | None = None) -> list[Scheduler]:
    """Those that run now, by pid. below: only this process, and those that descend from it."""
    pids = sorted(int(path.name) for path in PROCESSES.iterdir() if path.name.isdigit())
    found = [one for pid in pids if (one := _scheduler(pid))]
    return [one for one in found if below is None or below in _line(one.pid)]


def _scheduler(pid: int) -> Scheduler | None:
    place = PROCESSES / str(pid)
    try:
        title = (place / "cmdline").read_bytes().split(b"\0", 1)[0].decode(errors="replace")
        uid = place.stat().st_uid
    except OSError:
        return None  # it has ended, or the host hides it
    return Scheduler(pid, title.strip(), uid) if title.startswith(TITLE) else None


def _line(pid: int) -> list[int]:
    """A process and those that it descends from."""
    found = []
    while pid > 0 and pid not in found:
        found.append(pid)
        try:
            # field 4 of proc(5), counted from behind the name, which may hold blanks
            stat = (PROCESSES / str(pid) / "stat").read_text(encoding="utf-8")
            pid = int(stat.rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found
