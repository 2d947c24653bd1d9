"""A forecast of the queue on a release that has no variants yet: each patch applies, has moved, is
merged upstream, or conflicts; and its report, in words and as Markdown.

The patches of the nearest older pin are applied to the new tree in memory. A hunk is applied at the
one place that matches its text; where that fails, git merges the change as it was made on
the nearest pin, file by file. Where the release lies between two pins, the variants of the next
one are tried before git is, and so are the patches that begin there. What needs no hand is laid, so
that what builds on it can be judged too. Nothing is written.
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
from ..hint import counted, to_type
from ..outcome import Outcome, Refused
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
    behind = next((pin for pin in pins.all if pin.version > release.version), None)
    stages = Stages(queue, nearest)
    tried_patches = candidates(queue, nearest, behind, release)
    overlay = queue.overlay_for(
        [queue.patches[entry.name] for candidate in tried_patches for entry in candidate.texts]
    )
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
        tuple(_rows(queue, tried_patches, overlay, release, stages, decisions or {})),
        behind,
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
    """The patches to try on a release: those that are for it already, and those of the nearest pin
    that have no such variant; then those that begin with the next pin, unless the release has their
    change, or a Gap says why it goes without."""
    version = release.version
    readable = [entry for entry in queue.entries if entry.name in queue.patches]
    own, old, new = (
        {entry.base: entry for entry in readable if pin and entry.is_for(pin)}
        for pin in (version, nearest.version, behind and behind.version)
    )
    tried_patches = []
    for entry in readable:
        base, after = entry.base, new.get(entry.base)
        if entry is own.get(base):
            tried_patches.append(Candidate((entry,)))
        elif base in own:
            continue
        elif entry is old.get(base):
            more = (after,) if behind and after and after is not entry else ()
            tried_patches.append(Candidate((entry, *more)))
        elif (
            base not in old
            and behind
            and entry is after
            and _decided(queue, entry, release, None, release.read) is None
        ):
            tried_patches.append(Candidate((entry,), behind.tag))
    return tried_patches


def _rows(
    queue: Queue,
    tried_patches: list[Candidate],
    overlay: Files,
    release: Release,
    stages: Stages,
    decisions: Mapping[str, Files | str],
) -> Iterator[Row]:
    files = dict(overlay)
    read = in_front(files, release.read)
    for candidate in tried_patches:
        row = _decided(queue, candidate.entry, release, decisions.get(candidate.entry.name), read)
        row = row or _attempt(queue, candidate, stages, read, str(release.version))
        files |= row.after
        yield row


def _attempt(queue: Queue, candidate: Candidate, stages: Stages, read: Read, name: str) -> Row:
    """A patch applied where one of its texts matches; else as git merges it."""
    rows = [apply_patch(queue.patches[entry.name], read) for entry in candidate.texts]
    applied = next((row for row in rows if row.outcome is not Outcome.CONFLICT), None)
    if applied:
        return applied
    if candidate.begins:
        why = f"begins with {candidate.begins}; its text does not stand here"
        return Row(candidate.entry.name, Outcome.NOT_SELECTED, why)
    names = (name, stages.pin.tag, candidate.entry.name.removesuffix(".patch"))
    return _merge(rows[0], stages.of.get(candidate.entry.base, ({}, {})), read, names)


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
    tags = " and ".join(pin.tag for pin in (outlook.nearest, outlook.behind) if pin)
    tried = (
        f"which is pinned, with its own patches and those of {tags}"
        if pinned
        else f"with the patches of {tags}"
    )
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


def markdown(pins: Pins, outlook: Forecast) -> str:
    """The forecast of a release that is to be pinned. The same forecast gives the same text."""
    rows = "".join(
        f"| `{row.patch.removesuffix('.patch')}` | {row.outcome} | {_escaped(row.why)} |\n"
        for row in outlook.rows
    )
    table = f"| patch | outcome | why |\n| --- | --- | --- |\n{rows}"
    return f"{summary(pins, outlook)}.\n\n{table}\n{_next_steps(outlook.version)}"


def markdown_of_refusal(version: Version, refused: Refused) -> str:
    """The text for a release that could not be tried."""
    problems = "".join(
        f"- {_escaped(f'{problem.where}: {problem.what}')}\n" for problem in refused.problems
    )
    return f"sglang {version} could not be tried:\n\n{problems}\n{_next_steps(version)}"


def _next_steps(version: Version) -> str:
    steps = ", then ".join(to_type(command, version) for command in ("pin", "rebase"))
    return f"Next, in a clone of the queue: {steps}.\n"


def _escaped(text: str) -> str:
    """Text as it is, in a table's cell or a list. Code between backticks stays code."""
    parts = " ".join(text.split()).split("`")
    signs = ("|", "|\\<*_[]~")  # in code, and elsewhere
    return "`".join(
        "".join(f"\\{sign}" if sign in signs[place % 2 == 0] else sign for sign in part)
        for place, part in enumerate(parts)
    )
