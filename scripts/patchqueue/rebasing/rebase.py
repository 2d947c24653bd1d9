"""Carry the queue to another release: what conflicts is solved one at a time in a throw-away git
repository.

The queue itself is the state: what is solved is written to it at once, and every run starts from
what it then says. The repository, work/rebase-VERSION/, holds one conflict; it can be thrown away
and made again.
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
from ..applying.context import edits, shared, unified
from ..applying.matching import Row, apply_patch, listing_with, replay
from ..applying.selection import Selection
from ..files import atomic
from ..files.tree import hash_python
from ..outcome import Outcome, Problem, Refused, to_type
from ..queue import edit, patchfile, series
from ..queue.edit import Change, Lines, variant, with_changes, write
from ..queue.patchfile import Patch, of_files
from ..queue.series import Entry, Queue
from ..upstream import source
from ..upstream.pins import Pins
from ..upstream.release import Release, kept
from .conflictrepo import Region, Repository
from .forecast import Forecast, Stages, contents, digest, forecast

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """The result of a step. changes: those written; folder: the repository with the next conflict,
    None where none is left.

    regions: what git left to solve in it; empty where git merged the patch after all, or had
    nothing to merge it with.
    """

    found: Forecast
    changes: tuple[Change, ...] = ()
    folder: Path | None = None
    regions: tuple[Region, ...] = ()


def begin(root: Path, pins: Pins, release: Release, show: Callable[[Forecast], None]) -> Progress:
    """Say what the queue does on a release (to `show`, at once), and lay out its first conflict.
    The queue is not written to.

    A conflict that is laid out already stays as it is, with the edits made to it. Raises Refused
    where the queue has moved on under such edits.
    """
    with _alone(root):
        queue, target = load_queue(root), Target(root, pins, release)
        outlook = forecast(queue, pins, release)
        show(outlook)
        return _next(target, queue, outlook, ())


def proceed(root: Path, pins: Pins, version: Version, reason: str | None) -> Progress:
    """Write what is solved, and all that needed no hand, up to the next conflict; lay that out, or
    clean up.

    reason: leave the patch out of this release, and say why. Raises Refused, with nothing written,
    where the solution is none, or the queue would not give what was solved.
    """
    with _alone(root):
        queue = load_queue(root)
        repository = Repository(root, version)
        state = repository.state
        if state is None:
            step = f"{to_type('rebase', version)} begins one"
            what = "no rebase is under way"
            raise Refused.of("nothing-to-continue", repository.shown, what, step)
        same_release = kept(version, state["name"], repository.archive)
        pinned = {pin.version: pin.tree for pin in pins.all}
        if pinned.get(version, same_release.tree) != same_release.tree:
            step = f"{to_type('rebase', version, '--abort')}, then {to_type('rebase', version)}"
            what = "has been pinned since, with another tree"
            raise Refused.of(str(Outcome.TREE_MISMATCH), f"v{version}", what, step)
        target = Target(root, pins, same_release)
        outlook = forecast(queue, pins, same_release)
        row = outlook.conflict
        if row is None and reason is not None:
            what, step = "no conflict is laid out", to_type("rebase", version, "--continue")
            raise Refused.of("nothing-to-continue", repository.shown, what, step)
        # written by a run that was killed behind it; or none was laid out
        if row is None or row.patch != state["patch"]:
            return _write(target, queue, outlook, ())
        if state["below"] != digest(queue, [*_below(outlook), row]):
            raise _stale(repository)
        return _decide(target, queue, outlook, row, reason)


def _decide(
    target: Target, queue: Queue, outlook: Forecast, row: Row, reason: str | None
) -> Progress:
    """Write what a person decided about the conflict `row`: what the repository holds, or `reason`,
    why the release goes without the patch."""
    pins, release = target.pins, target.release
    if reason is not None:
        gap = skipped(queue, row.patch, release.version, pins, reason)
        after = forecast(with_changes(queue, [gap]), pins, release, {row.patch: reason})
        return _write(target, queue, after, (gap,))
    repository = Repository(target.root, release.version)
    solution = repository.solution(release, contents(queue, [*_below(outlook), row]))
    if not solution:
        raise _unsolved(repository, row.patch)
    return _write(target, queue, forecast(queue, pins, release, {row.patch: solution}), ())


def _unsolved(repository: Repository, patch: str) -> Refused:
    what = f"changes nothing as {repository.shown} stands"
    skip = to_type("rebase", repository.version, "--skip REASON")
    step = f"if upstream has the change, correct its Probe in patches/ and continue; else {skip}"
    return Refused.of("empty-patch", f"patches/{patch}", what, step)


def abort(root: Path, version: Version) -> None:
    """Throw the repository away; what was written to the queue stays. Raises Refused where there is
    none."""
    with _alone(root):
        repository = Repository(root, version)
        if repository.state is None and not repository.path.exists():
            what = "no rebase is under way"
            step = f"{to_type('rebase', version)} begins one"
            raise Refused.of("nothing-to-abort", repository.shown, what, step)
        repository.remove()


def under_way(root: Path) -> list[Version]:
    """The releases that have a repository, finished or not."""
    names = (
        path.name.removeprefix("rebase-")
        for path in sorted((root / "work").glob("rebase-*"))
        if (path / ".git/patchqueue").is_dir()
    )
    return [Version(name) for name in names]


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Be the only rebase; what a killed one had made good is finished first."""
    with atomic.locked(root / atomic.QUEUE_LOCK):
        for name in atomic.recover(root, root / atomic.JOURNAL):
            LOG.info(f"{name}: written, as a run that was killed had begun to")
        yield


