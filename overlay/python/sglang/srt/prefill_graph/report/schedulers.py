"""The processes on this host that run a model for an sglang server, patched or not, by the title
that each release gives them (srt/managers/scheduler.py). In a container, those of its own."""

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


def started_at(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; None where the host does not say."""
    try:
        return int(_stat(pid)[19])  # field 22
    except (OSError, ValueError, IndexError):
        return None


def _line(pid: int) -> list[int]:
    """A process and those that it descends from."""
    found = []
    while pid > 0 and pid not in found:
        found.append(pid)
        try:
            pid = int(_stat(pid)[1])  # field 4
        except (OSError, ValueError, IndexError):
            break
    return found


def _stat(pid: int) -> list[str]:
    """The fields of proc(5) from the third on, behind the name, which may hold blanks."""
    return (PROCESSES / str(pid) / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
