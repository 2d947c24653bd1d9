"""Carry the queue to another release: what conflicts is solved one at a time in a throw-away git
repository.

The queue itself is the state: what is solved is written to it at once, and every run starts from
what it then says.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from ..applying.apply import load_queue
from ..applying.check import change_of
from ..applying.matching import (
    Files,
    Row,
    apply_patch,
    edits,
    listing_with,
    replay,
    shared,
    unified,
)
from ..applying.selection import Selection
from ..files import atomic
from ..files.tree import hash_python
from ..outcome import Outcome, Problem, Refused, to_type
from ..queue import edit, patchfile, series
from ..queue.edit import Change, Lines, tried, variant, write
from ..queue.patchfile import Patch, of_files
from ..queue.series import Entry
from ..upstream import source
from ..upstream.pins import Pins
from ..upstream.release import Release
from .forecast import ConflictRepository, Forecast, Region, forecast

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """The result of a step. changes: those written; folder: the repository with the next conflict,
    None where none is left; regions: what git left to solve in it."""

    found: Forecast
    changes: tuple[Change, ...] = ()
    folder: Path | None = None
    regions: tuple[Region, ...] = ()


def begin(root: Path, pins: Pins, release: Release, show: Callable[[Forecast], None]) -> Progress:
    """Say what the queue does on a release (to `show`, at once), and lay out its first conflict.
    Raises Refused where the queue has moved on under edits of one that is laid out."""
    with _alone(root):
        outlook = forecast(load_queue(root), pins, release)
        show(outlook)
        return _next(root, outlook, ())


def proceed(root: Path, pins: Pins, version: Version) -> Progress:
    """Write what is solved, and all that needed no hand, up to the next conflict; lay that out, or
    clean up. Raises Refused, with nothing written."""
    with _alone(root):
        repository = ConflictRepository(root, version)
        state = repository.state
        if state is None:
            step = f"{to_type('rebase', version)} begins one"
            what = "no rebase is under way"
            raise Refused.of("nothing-to-continue", repository.shown, what, step)
        release = repository.release()
        pin = pins.of(version)
        if pin and pin.tree != release.tree:
            step = f"delete {repository.shown}, then {to_type('rebase', version)}"
            what = "has been pinned since, with another tree"
            raise Refused.of(str(Outcome.TREE_MISMATCH), f"v{version}", what, step)
        outlook = forecast(load_queue(root), pins, release)
        row = outlook.conflict
        # else written by a run that was killed behind it, or left out; or none was laid out
        if row and row.patch == state["patch"]:
            if not repository.shows(outlook):
                raise _stale(repository)
            solution = repository.solution(state["below"])
            if not solution:
                what = f"changes nothing as {repository.shown} stands"
                step = "if upstream has the change, correct its Probe; else leave it out by a Gap"
                raise Refused.of("empty-patch", f"patches/{row.patch}", what, step)
            outlook = forecast(outlook.queue, pins, release, {row.patch: solution})
        return _write(root, pins, outlook)


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Be the only rebase; what a killed one had made good is finished first."""
    with atomic.locked(root / atomic.QUEUE_LOCK):
        for name in atomic.recover(root, root / atomic.JOURNAL):
            LOG.info(f"{name}: written, as a run that was killed had begun to")
        yield


def _write(root: Path, pins: Pins, outlook: Forecast) -> Progress:
    """Plan, prove, write, go on. Raises Refused where a guard cannot be made right."""
    old = (root / series.FILE).read_text(encoding="utf-8")
    planned, release = _Plan(pins, outlook, Lines(old)), outlook.release
    changes = [change for row in outlook.below for change in planned.changes(row)]
    if (new := planned.lines.text) != old:
        changes.append(Change(str(series.FILE), new.encode(), "guards"))
    files = prove(root, pins, outlook, changes)
    if outlook.conflict is None and pins.of(release.version):
        tree = hash_python(listing_with(release.listing, files))
        changes += change_of(root, {release.version: tree})
    write(root, changes)
    if outlook.conflict is None:
        ConflictRepository(root, release.version).remove()
        return Progress(outlook, tuple(changes))
    return _next(root, forecast(load_queue(root), pins, release), tuple(changes))


def _next(root: Path, outlook: Forecast, changes: tuple[Change, ...]) -> Progress:
    """Lay out the first conflict, or what needs no hand; or leave it as it is."""
    repository = ConflictRepository(root, outlook.version)
    if repository.shows(outlook):
        return Progress(outlook, changes, repository.path, repository.regions())
    if not changes and repository.edited():
        raise _stale(repository)
    return Progress(outlook, changes, repository.path, repository.lay_out(outlook))


def _stale(repository: ConflictRepository) -> Refused:
    what = "holds edits, and the queue or the release is no longer what they were made on"
    step = "keep what you need of them, delete the folder, and begin again"
    return Refused.of("stale-rebase", repository.shown, what, step)


