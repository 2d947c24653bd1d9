"""Where an install cannot write, and why: found before the first file is touched."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ..files import disk
from ..outcome import Problem, Refused


def not_done(error: OSError, place: Path) -> Problem:
    """The system's error as a problem: it tells a full disk from a folder that the user may not
    write."""
    owner = place.stat().st_uid
    other_user = error.errno in disk.DENIED and os.geteuid() not in (0, owner)
    found = disk.problem(
        error, [disk.Place(place, f"run it as user {owner}, or as root" if other_user else "")]
    )
    what = f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
    return found or Problem(
        "not-done", str(place), what, "run it again: it finishes what was begun"
    )


def refuse_unwritable(site: Path, changes: Iterable[str]) -> None:
    """Every folder must take a new name, and every file's owner must be kept."""
    folders = {site} | {
        parent for name in changes for parent in [(site / name).parent] if parent.is_dir()
    }
    for folder in sorted(folders):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise Refused(_not_writable(folder))
    for path in (site / name for name in changes):
        if path.exists() and os.geteuid() not in (0, path.stat().st_uid):
            what = f"belongs to user {path.stat().st_uid}, and would not any more"
            step = f"run it as user {path.stat().st_uid}, or as root"
            raise Refused.of("not-writable", str(path), what, step)


def _not_writable(folder: Path) -> Problem:
    owner, user = folder.stat().st_uid, os.geteuid()
    if user in (0, owner):
        what = "is read-only"
        step = "mount it, or set it, so that it can be written"
        return Problem("not-writable", str(folder), what, step)
    what = f"cannot be written by user {user}"
    return Problem("not-writable", str(folder), what, f"run it as user {owner}, or as root")
