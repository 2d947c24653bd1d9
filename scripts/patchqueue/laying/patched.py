"""The tree that the queue makes of each release: found, compared with upstream/pins.toml, and
written there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.version import Version

from ..files import atomic
from ..files.locking import locked
from ..files.tree import hash_python, sha256
from ..hint import to_type
from ..outcome import Outcome, Problem, Refused
from ..queue import series
from ..queue.edit import Change
from ..queue.lint import lint
from ..queue.series import Queue
from ..upstream import pins as pinning
from ..upstream import source
from ..upstream.pins import Pin
from ..upstream.source import Source
from .apply import finish_writing
from .place import Files, Read, Row, in_front, lay_patch
from .selection import Selection

WRITE = f"{to_type('check', '--write')} writes it"


def rows_on(queue: Queue, version: Version, read: Read) -> tuple[list[Row], dict[str, bytes]]:
    """Each patch for a release, applied wherever its text is at one place; and all files made."""
    patches = queue.select(version)
    files = queue.overlay_for(patches)
    rows = []
    for patch in patches:
        row = lay_patch(patch, in_front(files, read))
        rows.append(row)
        files |= row.after
    return rows, files


def tree_with(listing: Mapping[str, str], files: Files) -> str:
    """The tree hash of a release with these files on it. listing: the release's own."""
    return hash_python({**listing, **{path: sha256(text) for path, text in files.items()}})


def tree_of(queue: Queue, pin: Pin, pristine: Source) -> str:
    """The tree hash of a release with the whole queue on it. Raises Refused where a patch does not
    apply."""
    planned = Selection(queue, pin).replay(pristine.read)
    if planned.problems:
        raise Refused(planned.problems)
    return tree_with(pristine.listing(), planned.files)


def changes_of(root: Path, trees: Mapping[Version, str]) -> list[Change]:
    """The change of upstream/pins.toml that gives these releases these trees; none where it has
    them."""
    old = (root / pinning.FILE).read_text(encoding="utf-8")
    new = pinning.with_patched(old, trees)
    return [Change(str(pinning.FILE), new.encode(), "trees")] if new != old else []


def write(root: Path, chosen: Iterable[Pin], origin: str | None) -> list[Change]:
    """Write the trees that the queue makes of these releases: for a change that is meant.

    Raises Refused, with nothing written, for a broken queue, and for a text that has no one place.
    """
    finish_writing(root)
    with locked(root / atomic.QUEUE_LOCK):
        queue, problems = series.read(root)
        if wrong := [*problems, *lint(root, queue)]:
            raise Refused(wrong)
        trees = {
            pin.version: tree_of(queue, pin, source.fetch(pin, origin))
            for pin in chosen
            if queue.select(pin.version)
        }
        changes = changes_of(root, trees)
        put(root, changes)
        return changes


def changed(root: Path, changes: Iterable[Change]) -> list[Change]:
    """Those that a file of the project does not hold yet; of one file the last."""
    last = {change.path: change for change in changes}.values()
    return [each for each in last if _content(root / each.path) != each.content]


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def put(root: Path, changes: Iterable[Change]) -> None:
    """Write them, all or none."""
    files = {change.path: change.content for change in changes}
    if files:
        atomic.write_all(root, files, root / atomic.JOURNAL)


def problem_of(pin: Pin, tree: str) -> Problem | None:
    """What is wrong with the tree that the queue makes of a release; None where nothing is."""
    where = f"{pinning.FILE}: {pin.version}"
    if not pin.patched:
        return Problem("no-tree-pinned", where, f"names no patched tree; it is {tree}", WRITE)
    if pin.patched != tree:
        what = f"the queue makes the tree {tree}, and patched is {pin.patched}"
        hint = f"where that is meant, {WRITE}; else `git diff` shows what changed"
        return Problem(str(Outcome.TREE_MISMATCH), where, what, hint)
    return None
