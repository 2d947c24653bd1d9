"""What can become of a patch, a tree or an input: values with reasons; and how a command, and a
number of things, is written for a user. The tool runs from a clone, by scripts/nox, or from a wheel
that brings the queue's files."""

from __future__ import annotations

import enum
import errno
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)
DENIED = (errno.EACCES, errno.EPERM)
AGAIN = "then run the same command again"
ELSEWHERE = "or name another folder (PATCHQUEUE_CACHE for the cache, TMPDIR for temporary files)"


class Outcome(str, enum.Enum):
    """The outcome of one patch, or of one whole tree."""

    APPLIED = "applied"
    ALREADY_APPLIED = "already applied"
    MERGED_UPSTREAM = "merged upstream"
    NOT_SELECTED = "not selected"
    NEEDS_REFRESH = "needs refresh"
    CONFLICT = "conflict"
    TREE_MISMATCH = "tree mismatch"
    EMPTY = "empty"

    def __str__(self) -> str:
        return self.value

    @property
    def good(self) -> bool:
        """Whether a run that ends so may be called a success."""
        return self in (self.APPLIED, self.ALREADY_APPLIED, self.NOT_SELECTED, self.EMPTY)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. name: of this kind of problem, as "unequal-context"; where: patch,
    file, hunk and line as far as they are known; what: one sentence; hint: the next step."""

    name: str
    where: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.what} [{self.name}]"
        return f"{text}\n    next: {self.hint}" if self.hint else text


class Refused(Exception):
    """The work was not done, and nothing was written, for the problems named."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    @classmethod
    def of(cls, name: str, where: str, what: str, hint: str = "") -> Refused:
        """The refusal for one problem, by its fields."""
        return cls(Problem(name, where, what, hint))


def system_problem(error: OSError, places: Sequence[Path]) -> Problem:
    """The problem behind an error of the system. places: where the tool writes, all of them named
    where the error names no path, as one in the middle of a file does."""
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):
        _, target, why = error.args[0][0]  # of those that copying a folder has gathered
        known = (number for number in (*FULL, errno.EROFS) if os.strerror(number) in str(why))
        error = OSError(next(known, None), str(why), str(target))
    names = [name for name in (error.filename, error.filename2) if name is not None]
    where = " and ".join(map(str, names)) or " or ".join(map(str, places))
    if error.errno in FULL:
        what = "the disk is full, or your quota of it"
        return Problem("disk-full", where, what, f"free some space, {AGAIN}")
    if error.errno == errno.EROFS:
        what = "is on a file system that is read-only"
        return Problem("read-only", where, what, f"let it be written, {ELSEWHERE}")
    if error.errno in DENIED:
        user = f"user {os.geteuid()}"
        step = f"give {user} access, run it as root, {ELSEWHERE}"
        return Problem("no-access", where, f"{user} has no access to it", step)
    what = f"could not be read or written: {error.strerror or error}"
    return Problem("system-error", where, what, f"see to that, {AGAIN}")


def disk_step(text: str) -> str:
    """The step for a user where a program's message names a disk; empty for any other message."""
    if any(os.strerror(number) in text for number in FULL):
        return f"free some space, {AGAIN}"
    return f"let that place be written, {AGAIN}" if os.strerror(errno.EROFS) in text else ""


PACKAGED = Path(__file__).with_name("packaged")  # what pyproject.toml puts there: in a wheel alone


def in_wheel() -> bool:
    """Whether this is the tool of a wheel, with the queue in PACKAGED."""
    return PACKAGED.is_dir()


def program() -> str:
    """What a user types before a command's name."""
    return "patchqueue" if in_wheel() else "scripts/nox"


def _typed() -> str:
    """The same, and for uvx, which sets UV and leaves no program behind, the whole call."""
    if not in_wheel() or "UV" not in os.environ:
        return program()
    text = metadata.distribution("sglang-patch-queue").read_text("direct_url.json")  # PEP 610
    origin = json.loads(text or '{"url": "sglang-patch-queue"}')
    git = origin.get("vcs_info", {})
    at = f"@{git['requested_revision']}" if "requested_revision" in git else ""
    url = re.sub("//[^/]*@", "//", f"{'git+' if git else ''}{origin['url']}{at}")
    return f"uvx --from {shlex.quote(url)} patchqueue"


def to_type(name: str, *words: object) -> str:
    """The command as a user types it, in backticks. Paths are quoted."""
    shown = (shlex.quote(str(word)) if isinstance(word, Path) else str(word) for word in words)
    return f"`{' '.join([_typed(), name, *shown])}`"


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things: `1 file`, `2 files`. many: a plural that does not end in a mere s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def some(names: Sequence[str]) -> str:
    """The first five, and how many more there are."""
    return " ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
