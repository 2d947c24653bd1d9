"""Changes to the queue, planned in memory: guards on the series' lines, and variants. Refresh and
rebase read the queue as it would then be, prove that, and write all or none.

A guard is a PEP 440 range that names whole releases, `>=0.5.20,<0.5.21`. Only where two pins share
a release (0.5.12 and 0.5.12.post1) does a bound name one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..files import atomic
from ..outcome import Problem, Refused
from . import patchfile, series
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
    """The series' text, edited with its columns kept."""

    text: str

    def __post_init__(self) -> None:
        self.text = self.text.removesuffix("\n") + "\n"

    def guard(self, name: str, guard: str) -> None:
        """Give an entry another guard."""
        line = rf"(?m)^({re.escape(name)} *?)( #.*)?$"
        self.text = re.sub(line, rf"\g<1> # {guard}", self.text, count=1)

    def insert(self, after: str, name: str, guard: str) -> None:
        """Put an entry behind another one; before all entries where `after` is empty."""
        beside = rf"{re.escape(after)}( .*)?" if after else r"[^#\s].*"
        line = re.search(rf"(?m)^{beside}\n", self.text)
        column = len(line[0].partition(" #")[0]) if line and after else len(name) + 1
        place = len(self.text) if line is None else line.end() if after else line.start()
        entry = f"{name:<{column}} # {guard}\n"
        self.text = f"{self.text[:place]}{entry}{self.text[place:]}"


def variant(
    queue: Queue,
    entry: Entry,
    version: Version,
    pinned: Sequence[Version],
    lines: Lines,
    diff: str,
    why: str,
) -> Change:
    """A patch's other text for one release, and for those behind it that its guard takes. Guards go
    into `lines`. An entry without another pinned release gets the text itself."""
    if entry.is_for(version):
        kept, guard = split(entry.text, version, pinned)
        if not kept:
            content = joined(queue.patches[entry.name].head, diff)
            return Change(f"patches/{entry.name}", content, why)
        lines.guard(entry.name, kept)
    else:
        guard = guard_for(version, pinned)
    stem = entry.base.removesuffix(".patch")
    names = (f"{stem}@{version.base_version}.patch", f"{stem}@{version}.patch")
    name = next((name for name in names if name not in queue.patches), None)
    if name is None:
        what, step = (
            "is there already, for another release",
            f"give it a guard that takes {version}",
        )
        raise Refused.of("bad-variant", f"patches/{names[1]}", what, f"{step}, or another name")
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


def tried(queue: Queue, changes: Iterable[Change]) -> tuple[Queue, list[Problem]]:
    """The queue as it would be read back, as far as it is readable, and what is wrong with it."""
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


def lower_bound(version: Version, pinned: Iterable[Version]) -> str:
    """Where a guard for it begins: at its release; at itself behind an older part of that."""
    older = any(other < version and other.base_version == version.base_version for other in pinned)
    return str(version) if older or version.is_prerelease else version.base_version


def guard_for(version: Version, pinned: Iterable[Version]) -> str:
    """The guard of a variant for this version alone.

    >>> guard_for(Version("0.5.24"), [Version("0.5.23")])
    '>=0.5.24,<0.5.25'
    >>> guard_for(Version("0.5.12"), [Version("0.5.12.post1")])
    '>=0.5.12,<0.5.12.post1'
    """
    pinned = tuple(pinned)
    newer = [
        other for other in pinned if other > version and other.base_version == version.base_version
    ]
    end = str(min(newer)) if newer else f"{version.major}.{version.minor}.{version.micro + 1}"
    return f">={lower_bound(version, pinned)},<{end}"


def extended(guard: str, version: Version, pinned: Iterable[Version]) -> str | None:
    """The guard with its end moved behind `version`, or a hole in it closed; None where it is no
    plain range.

    >>> extended(">=0.5.20,<0.5.21", Version("0.5.22"), [Version("0.5.20")])
    '>=0.5.20,<0.5.23'
    >>> extended(">=0.5.16,<0.5.24,!=0.5.17.*", Version("0.5.17"), [Version("0.5.16")])
    '>=0.5.16,<0.5.24'
    """
    pinned = tuple(pinned)
    holes = {f"!={version}", f"!={version.base_version}.*"}
    parts = re.split(r"\s*,\s*", guard.strip())
    rest = ",".join(part for part in parts if part not in holes)
    if holes & {*parts} and SpecifierSet(rest).contains(version, prereleases=True):
        return rest
    plain = re.fullmatch(r">=\s*([^,*]+),\s*<\s*([^,=*]+)|==\s*([^,*]+?)(?:\.\*)?", rest)
    if not plain:
        return None
    begin = (plain.group(1) or plain.group(3)).strip()
    return f">={begin},<{guard_for(version, pinned).partition('<')[2]}"


def split(guard: str, version: Version, pinned: Iterable[Version]) -> tuple[str, str]:
    """A guard that takes `version`, in two: what the older variant keeps, and what the newer one
    gets from this version on.

    The first is "" where no other pin is in the guard. Where pins follow that stay with the older
    variant, a hole is cut.

    >>> split(">=0.5.16,<0.5.18", Version("0.5.17"), [Version("0.5.16")])
    ('>=0.5.16,<0.5.17', '>=0.5.17,<0.5.18')
    >>> split(">=0.5.20", Version("0.5.24"), [Version("0.5.20"), Version("0.5.23")])
    ('>=0.5.20,<0.5.24', '>=0.5.24')
    >>> split(">=0.5.5,<0.5.8", Version("0.5.6"), [Version("0.5.5.post3"), Version("0.5.7")])
    ('>=0.5.5,<0.5.8,!=0.5.6.*', '==0.5.6.*')
    """
    pinned = tuple(pinned)
    inside = [
        other
        for other in pinned
        if other != version and SpecifierSet(guard).contains(other, prereleases=True)
    ]
    if not inside:
        return "", guard
    parts = [part.strip() for part in guard.split(",")]
    ups = [part for part in parts if part.startswith("<")]
    lows = [part for part in parts if part.startswith(">")]
    if len(ups) + len(lows) == len(parts) and max(inside) < version:
        start = lower_bound(version, pinned)
        return ",".join([*lows, f"<{start}"]), ",".join([f">={start}", *ups])
    shared = any(other.base_version == version.base_version for other in inside)
    hole = str(version) if shared else f"{version.base_version}.*"
    return f"{guard},!={hole}", f"=={hole}"