def _below(outlook: Forecast) -> list[Row]:
    """The rows before the first conflict."""
    rows = outlook.rows
    return list(rows[: rows.index(outlook.conflict)] if outlook.conflict else rows)


def _write(target: Target, queue: Queue, outlook: Forecast, first: tuple[Change, ...]) -> Progress:
    """Plan, prove, write, go on. first: changes that are decided already."""
    rows = _below(outlook)
    planned = plan(target, with_changes(queue, first), rows, outlook.conflict is None)
    changes = (*first, *planned)
    prove(target, queue, rows, changes)
    write(target.root, changes)
    if outlook.conflict is None:
        Repository(target.root, target.release.version).remove()
        return Progress(outlook, changes)
    written = load_queue(target.root)
    return _next(target, written, forecast(written, target.pins, target.release), changes)


def _next(target: Target, queue: Queue, outlook: Forecast, changes: tuple[Change, ...]) -> Progress:
    """Lay out the first conflict, or what needs no hand; or leave it as it is where it is laid out
    already."""
    repository = Repository(target.root, target.release.version)
    state, row, rows = repository.state, outlook.conflict, _below(outlook)
    rows += [row] if row else []
    tree, patch = target.release.tree, row.patch if row else ""
    if state and (state["patch"], state["below"], state["tree"]) == (
        patch,
        digest(queue, rows),
        tree,
    ):
        return Progress(outlook, changes, repository.path, repository.regions())
    if not changes and repository.edited():
        raise _stale(repository)
    if state and state["tree"] != tree:
        repository.remove()
    stages = Stages(queue, outlook.nearest)
    regions = repository.lay_out(queue, stages, target.release, rows, patch)
    return Progress(outlook, changes, repository.path, regions)


def _stale(repository: Repository) -> Refused:
    what = "holds edits, and the queue or the release is no longer what they were made on"
    step = (
        f"keep what you need of them; {to_type('rebase', f'{repository.version} --abort')}"
        " throws them away"
    )
    return Refused.of("stale-rebase", repository.shown, what, step)


@dataclass(frozen=True)
class Target:
    """The release that the queue is carried to. root: the project's folder."""

    root: Path
    pins: Pins
    release: Release

    @property
    def version(self) -> Version:
        return self.release.version

    @property
    def pinned(self) -> list[Version]:
        return [pin.version for pin in self.pins.all]


def plan(target: Target, queue: Queue, rows: Iterable[Row], complete: bool) -> list[Change]:
    """The changes that these rows need, the release's tree last. complete: they are all
    there are, so that the tree is known.

    Raises Refused where a guard cannot be made right.
    """
    rows, version = list(rows), target.version
    old = (target.root / series.FILE).read_text(encoding="utf-8")
    lines = Lines(old)
    changes: list[Change] = []
    for row in rows:
        entry = next(entry for entry in queue.entries if entry.name == row.patch)
        if row.outcome is Outcome.MERGED_UPSTREAM:
            changes += _end(target, queue, entry, lines)
        elif row.outcome is Outcome.NOT_SELECTED and entry.is_for(version):
            lines.guard(entry.name, _rest(target, entry))
        elif row.outcome is Outcome.NEEDS_REFRESH or (
            row.outcome is Outcome.APPLIED and not entry.is_for(version)
        ):
            changes += _carry(target, queue, entry, row, lines)
    changes += (
        [Change(str(series.FILE), lines.text.encode(), "guards")] if lines.text != old else []
    )
    new = with_changes(queue, changes)
    if not complete or version not in target.pinned:
        return changes
    tree = hash_python(listing_with(target.release.listing(), contents(new, rows)))
    return changes + change_of(target.root, {version: tree})


