"""Carry the queue to another release: what conflicts is solved one at a time in a throw-away git
repository.

The queue itself is the state: what is solved is written to it at once, and every run starts from
what it then says. The repository, work/rebase-VERSION/, holds one conflict; it can be thrown away
and made again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from ..applying.apply import load_queue
from ..applying.matching import Row
from ..files import atomic
from ..hint import to_type
from ..outcome import Outcome, Refused
from ..queue.edit import Change, with_changes, write
from ..queue.series import Queue
from ..upstream.pins import Pins
from ..upstream.release import Release, kept
from .conflictrepo import Region, Repository
from .forecast import Forecast, Stages, contents, digest, forecast
from .plan import Target, plan, prove, skipped

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
        rows = [*_below(outlook), row]
        if state["below"] != digest(queue, rows):
            raise _stale(repository)
        if reason is not None:
            gap = skipped(queue, row.patch, version, pins, reason)
            decided = {row.patch: reason}
            after = forecast(with_changes(queue, [gap]), pins, same_release, decided)
            return _write(target, queue, after, (gap,))
        solution = repository.solution(same_release, contents(queue, rows))
        if not solution:
            raise _unsolved(repository, row.patch)
        after = forecast(queue, pins, same_release, {row.patch: solution})
        return _write(target, queue, after, ())


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
