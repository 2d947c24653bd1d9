"""The records that the schedulers of servers left on this host, one file a process in a folder that
its owner alone can read. Those of another release of the queue can have more fields, or fewer."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .provenance import Provenance
from .schedulers import PROCESSES, started_at


@dataclass(frozen=True)
class Record:
    """One scheduler's prefill graph.

    started: the process's start in clock ticks since boot, to tell it from a later one with the
    same pid. tree: "sha256:<hex>" of the listing as the process began; made_of: the same in words.
    ranks: its place in the server, such as {"tp": 1}. sizes: the captured token counts. on_graph,
    eager: prefills since the start, eager ones by reason. written: seconds since the epoch.
    """

    pid: int
    started: int | None
    feature: str = "unknown"
    verdict: str = "unknown"
    reason: str = "unknown"
    model: str = "unknown"
    made_of: str = "unknown"
    tree: str = ""
    ranks: dict[str, int] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    on_graph: int = 0
    eager: dict[str, int] = field(default_factory=dict)
    written: float = 0.0

    def __str__(self) -> str:
        return f"Prefill graph {self.verdict} ({self.feature}): {self.reason}"

    @property
    def rank(self) -> str:
        """Its place in the server, in words."""
        return ", ".join(f"{name} {rank}" for name, rank in self.ranks.items()) or "unknown"


def folder() -> Path:
    """Where this process's record lies. It need not exist."""
    return _folder(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir(), os.getuid())


def folders(uid: int) -> list[Path]:
    """Where records of a user's servers may lie, which can have had other variables."""
    bases = (
        os.environ.get("XDG_RUNTIME_DIR"),
        tempfile.gettempdir(),
        f"/run/user/{uid}",
        "/tmp",  # noqa: S108: the folder in it must be the user's own
    )
    return list(dict.fromkeys(_folder(base, uid) for base in bases if base))


def _folder(base: str, uid: int) -> Path:
    return Path(base) / f"sglang-prefill-graph-{uid}"


def write(record: Record) -> Path | None:
    """Leave `record` for other processes of this user, whole or not at all; None where the host
    does not allow it."""
    place = folder()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_of(place, os.getuid()):
            return None
        path, aside = place / f"{record.pid}.json", place / f"{record.pid}.tmp"
        aside.write_text(json.dumps(dataclasses.asdict(record)) + "\n", encoding="utf-8")
        os.replace(aside, path)
        return path
    except OSError:
        return None


def sweep() -> None:
    """Remove what processes of this user left that are gone."""
    place = folder()
    if _is_of(place, os.getuid()):
        for path in place.glob("*.json"):
            if _alive(path) is None:
                path.unlink(missing_ok=True)


def read_all(uid: int | None = None) -> list[Record]:
    """The records of a user's servers that run now, by pid. uid: of this process's user where it is
    not given."""
    owner = os.getuid() if uid is None else uid
    files = [
        path for place in folders(owner) if _is_of(place, owner) for path in place.glob("*.json")
    ]
    found = {record.pid: record for path in files if (record := _alive(path))}
    return [found[pid] for pid in sorted(found)]


def _is_of(place: Path, uid: int) -> bool:
    """In a shared temporary folder anybody can make a folder of this name first, or a link."""
    try:
        found = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & 0o077


def _alive(path: Path) -> Record | None:
    """The record in `path` if it is one and its process still runs."""
    try:
        record = _read(json.loads(path.read_text(encoding="utf-8")))
        runs = (PROCESSES / str(record.pid)).exists()
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return record if runs and started_at(record.pid) == record.started else None


def _read(values: dict[str, Any]) -> Record:
    """Raises TypeError, KeyError or AttributeError where it is no record."""
    known = {one.name for one in dataclasses.fields(Record)}
    kept = {name: value for name, value in values.items() if name in known}
    needed = {"pid": int(values["pid"]), "started": values["started"]}
    return Record(**kept | needed | {"sizes": tuple(values.get("sizes") or ())})


def lines(made_of: Provenance, records: list[Record]) -> Iterator[str]:
    """The printed report: this tree, then a block for each scheduler."""
    yield f"this tree: {made_of}"
    yield from (f"  {name}" for name in made_of.patches)
    for record in records:
        yield ""
        yield from _block(record)
    if not records:
        yield "no server of this user reports from this host"


def _block(record: Record) -> Iterator[str]:
    yield f"server process {record.pid}: {record.model}"
    yield f"  rank           {record.rank}"
    yield f"  prefill graph  {record.verdict} ({record.feature})"
    yield f"  reason         {record.reason}"
    if record.sizes:
        yield f"  sizes          {' '.join(map(str, record.sizes))}"
    yield f"  on the graph   {record.on_graph} prefills"
    yield f"  eagerly        {sum(record.eager.values())} prefills"
    for reason, count in sorted(record.eager.items(), key=lambda item: -item[1]):
        yield f"    {count:>9}  {reason}"
    yield f"  written        {max(0.0, time.time() - record.written):.0f} s ago"
    yield f"  tree           {record.made_of}{record.tree and f', {record.tree}'}"
