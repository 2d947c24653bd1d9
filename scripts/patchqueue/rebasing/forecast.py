"""A forecast of the queue on a release that has no variants yet: each patch applies, has moved, is
merged upstream, or conflicts; and its report.

The patches of the nearest older pin are applied to the new tree in memory. A hunk is applied at the
one place that matches its text; where that fails, git merges the change as it was made on
the nearest pin, file by file. What needs no hand is laid, so that what builds on it can be judged
too. Nothing is written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.version import Version

from ..applying.matching import Files, Read, Row, apply_patch, in_front, listing_with
from ..applying.selection import Selection, passes
from ..files import run
from ..files.tree import hash_listing
from ..outcome import Outcome, Refused, counted, to_type
from ..queue.series import Entry, Queue
from ..upstream import source
from ..upstream.pins import Pin, Pins
from ..upstream.release import Release

MERGED_BY_GIT = "git merges it"  # said of what no person has looked at
KINDS = (
    (Outcome.APPLIED, "as they are"),
    (Outcome.NEEDS_REFRESH, "to refresh"),
    (Outcome.MERGED_UPSTREAM, "merged upstream"),
    (Outcome.CONFLICT, "in conflict"),
    (Outcome.NOT_SELECTED, "left out"),  # only where there are such
)


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
    """The effect of each patch on the pin it comes from: patch (the name its variants share) -> its
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
        rows = Selection(self.queue, self.pin).replay(self.pristine.read).steps
        for row in rows:
            if row.outcome is not Outcome.APPLIED:
                what = f"does not apply on {self.pin.tag} itself"
                step = f"{to_type('check', self.pin.tag)} says why"
                raise Refused.of(str(row.outcome), f"patches/{row.patch}", what, step)
        return {self.queue.base(row.patch): (row.before, row.after) for row in rows}


def nearest_to(pins: Pins, version: Version) -> Pin:
    """The newest pin before a version. Raises Refused where there is none."""
    older = [pin for pin in pins.all if pin.version < version]
    if not older:
        what = f"is not newer than the first pin, {pins.all[0].tag}"
        raise Refused.of("too-old", f"sglang {version}", what, "name a newer one")
    return older[-1]


def forecast(
    queue: Queue, pins: Pins, release: Release, decisions: Mapping[str, Files | str] | None = None
) -> Forecast:
    """The queue on a release. decisions: of a person, by patch: its files as they left them, or why
    it is left out.

    Raises Refused for a release older than every pin, and for one that has an overlay file itself.
    """
    nearest = nearest_to(pins, release.version)
    stages = Stages(queue, nearest)
    entries = _tried(queue, nearest, release.version)
    overlay = queue.overlay_for([queue.patches[entry.name] for entry in entries])
    shadowed = [path for path in overlay if release.read(path) is not None]
    if shadowed:
        what = "upstream has this file"
        step = "rename the overlay file"
        raise Refused.of(
            "overlay-shadows-upstream", f"overlay/{shadowed[0]} on {release.version}", what, step
        )
    return Forecast(
        release.version,
        nearest,
        tuple(_rows(queue, entries, overlay, release, stages, decisions or {})),
    )


def contents(queue: Queue, rows: Iterable[Row]) -> dict[str, bytes]:
    """The files that these rows add or change, a conflict last: the overlay files that they need,
    and those that they change."""
    rows = list(rows)
    files = dict(overlay_of(queue, rows))
    for row in rows:
        files |= row.after
    return files


def overlay_of(queue: Queue, rows: Iterable[Row]) -> dict[str, bytes]:
    """The overlay files that these rows need, a conflict among them."""
    return queue.overlay_for(
        [queue.patches[row.patch] for row in rows if row.after or row.outcome is Outcome.CONFLICT]
    )


def digest(queue: Queue, rows: Iterable[Row]) -> str:
    """`contents` as one hash: an edit is good for this and nothing else."""
    return hash_listing(listing_with({}, contents(queue, rows)))


def _tried(queue: Queue, nearest: Pin, version: Version) -> list[Entry]:
    """The patches to try on a release: those that are for it already, and those of the nearest pin
    that have no such variant."""
    readable = [entry for entry in queue.entries if entry.name in queue.patches]
    own, old = (
        {entry.base: entry for entry in readable if entry.is_for(each)}
        for each in (version, nearest.version)
    )
    chosen = old | own
    return [entry for entry in readable if entry is chosen.get(entry.base)]