def prove(root: Path, pins: Pins, outlook: Forecast, changes: Iterable[Change]) -> Files:
    """The release's files that the queue with these changes makes, up to the first conflict. Raises
    Refused unless that queue passes lint, gives every other pin what it got, and the release just
    what the rows say."""
    queue, version = outlook.queue, outlook.version
    new, problems = tried(queue, changes)
    if problems:
        raise Refused(problems)
    problems = series.lint(root, new) + series.overlapping(new, version)
    for pin in pins.all:
        old_edits, new_edits = (
            {(patch.name, edits(patch)) for patch in each.select(pin.version)}
            for each in (queue, new)
        )
        if pin.version != version and old_edits != new_edits:
            others = sorted({name for name, _ in old_edits ^ new_edits})
            what, step = f"{pin.tag} would get other patches", "write this release's guards by hand"
            problems.append(Problem("guard-not-split", str(series.FILE), f"{what}: {others}", step))
    expected = [(queue.base(row.patch), row.after) for row in outlook.below if row.after]
    bases = [base for base, _ in expected]
    selected = [patch for patch in new.select(version) if new.base(patch.name) in bases]
    replayed = replay(selected, new.overlay_for(selected), outlook.release.files.get, str(version))
    problems += replayed.problems
    if not problems and [(new.base(row.patch), row.after) for row in replayed.steps] != expected:
        what = "does not give the tree that was made"
        problems.append(Problem("not-proved", f"the queue on {version}", what, "report this"))
    if problems:
        raise Refused(problems)
    return replayed.files


@dataclass
class _Plan:
    """The changes that carry patches to a release, row by row. lines: the series', edited too."""

    pins: Pins
    outlook: Forecast
    lines: Lines

    @property
    def version(self) -> Version:
        return self.outlook.version

    @property
    def pinned(self) -> list[Version]:
        return [pin.version for pin in self.pins.all]

    def changes(self, row: Row) -> list[Change]:
        """The changes for one row that is no conflict. Raises Refused for an empty guard."""
        entry = next(entry for entry in self.outlook.queue.entries if entry.name == row.patch)
        is_for = entry.is_for(self.version)
        if row.outcome not in (Outcome.MERGED_UPSTREAM, Outcome.NOT_SELECTED):
            return [] if is_for and row.as_is else self._carried(entry, row)
        if is_for:
            rest = edit.split(entry.text, self.version, self.pinned)[0]
            if not rest:
                what = f"{entry.name} would be for no pinned release any more"
                step = "remove it from series and patches/, then run this again"
                raise Refused.of("empty-guard", f"{series.FILE}:{entry.line}", what, step)
            self.lines.guard(entry.name, rest)
        return self._merged(entry) if row.outcome is Outcome.MERGED_UPSTREAM else []

    def _merged(self, entry: Entry) -> list[Change]:
        """The header that says since when upstream has the patch."""
        patch = self.outlook.queue.patches[entry.base]
        status, merged = patch.header.get("Upstream-Status"), patch.header.merged
        if status.startswith("Inappropriate") or (merged and Version(merged) <= self.version):
            return []
        line, text = f"Upstream-Status: Merged {self.version}", patch.content.decode("utf-8")
        text = re.sub(r"(?m)^Upstream-Status: (?:Merged [^,\n]+|.*)", line, text, count=1)
        return [Change(f"patches/{entry.base}", text.encode(), f"merged upstream: {status} before")]

    def _carried(self, entry: Entry, row: Row) -> list[Change]:
        """The patch for the release: its own text, with less context if need be; else a variant."""
        queue, version, is_for = self.outlook.queue, self.version, entry.is_for(self.version)
        wider = entry.text if is_for else edit.extended(entry.text, version, self.pinned)
        text, patch = None, queue.patches[entry.name]
        if wider and self._is_free(entry, wider):
            text = patch if row.as_is else self._shared(entry, row)
        if text is None:
            why = f"for {version}: {row.why or 'fits as it is'}"
            diff = unified(row.before, row.after)
            return [variant(queue, entry, version, self.pinned, self.lines, diff, why)]
        if wider and not is_for:
            self.lines.guard(entry.name, wider)
        if text is patch:
            return []
        why = f"for {version} too, with the context on which its releases agree"
        return [Change(f"patches/{entry.name}", text.content, why)]

    def _shared(self, entry: Entry, row: Row) -> Patch | None:
        """One text for the releases that a patch serves and for the new one, if they are cached."""
        queue, patch = self.outlook.queue, self.outlook.queue.patches[entry.name]
        others = [pin for pin in self.pins.all if pin.version != self.version]
        served = [pin for pin in others if entry.is_for(pin.version)]
        if not all(map(source.is_cached, served)):
            return None
        rows = []
        for pin in served:
            steps = Selection(queue, pin).replay(source.fetch(pin, None).read).steps
            rows.append(next(step for step in steps if step.patch == entry.name))
        rows.append(row)
        diff = patchfile.parse_diff(unified(row.before, row.after))
        text = shared(of_files(patch, diff), [each.before for each in rows])
        same = text and all(apply_patch(text, each.before.get).after == each.after for each in rows)
        return text if same else None

    def _is_free(self, entry: Entry, guard: str) -> bool:
        """Whether the entry may have this guard beside its other variants."""
        wider = series.parse(f"{entry.name} # {guard}\n")[0][0]
        others = [
            each
            for each in self.outlook.queue.entries
            if each.base == entry.base and each.name != entry.name
        ]
        versions = filter(wider.is_for, (*self.pinned, self.version))
        return not any(other.is_for(version) for version in versions for other in others)
