"""What a rebase writes to the queue: variants, guards and headers, planned in memory and
proved before anything is written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from packaging.version import Version

from ..files.tree import hash_python
from ..laying.check import change_of
from ..laying.context import edits, one_text, rendered
from ..laying.matching import Row, listing_with, replay
from ..laying.selection import Selection
from ..outcome import Outcome, Problem, Refused
from ..queue import guards, patchfile, series
from ..queue.edit import Change, Lines, variant, with_changes
from ..queue.lint import lint
from ..queue.patchfile import Patch, of_files
from ..queue.series import Entry, Queue
from ..upstream import source
from ..upstream.pins import Pins
from ..upstream.release import Release
from .unified import unified


def plan(
    root: Path, queue: Queue, pins: Pins, release: Release, rows: Iterable[Row], complete: bool
) -> list[Change]:
    """What these rows make of the queue, the release's tree last. complete: they are all
    there are, so that the tree is known.

    Raises Refused where a guard cannot be made right.
    """
    rows, known, version = list(rows), [pin.version for pin in pins.all], release.version
    old = (root / series.FILE).read_text(encoding="utf-8")
    lines = Lines.of(old)
    changes: list[Change] = []
    for row in rows:
        entry = next(entry for entry in queue.entries if entry.name == row.patch)
        if row.outcome is Outcome.MERGED_UPSTREAM:
            changes += _end(queue, entry, version, known, lines)
        elif row.outcome is Outcome.NOT_SELECTED and entry.is_for(version):
            lines.guard(entry.name, _rest(entry, version, known))
        elif row.outcome is Outcome.NEEDS_REFRESH or (
            row.outcome is Outcome.APPLIED and not entry.is_for(version)
        ):
            changes += _carry(queue, pins, entry, row, version, lines)
    changes += (
        [Change(str(series.FILE), lines.text.encode(), "guards")] if lines.text != old else []
    )
    made = with_changes(queue, changes)
    return changes + (_tree(root, made, pins, release, rows) if complete else [])


def _tree(
    root: Path, queue: Queue, pins: Pins, release: Release, rows: Iterable[Row]
) -> list[Change]:
    """The release's patched tree in upstream/pins.toml, where it is pinned."""
    if all(pin.version != release.version for pin in pins.all):
        return []
    files = dict(queue.overlay_for(queue.select(release.version)))
    for row in rows:
        files |= row.after
    tree = hash_python(listing_with(release.listing(), files))
    return change_of(root, {release.version: tree})


def prove(
    root: Path,
    queue: Queue,
    pins: Pins,
    release: Release,
    rows: Iterable[Row],
    changes: Iterable[Change],
) -> None:
    """Raise Refused unless the queue with these changes passes lint, gives every other pin what it
    got, and the release just what the rows say: replayed strictly, byte for byte.
    """
    new = with_changes(queue, changes)
    problems = lint(root, new)
    for pin in pins.all:
        names = [
            [(patch.name, edits(patch)) for patch in each.select(pin.version)]
            for each in (queue, new)
        ]
        if pin.version != release.version and names[0] != names[1]:
            others = sorted({name for name, _ in set(names[0]) ^ set(names[1])})
            what, step = f"{pin.tag} would get other patches", "write this release's guards by hand"
            problems.append(Problem("guard-not-split", str(series.FILE), f"{what}: {others}", step))
    laid = [row for row in rows if row.outcome in (Outcome.APPLIED, Outcome.NEEDS_REFRESH)]
    bases = [queue.base(row.patch) for row in laid]
    selected = [patch for patch in new.select(release.version) if new.base(patch.name) in bases]
    replayed = replay(selected, new.overlay_for(selected), release.read, str(release.version))
    wanted: dict[str, bytes] = {}
    for row in laid:
        wanted |= row.after
    wrong = [path for path, content in wanted.items() if replayed.files.get(path) != content]
    if [new.base(patch.name) for patch in selected] != bases or (wrong and not replayed.problems):
        what = f"does not give the tree that was made: {' '.join(wrong) or 'other patches'}"
        problems.append(
            Problem("not-proved", f"the queue on {release.version}", what, "report this")
        )
    if problems or replayed.problems:
        raise Refused([*problems, *replayed.problems])


