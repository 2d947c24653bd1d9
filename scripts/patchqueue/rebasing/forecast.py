"""What the queue would do on a release that has no variants yet: each patch applies, has moved, is
merged upstream, or conflicts.

Starts from what the nearest older pin gets, and lays it on the new tree in memory. A hunk is laid
at the one place where its text stands; where that fails, git merges the change as it was made on
the nearest pin, file by file. Where the release lies between two pins, the variants of the next
one are tried before git is, and so are the patches that begin there. What needs no hand is laid, so
that what builds on it can be judged too. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from packaging.version import Version

from ..hint import counted, to_type
from ..laying.matching import Files, Read, Row, in_front, lay_patch
from ..laying.selection import passes
from ..outcome import Outcome, Refused
from ..queue.series import Entry, Queue
from ..upstream import source
from ..upstream.pins import Pin, Pins
from ..upstream.release import Release
from .unified import merge

MERGED_BY_GIT = "git merges it"  # said of what no person has looked at


@dataclass(frozen=True)
class Forecast:
    """nearest: the pin whose patches were tried; rows: one for each of them, in the series' order.
    behind: the next pin, whose variants and further patches were tried, where there is one."""

    version: Version
    nearest: Pin
    rows: tuple[Row, ...]
    behind: Pin | None = None

    def count(self, outcome: Outcome) -> int:
        return sum(row.outcome is outcome for row in self.rows)

    @property
    def conflict(self) -> Row | None:
        """The first one that a person has to solve."""
        return next((row for row in self.rows if row.outcome is Outcome.CONFLICT), None)


@dataclass
class Stages:
    """What each patch did on the pin it comes from: patch (the name its variants share) -> its
    files before and after."""

    queue: Queue
    pin: Pin

    @cached_property
    def pristine(self) -> source.Source:
        return source.fetch(self.pin, None)

    @cached_property
    def overlay(self) -> Files:
        return self.queue.overlay_for(self.queue.select(self.pin.version))

    @cached_property
    def of(self) -> dict[str, tuple[Files, Files]]:
        """Raises Refused where the queue is broken on that pin."""
        files, found = dict(self.overlay), {}
        for patch in self.queue.select(self.pin.version):
            row = lay_patch(patch, in_front(files, self.pristine.read))
            if row.outcome is not Outcome.APPLIED:
                what = f"does not apply on {self.pin.tag} itself"
                step = f"{to_type('check', self.pin.tag)} says why"
                raise Refused.of(str(row.outcome), f"patches/{patch.name}", what, step)
            found[self.queue.base(patch.name)] = row.before, row.after
            files |= row.after
        return found


def nearest_to(pins: Pins, version: Version) -> Pin:
    """The newest pin before a version. Raises Refused where there is none."""
    older = [pin for pin in pins.all if pin.version < version]
    if not older:
        what = f"is not newer than the first pin, {pins.all[0].tag}"
        raise Refused.of("too-old", f"sglang {version}", what, "name a newer one")
    return older[-1]


def next_after(pins: Pins, version: Version) -> Pin | None:
    """The oldest pin behind a version."""
    return next((pin for pin in pins.all if pin.version > version), None)


def forecast(
    queue: Queue, pins: Pins, release: Release, settled: Mapping[str, Files | str] | None = None
) -> Forecast:
    """The queue on a release. settled: what a person decided about a patch: its files as they left
    them, or why it is left out.

    Raises Refused for a release older than every pin, and for one that has an overlay file itself.
    """
    nearest, behind = nearest_to(pins, release.version), next_after(pins, release.version)
    stages = Stages(queue, nearest)
    tried = candidates(queue, nearest, behind, release)
    overlay = queue.overlay_for([queue.patches[entry.name] for one in tried for entry in one.texts])
    taken = [path for path in overlay if release.read(path) is not None]
    if taken:
        what = "upstream has this file"
        step = "rename the overlay file"
        raise Refused.of(
            "overlay-shadows-upstream", f"overlay/{taken[0]} on {release.version}", what, step
        )
    return Forecast(
        release.version,
        nearest,
        tuple(_rows(queue, tried, overlay, release, stages, settled or {})),
        behind,
    )


@dataclass(frozen=True)
class Candidate:
    """A patch to try. texts: its texts in the order in which they are tried; begins: the tag of the
    pin that it begins with, where no older one has the patch."""

    texts: tuple[Entry, ...]
    begins: str = ""

    @property
    def entry(self) -> Entry:
        return self.texts[0]


def candidates(queue: Queue, nearest: Pin, behind: Pin | None, release: Release) -> list[Candidate]:
    """What is tried on a release: the patches that are for it already, and those of the nearest pin
    that have no such variant; then those that begin with the next pin, unless the release has their
    change, or a Gap says why it goes without."""
    version = release.version
    readable = [entry for entry in queue.entries if entry.name in queue.patches]
    own, old, new = (
        {entry.base: entry for entry in readable if pin and entry.is_for(pin)}
        for pin in (version, nearest.version, behind and behind.version)
    )
    found = []
    for entry in readable:
        base, after = entry.base, new.get(entry.base)
        if entry is own.get(base):
            found.append(Candidate((entry,)))
        elif base in own:
            continue
        elif entry is old.get(base):
            more = (after,) if behind and after and after is not entry else ()
            found.append(Candidate((entry, *more)))
        elif base not in old and behind and entry is after and not _known(queue, entry, release):
            found.append(Candidate((entry,), behind.tag))
    return found


def _known(queue: Queue, entry: Entry, release: Release) -> bool:
    return _settled(queue, entry, release, None, release.read) is not None


def _rows(
    queue: Queue,
    tried: list[Candidate],
    overlay: Files,
    release: Release,
    stages: Stages,
    settled: Mapping[str, Files | str],
) -> Iterator[Row]:
    files = dict(overlay)
    read = in_front(files, release.read)
    for one in tried:
        row = _settled(queue, one.entry, release, settled.get(one.entry.name), read)
        row = row or _laid(queue, one, stages, read, str(release.version))
        files |= row.after
        yield row


def _laid(queue: Queue, one: Candidate, stages: Stages, read: Read, name: str) -> Row:
    """A patch laid where one of its texts stands; else as git merges it."""
    rows = [lay_patch(queue.patches[entry.name], read) for entry in one.texts]
    stands = next((row for row in rows if row.outcome is not Outcome.CONFLICT), None)
    if stands:
        return stands
    if one.begins:
        why = f"begins with {one.begins}; its text does not stand here"
        return Row(one.entry.name, Outcome.NOT_SELECTED, why)
    names = (name, stages.pin.tag, one.entry.name.removesuffix(".patch"))
    return _merge(rows[0], stages.of.get(one.entry.base, ({}, {})), read, names)


def _settled(
    queue: Queue, entry: Entry, release: Release, decided: Files | str | None, read: Read
) -> Row | None:
    """What is known of a patch before it is laid: its header says it, or a person has decided."""
    header = queue.header(entry.name)
    if any(passes(line, release.read) for line in header.probes):
        return Row(entry.name, Outcome.MERGED_UPSTREAM)
    gaps = (gap for gap in header.gaps if gap.releases.contains(release.version, prereleases=True))
    gap = next(gaps, None)
    if gap and not entry.is_for(release.version):
        return Row(entry.name, Outcome.NOT_SELECTED, gap.reason)
    if isinstance(decided, str):
        return Row(entry.name, Outcome.NOT_SELECTED, decided)
    if decided is not None:
        before = {path: read(path) or b"" for path in decided}
        return Row(entry.name, Outcome.NEEDS_REFRESH, "solved", before, decided)
    return None


def _merge(row: Row, stage: tuple[Files, Files], read: Read, names: tuple[str, str, str]) -> Row:
    """A patch that conflicts, as git merges it: laid where no region is left to solve, and the text
    was nowhere else."""
    base, theirs = stage
    found = {path: read(path) for path in theirs}
    before = {path: content for path, content in found.items() if content is not None}
    if not theirs or len(before) < len(theirs) or row.ambiguous:
        return row
    merged = {path: merge(base[path], before[path], theirs[path], names) for path in theirs}
    left = sum(each.regions for each in merged.values())
    if left:
        return Row(row.patch, Outcome.CONFLICT, f"{row.why}; {counted(left, 'region')} to solve")
    after = {path: each.text for path, each in merged.items()}
    if after == before:
        return Row(
            row.patch,
            Outcome.CONFLICT,
            "changes nothing there, though no Probe of it finds the change",
        )
    return Row(row.patch, Outcome.NEEDS_REFRESH, MERGED_BY_GIT, before, after)