def _rows(
    queue: Queue,
    entries: list[Entry],
    overlay: Files,
    release: Release,
    stages: Stages,
    decisions: Mapping[str, Files | str],
) -> Iterator[Row]:
    files = dict(overlay)
    read = in_front(files, release.read)
    for entry in entries:
        row = _decided(queue, entry, release, decisions.get(entry.name), read)
        row = row or _attempt(queue, entry, stages, read, str(release.version))
        files |= row.after
        yield row


def _attempt(queue: Queue, entry: Entry, stages: Stages, read: Read, name: str) -> Row:
    """A patch applied where its text matches; else as git merges it."""
    row = apply_patch(queue.patches[entry.name], read)
    if row.outcome is not Outcome.CONFLICT:
        return row
    names = (name, stages.pin.tag, entry.name.removesuffix(".patch"))
    return _merge(row, stages.of.get(entry.base, ({}, {})), read, names)


def _decided(
    queue: Queue, entry: Entry, release: Release, decided: Files | str | None, read: Read
) -> Row | None:
    """The row of a patch that its header or a person has decided; None for any other."""
    header = queue.header(entry.name)
    if any(passes(line, release.read) for line in header.probes):
        return Row(entry.name, Outcome.MERGED_UPSTREAM)
    gap = header.gap(release.version)
    if gap and not entry.is_for(release.version):
        return Row(entry.name, Outcome.NOT_SELECTED, gap.reason)
    if isinstance(decided, str):
        return Row(entry.name, Outcome.NOT_SELECTED, decided)
    if decided is not None:
        before = {path: read(path) or b"" for path in decided}
        return Row(entry.name, Outcome.NEEDS_REFRESH, "solved", before, decided)
    return None


def _merge(row: Row, stage: tuple[Files, Files], read: Read, names: tuple[str, str, str]) -> Row:
    """A patch that conflicts, as git merges it: applied where no region is left to solve, and the
    text was nowhere else."""
    base, theirs = stage
    ours = {path: content for path in theirs if (content := read(path)) is not None}
    if not theirs or len(ours) < len(theirs) or row.ambiguous:
        return row
    merged = {path: _merged((ours[path], base[path], theirs[path]), names) for path in theirs}
    regions = sum(count for _, count in merged.values())
    after = {path: text for path, (text, _) in merged.items()}
    if regions:
        why = f"{row.why}; {counted(regions, 'region')} to solve"
        return Row(row.patch, Outcome.CONFLICT, why)
    if after == ours:
        why = "changes nothing there, though no Probe of it finds the change"
        return Row(row.patch, Outcome.CONFLICT, why)
    return Row(row.patch, Outcome.NEEDS_REFRESH, MERGED_BY_GIT, ours, after)


def _merged(texts: tuple[bytes, bytes, bytes], names: tuple[str, str, str]) -> tuple[bytes, int]:
    """Three texts (ours, base, theirs) as git merges them, and how many regions it leaves to solve.
    names: what its markers call them."""
    with tempfile.TemporaryDirectory(prefix="patchqueue-merge-") as space:
        for file, content in zip(("ours", "base", "theirs"), texts):
            (Path(space) / file).write_bytes(content)
        labels = [word for name in names for word in ("-L", name)]
        words = ["merge-file", "-p", "--diff3", *labels, "ours", "base", "theirs"]
        done = run.own_git(Path(space), *words, check=False)
    if not 0 <= done.returncode <= 127:  # above: git's own failures, as a binary file
        said = str(run.Failed("git", done))
        raise Refused.of("git-failed", "git merge-file", said, "report this")
    return done.stdout, done.returncode


def summary(pins: Pins, outlook: Forecast) -> str:
    """Which patches were tried, and how many of them do what."""
    kinds = KINDS if outlook.count(Outcome.NOT_SELECTED) else KINDS[:-1]
    counts = ", ".join(f"{outlook.count(outcome)} {what}" for outcome, what in kinds)
    pinned = any(pin.version == outlook.version for pin in pins.all)
    own = "which is pinned, with its own patches and those of" if pinned else "with the patches of"
    tried = f"{own} {outlook.nearest.tag}"
    return f"sglang {outlook.version}, {tried}: {counts}"


def to_read(outlook: Forecast) -> list[str]:
    """A line for each conflict, then for each merge that a person has to read."""
    names = {row.patch: row.patch.removesuffix(".patch") for row in outlook.rows}
    conflicts = [row for row in outlook.rows if row.outcome is Outcome.CONFLICT]
    merged = [row for row in outlook.rows if row.why == MERGED_BY_GIT]
    return [f"{names[row.patch]}: {row.why}" for row in conflicts] + [
        f"{names[row.patch]}: merged without markers, which is no proof of meaning: read it"
        for row in merged
    ]