def skipped(queue: Queue, name: str, version: Version, pins: Pins, reason: str) -> Change:
    """The header that says why a release goes without the patch. Raises Refused for a reason that
    says nothing."""
    base = queue.base(name)
    if len(" ".join(reason.split())) < 10:
        what = f"{reason!r} is no reason"
        step = (
            'say in ten characters or more why the release goes without: --skip "the code it'
            ' changes is gone"'
        )
        raise Refused.of("bad-field", f"patches/{base}", what, step)
    gap = (
        f"Gap: {guards.guard_for(version, [pin.version for pin in pins.all])}:"
        f" {' '.join(reason.split())}\n"
    )
    head, diff = patchfile.split(queue.patches[base].content.decode("utf-8"))
    found = list(re.finditer(r"(?m)^(?:Gap|Probe):.*\n(?:[ \t].*\n)*", head))
    place = found[-1].end() if found else len(head)
    return Change(
        f"patches/{base}",
        f"{head[:place]}{gap}{head[place:]}{diff}".encode(),
        f"{version} goes without it",
    )


def _rest(entry: Entry, version: Version, pinned: list[Version]) -> str:
    rest = guards.split(entry.text, version, pinned)[0]
    if not rest:
        what = f"{entry.name} would be for no pinned release any more"
        step = "remove it from series and patches/, then run this again"
        raise Refused.of("empty-guard", f"{series.FILE}:{entry.line}", what, step)
    return rest


def _end(
    queue: Queue, entry: Entry, version: Version, pinned: list[Version], lines: Lines
) -> list[Change]:
    """Merged upstream: the guard stops before the release, and the header says since when."""
    if entry.is_for(version):
        lines.guard(entry.name, _rest(entry, version, pinned))
    text = queue.patches[entry.base].content.decode("utf-8")
    status = queue.patches[entry.base].header.get("Upstream-Status")
    known = re.fullmatch(r"Merged (.+)", status)
    if status.startswith("Inappropriate") or (known and Version(known.group(1)) <= version):
        return []
    new = re.sub(r"(?m)^Upstream-Status:.*$", f"Upstream-Status: Merged {version}", text, count=1)
    return [Change(f"patches/{entry.base}", new.encode(), f"merged upstream: {status} before")]


def _carry(
    queue: Queue, pins: Pins, entry: Entry, row: Row, version: Version, lines: Lines
) -> list[Change]:
    """The patch for the release: its own text where that stands there, with less context if need
    be; else a variant."""
    known = [pin.version for pin in pins.all]
    wider = entry.text if entry.is_for(version) else guards.extended(entry.text, version, known)
    diff = unified(row.before, row.after)
    if wider and _alone(queue, entry, wider):
        text = _text(queue, pins, entry, row, version, diff) if row.lines is None else None
        if text is not None or row.lines is not None:
            if not entry.is_for(version):
                lines.guard(entry.name, wider)
            if text is None:
                return []
            content = of_files(queue.patches[entry.name], text.files).content
            why = f"for {version} too, with the context on which its releases agree"
            return [Change(f"patches/{entry.name}", content, why)]
    why = f"for {version}: {row.why or 'fits as it is'}"
    return [variant(queue, entry, version, known, lines, diff, why)]


def _text(
    queue: Queue, pins: Pins, entry: Entry, row: Row, version: Version, diff: str
) -> Patch | None:
    """One text of a patch for the releases that it serves and for the new one.

    Releases that are not cached are not fetched for this: then they cannot.
    """
    served = [pin for pin in pins.all if pin.version != version and entry.is_for(pin.version)]
    texts, below = (
        {version: of_files(queue.patches[entry.name], patchfile.parse_diff(diff))},
        {version: row.before},
    )
    for pin in served if all(map(source.is_cached, served)) else ():
        there = next(
            each
            for each in Selection(queue, pin).replay(source.fetch(pin, None).read).steps
            if each.patch == entry.name
        )
        if there.lines is None:
            return None
        texts[pin.version] = rendered(queue.patches[entry.name], there)
        below[pin.version] = there.before
    return one_text(texts, below) if len(texts) == 1 + len(served) else None


def _alone(queue: Queue, entry: Entry, guard: str) -> bool:
    """Whether the entry may have this guard beside its other variants."""
    wider = series.parse(f"{entry.name} # {guard}\n")[0][0]
    others = [each for each in queue.entries if each.base == entry.base and each.name != entry.name]
    return not series.overlapping([wider, *others])
