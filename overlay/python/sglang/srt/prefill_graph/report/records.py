"""The records that this user's servers left on this host: why the prefill graph of each is on or
off.

The file: <XDG_RUNTIME_DIR, or the temporary folder>/sglang-prefill-graph-<uid>/<pid>.json, the
folder readable by its owner only. Records of processes that are gone are ignored, and removed by
the next server that writes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .provenance import Provenance


@dataclass(frozen=True)
class Record:
    """One server's prefill graph. started: the process's start in clock ticks since boot, to tell
    it from a later one with the same pid; None where the host does not say."""

    feature: str
    verdict: str
    reason: str
    offender: dict[str, Any] | None
    model: str
    version: str
    release: str
    queue: str
    patches: tuple[str, ...]
    pid: int
    started: int | None

    def __str__(self) -> str:
        return f"Prefill graph {self.verdict} ({self.feature}): {self.reason}"


def folder() -> Path:
    """Where records lie. It need not exist."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"sglang-prefill-graph-{os.getuid()}"


def write(record: Record) -> Path | None:
    """Leave `record` for other processes of this user; None where the host does not allow it."""
    place = folder()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(place):
            return None
        for path in place.glob("*.json"):
            if _alive(path) is None:
                path.unlink(missing_ok=True)
        path, aside = place / f"{record.pid}.json", place / f"{record.pid}.tmp"
        aside.write_text(json.dumps(dataclasses.asdict(record)) + "\n", encoding="utf-8")
        os.replace(aside, path)
        return path
    except OSError:
        return None


def read_all() -> list[Record]:
    """The records of this user's servers that run now, by pid."""
    place = folder()
    found = [_alive(path) for path in place.glob("*.json")] if _is_ours(place) else []
    return sorted((record for record in found if record), key=lambda record: record.pid)


def _is_ours(place: Path) -> bool:
    """In a shared temporary folder anybody can make a folder of this name first, or a link."""
    try:
        found = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _alive(path: Path) -> Record | None:
    """The record in `path` if it is one and its process still runs."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        record = Record(**{**values, "patches": tuple(values["patches"])})
        os.kill(record.pid, 0)
    except PermissionError:
        return None  # the pid is another user's now
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None
    return record if started_at(record.pid) == record.started else None


def started_at(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        # field 22 of proc(5), counted from behind the name, which may hold blanks
        return int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def lines(made_of: Provenance, records: list[Record]) -> Iterator[str]:
    """The printed report: this tree, then a block per server."""
    yield f"this tree: {made_of}"
    yield from (f"  {name}" for name in made_of.patches)
    for record in records:
        yield ""
        yield f"server process {record.pid}: {record.model}"
        yield f"  prefill graph  {record.verdict} ({record.feature})"
        yield f"  reason         {record.reason}"
        if record.offender:
            yield f"  first layer    {record.offender['index']} ({record.offender['class']})"
        tree = Provenance(record.version, record.release, record.queue, record.patches)
        yield f"  tree           {tree}"
    if not records:
        yield "no server of this user reports from this host"
