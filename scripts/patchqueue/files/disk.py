"""A disk that is full, or a place that cannot be written: what the system's error means for a
user."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..outcome import Problem

FULL = (errno.ENOSPC, errno.EDQUOT)
DENIED = (errno.EACCES, errno.EPERM)
AGAIN = "then run the same command again"


@dataclass(frozen=True)
class Place:
    """A folder that the tool writes to.

    instead: what a user can do where it cannot be written, "" for nothing else. spare: what of it
    may be deleted.
    """

    path: Path
    instead: str
    spare: str = ""


def problem(error: OSError, places: Sequence[Place]) -> Problem | None:
    """The problem behind an error of a disk or of access; None for any other error.

    places: where the tool writes. A write that fails in the middle of a file names no path: then
    all of them are named.
    """
    error = _first(error)
    if error.errno in FULL:
        place = _around(error.filename, places)
        spare = f" ({place.spare})" if place and place.spare else ""
        where, what = _named(error, places), "the disk is full, or your quota of it"
        return Problem("disk-full", where, what, f"free some space{spare}, {AGAIN}")
    if error.errno == errno.EROFS or error.errno in DENIED:
        return no_access(error, _around(error.filename, places))
    if error.errno == errno.ENOENT and "temporary directory" in str(error.strerror):
        what = "no folder for temporary files can be written"
        step = "free some space, or name one: TMPDIR=FOLDER"
        return Problem("no-temporary-folder", "TMPDIR", what, step)
    return None


def other(error: OSError, places: Sequence[Place]) -> Problem:
    """Any other error of the system, by the path and the system's own words."""
    error = _first(error)
    what = f"could not be read or written: {error.strerror or error}"
    return Problem("system-error", _named(error, places), what, f"see to that, {AGAIN}")


def _named(error: OSError, places: Sequence[Place]) -> str:
    """The paths that an error names; else the places of which it may be about one."""
    names = [name for name in (error.filename, error.filename2) if name is not None]
    return " and ".join(map(str, names)) or " or ".join(str(place.path) for place in places)


def _first(error: OSError) -> OSError:
    """The first error of those that copying a folder has gathered, each as text; else the error."""
    if not isinstance(error, shutil.Error) or not isinstance(error.args[0], list):
        return error
    _, target, why = error.args[0][0]
    parsed = re.fullmatch(r"\[Errno (\d+)\] [^:]*(?:: '(.*?)'.*)?", str(why), re.DOTALL)
    if not parsed:
        return OSError(None, str(why), str(target))
    number = int(parsed[1])
    return OSError(number, os.strerror(number), parsed[2] or str(target))


def said(text: str) -> str:
    """The step for a user where a program's message names a disk; empty for any other message."""
    if os.strerror(errno.ENOSPC) in text or os.strerror(errno.EDQUOT) in text:
        return f"free some space, {AGAIN}"
    if os.strerror(errno.EROFS) in text:
        return f"let that place be written, {AGAIN}"
    return ""


def no_access(error: OSError, place: Place | None) -> Problem:
    """The problem behind an error of access. place: where the tool reads or writes."""
    where = str(error.filename or (place.path if place else "a file"))
    instead = f", or {place.instead}" if place and place.instead else ""
    if error.errno == errno.EROFS:
        step = f"mount it so that it can be written{instead}"
        return Problem("read-only", where, "is on a file system that is read-only", step)
    user = f"user {os.geteuid()}"
    step = f"give {user} access{instead}"
    return Problem("no-access", where, f"{user} has no access to it", step)


def _around(name: str | bytes | int | None, places: Sequence[Place]) -> Place | None:
    """The innermost of the places that the path is in."""
    if not isinstance(name, (str, os.PathLike)):
        return None
    path = Path(name).absolute()
    around = [place for place in places if path.is_relative_to(place.path.absolute())]
    return max(around, key=lambda place: len(place.path.absolute().parts), default=None)
