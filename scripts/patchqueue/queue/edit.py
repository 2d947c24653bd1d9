"""Changes to the queue, planned in memory: guards on the series' lines, and variants.

Whoever writes the queue (refresh, rebase) plans such changes, reads the queue as it would then be,
proves that, and writes all or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from ..files import atomic
from ..outcome import Problem, Refused
from . import guards, patchfile, series
from .series import Entry, Queue

OVERLAY, PATCHES = "overlay/", "patches/"


@dataclass(frozen=True)
class Change:
    """One file of the project as it will be. why: what for."""

    path: str
    content: bytes
    why: str


@dataclass
class Lines:
    """The series' lines, edited with their columns kept."""

    lines: list[str]

    @classmethod
    def of(cls, text: str) -> Lines:
        return cls(text.removesuffix("\n").split("\n"))

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def _number(self, name: str) -> int:
        return next(number for number, line in enumerate(self.lines) if _name(line) == name)

    def guard(self, name: str, guard: str) -> None:
        """Give an entry another guard."""
        number = self._number(name)
        self.lines[number] = f"{self.lines[number].partition(' #')[0]} # {guard}"

    def insert(self, after: str, name: str, guard: str) -> None:
        """Put an entry behind another one; before all entries where `after` is empty."""
        if after:
            place = self._number(after) + 1
            column = len(self.lines[place - 1].partition(" #")[0])
        else:
            entries = [number for number, line in enumerate(self.lines) if _name(line)]
            place = entries[0] if entries else len(self.lines)
            column = len(name) + 1
        self.lines.insert(place, f"{name:<{column}} # {guard}")


def _name(line: str) -> str:
    return "" if line.startswith("#") else line.split(" #", maxsplit=1)[0].strip()


def variant(
    queue: Queue,
    entry: Entry,
    version: Version,
    pinned: Sequence[Version],
    lines: Lines,
    diff: str,
    why: str,
) -> Change:
    """A patch's other text for one release, and for those behind it that its guard takes.

    The guards go into `lines`. Where no other pinned release is left to the entry, its own text is
    replaced. Raises Refused where no name is free.
    """
    if entry.is_for(version):
        kept, guard = guards.split(entry.text, version, pinned)
        if not kept:
            head = patchfile.split(queue.patches[entry.name].content.decode("utf-8"))[0]
            return Change(f"patches/{entry.name}", joined(head, diff), why)
        lines.guard(entry.name, kept)
    else:
        guard = guards.guard_for(version, pinned)
    stem = entry.base.removesuffix(".patch")
    names = (f"{stem}@{guards.release_of(version)}.patch", f"{stem}@{version}.patch")
    name = next((name for name in names if name not in queue.patches), None)
    if name is None:
        where, hint = (
            f"patches/{names[1]}",
            f"give it a guard that takes {version}, or another name",
        )
        raise Refused.of("bad-variant", where, "is there already, for another release", hint)
    lines.insert(entry.name, name, guard)
    return Change(f"patches/{name}", joined(f"Variant-Of: {entry.base}", diff), why)


def write(root: Path, changes: Iterable[Change]) -> None:
    """Write the files of these changes, all or none; of one file the last."""
    files = {change.path: change.content for change in changes}
    if files:
        atomic.write_all(root, files, root / atomic.JOURNAL)


def joined(head: str, diff: str) -> bytes:
    """A patch file's content: its header, an empty line, its diff."""
    return f"{head.strip()}\n\n{diff}".encode()


def with_changes(queue: Queue, changes: Iterable[Change]) -> Queue:
    """The queue as it would be read back. Raises Refused where it could not be."""
    changed_queue, problems = tried(queue, changes)
    if problems:
        raise Refused(problems)
    return changed_queue


def tried(queue: Queue, changes: Iterable[Change]) -> tuple[Queue, list[Problem]]:
    """The same, as far as it is readable, with what is wrong with what changed."""
    patches, overlay = dict(queue.patches), dict(queue.overlay)
    entries, problems = queue.entries, []
    for change in changes:
        own_problems: list[Problem] = []
        if change.path == str(series.FILE):
            parsed, own_problems = series.parse(change.content.decode("utf-8"))
            entries = tuple(parsed)
        elif change.path.startswith(OVERLAY):
            overlay[change.path.removeprefix(OVERLAY)] = change.content
        elif change.path.startswith(PATCHES):
            name = change.path.removeprefix(PATCHES)
            patch, own_problems = patchfile.read(name, change.content)
            patches |= {name: patch} if patch else {}
        problems += own_problems
    return replace(queue, entries=entries, patches=patches, overlay=overlay), problems
