"""What the queue would do on a release that has no variants yet: each patch applies, has moved, is
merged upstream, or conflicts.

Starts from what the nearest older pin gets, and lays it on the new tree in memory. A hunk is laid
at the one place where its text stands; where that fails, git merges the change as it was made on
the nearest pin, file by file. What needs no hand is laid, so that what builds on it can be judged
too. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from packaging.version import Version

from ..hint import counted, to_type
from ..laying.place import Files, Read, Row, in_front, lay_patch
from ..laying.probe import passes
from ..outcome import Outcome, Refused
from ..queue.series import Entry, Queue
from ..upstream import source
from ..upstream.pins import Pin, Pins
from ..upstream.release import Release
from .unified import merge

MERGED_BY_GIT = "git merges it"  # said of what no person has looked at


@dataclass(frozen=True)
class Forecast:
    """nearest: the pin whose patches were tried; rows: one for each of them, in the series'
    order."""

    version: Version
    nearest: Pin
    rows: tuple[Row, ...]

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


def forecast(
    queue: Queue, pins: Pins, release: Release, settled: Mapping[str, Files | str] | None = None
) -> Forecast:
    """The queue on a release. settled: what a person decided about a patch: its files as they left
    them, or why it is left out.

    Raises Refused for a release older than every pin, and for one that has an overlay file itself.
    """
    nearest = nearest_to(pins, release.version)
    stages = Stages(queue, nearest)
    tried = candidates(queue, nearest, release.version)
    overlay = queue.overlay_for([queue.patches[entry.name] for entry in tried])
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
    )


def candidates(queue: Queue, nearest: Pin, version: Version) -> list[Entry]:
    """What is tried on a version: the patches that are for it already, and those of the nearest pin
    that have no such variant."""
    there = {entry.base for entry in queue.entries if entry.is_for(version)}
    readable = (entry for entry in queue.entries if entry.name in queue.patches)
    return [
        entry
        for entry in readable
        if entry.is_for(version) or (entry.base not in there and entry.is_for(nearest.version))
    ]


def _rows(
    queue: Queue,
    tried: list[Entry],
    overlay: Files,
    release: Release,
    stages: Stages,
    settled: Mapping[str, Files | str],
) -> Iterator[Row]:
    files = dict(overlay)
    read = in_front(files, release.read)
    for entry in tried:
        row = _settled(queue, entry, release, settled.get(entry.name), read)
        if row is None:
            pinned = release.version if entry.is_for(release.version) else stages.pin.version
            row = lay_patch(queue.at(entry.name, pinned), read)
        if row.outcome is Outcome.CONFLICT:
            names = (str(release.version), stages.pin.tag, entry.name.removesuffix(".patch"))
            row = _merge(row, stages.of.get(entry.base, ({}, {})), read, names)
        files |= row.after
        yield row


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