def prove(target: Target, queue: Queue, rows: Iterable[Row], changes: Iterable[Change]) -> None:
    """Raise Refused unless the queue with these changes passes lint, gives every other pin what it
    got, and the release just what the rows say: replayed strictly, byte for byte.
    """
    new, version = with_changes(queue, changes), target.version
    problems = series.lint(target.root, new) + series.overlapping(new, version)
    for pin in target.pins.all:
        edits_of = [
            [(patch.name, edits(patch)) for patch in each.select(pin.version)]
            for each in (queue, new)
        ]
        if pin.version != version and edits_of[0] != edits_of[1]:
            others = sorted({name for name, _ in set(edits_of[0]) ^ set(edits_of[1])})
            what, step = f"{pin.tag} would get other patches", "write this release's guards by hand"
            problems.append(Problem("guard-not-split", str(series.FILE), f"{what}: {others}", step))
    applied = [row for row in rows if row.outcome in (Outcome.APPLIED, Outcome.NEEDS_REFRESH)]
    bases = [queue.base(row.patch) for row in applied]
    selected = [patch for patch in new.select(version) if new.base(patch.name) in bases]
    overlay = new.overlay_for(selected)
    replayed = replay(selected, overlay, target.release.read, str(version))
    after = {path: content for row in applied for path, content in row.after.items()}
    wrong = [path for path, content in after.items() if replayed.files.get(path) != content]
    if [new.base(patch.name) for patch in selected] != bases or (wrong and not replayed.problems):
        what = f"does not give the tree that was made: {' '.join(wrong) or 'other patches'}"
        problems.append(Problem("not-proved", f"the queue on {version}", what, "report this"))
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
        f"Gap: {edit.guard_for(version, [pin.version for pin in pins.all])}:"
        f" {' '.join(reason.split())}\n"
    )
    head, diff = patchfile.split(queue.patches[base].content.decode("utf-8"))
    fields = list(re.finditer(r"(?m)^(?:Gap|Probe):.*\n(?:[ \t].*\n)*", head))
    end = fields[-1].end() if fields else len(head)
    return Change(
        f"patches/{base}",
        f"{head[:end]}{gap}{head[end:]}{diff}".encode(),
        f"{version} goes without it",
    )


def _rest(target: Target, entry: Entry) -> str:
    """The entry's guard without the release. Raises Refused where no pinned release is left."""
    rest = edit.split(entry.text, target.version, target.pinned)[0]
    if not rest:
        what = f"{entry.name} would be for no pinned release any more"
        step = "remove it from series and patches/, then run this again"
        raise Refused.of("empty-guard", f"{series.FILE}:{entry.line}", what, step)
    return rest


def _end(target: Target, queue: Queue, entry: Entry, lines: Lines) -> list[Change]:
    """Merged upstream: the guard stops before the release, and the header says since when."""
    version = target.version
    if entry.is_for(version):
        lines.guard(entry.name, _rest(target, entry))
    text = queue.patches[entry.base].content.decode("utf-8")
    status = queue.patches[entry.base].header.get("Upstream-Status")
    merged = re.fullmatch(r"Merged (.+)", status)
    if status.startswith("Inappropriate") or (merged and Version(merged.group(1)) <= version):
        return []
    new = re.sub(r"(?m)^Upstream-Status:.*$", f"Upstream-Status: Merged {version}", text, count=1)
    return [Change(f"patches/{entry.base}", new.encode(), f"merged upstream: {status} before")]


def _carry(target: Target, queue: Queue, entry: Entry, row: Row, lines: Lines) -> list[Change]:
    """The patch for the release: its own text where that matches, with less context if need
    be; else a variant."""
    version, pinned = target.version, target.pinned
    is_for = entry.is_for(version)
    wider = entry.text if is_for else edit.extended(entry.text, version, pinned)
    diff = unified(row.before, row.after)
    if wider and _is_disjoint(target, queue, entry, wider):
        text = _text(target, queue, entry, row, diff) if row.lines is None else None
        if (text is not None or row.lines is not None) and not is_for:
            lines.guard(entry.name, wider)
        if row.lines is not None:
            return []
        if text is not None:
            content = of_files(queue.patches[entry.name], text.files).content
            why = f"for {version} too, with the context on which its releases agree"
            return [Change(f"patches/{entry.name}", content, why)]
    why = f"for {version}: {row.why or 'fits as it is'}"
    return [variant(queue, entry, version, pinned, lines, diff, why)]


def _text(target: Target, queue: Queue, entry: Entry, row: Row, diff: str) -> Patch | None:
    """One text of a patch for the releases that it serves and for the new one.

    Releases that are not cached are not fetched for this: then they cannot.
    """
    patch = queue.patches[entry.name]
    others = [pin for pin in target.pins.all if pin.version != target.version]
    served = [pin for pin in others if entry.is_for(pin.version)]
    if not all(map(source.is_cached, served)):
        return None
    rows = []
    for pin in served:
        steps = Selection(queue, pin).replay(source.fetch(pin, None).read).steps
        rows.append(next(step for step in steps if step.patch == entry.name))
    rows.append(row)
    text = shared(of_files(patch, patchfile.parse_diff(diff)), [each.before for each in rows])
    same = text and all(apply_patch(text, each.before.get).after == each.after for each in rows)
    return text if same else None


def _is_disjoint(target: Target, queue: Queue, entry: Entry, guard: str) -> bool:
    """Whether the entry may have this guard beside its other variants."""
    wider = series.parse(f"{entry.name} # {guard}\n")[0][0]
    others = [each for each in queue.entries if each.base == entry.base and each.name != entry.name]
    versions = filter(wider.is_for, (*target.pinned, target.version))
    return not any(other.is_for(version) for version in versions for other in others)
