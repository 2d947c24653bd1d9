"""Write what a person did in work/<tag>/ back to the queue: edited patches, new ones, and the
overlay.

Each patch is read from the copies that quilt keeps of its files, and written in one form. A text
that several releases share is matched on them anew, with less context where theirs differs; where
it does not match, this release gets a variant. All changes are planned, proved by the replay, and
written whole or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..files import atomic
from ..files.tree import differing, sha256
from ..outcome import Refused, some, to_type
from ..queue import edit, patchfile, series
from ..queue.edit import Change, Lines, joined, tried, variant, write
from ..queue.patchfile import Patch
from ..queue.series import PROVENANCE, Entry, Queue
from ..upstream import pins as pinning
from ..upstream import source
from ..upstream.pins import Pin, Pins
from ..upstream.source import Source
from . import quilt as quilts
from .apply import Report, apply, finish_writing, load_queue
from .check import change_of
from .context import rendered, shared
from .matching import Row, apply_patch, in_front, listing_with, replay
from .selection import Plan, Selection
from .worktree import State, TreeEdits, WorkTree, foreign, read_edits, read_record

LOG = logging.getLogger(__name__)

# of a series that cannot be edited
UNREADABLE = ("no-series", "missing-patch", "bad-guard", "empty-guard", "duplicate")
TEMPLATE = """Subject: TODO
Description: TODO
Origin: own
Upstream-Status: Pending
Probe: TODO
Test: TODO
"""


def new(root: Path, pin: Pin, name: str) -> Path:
    """Start an empty patch on top of work/<tag>/ and return its file there. The series learns of it
    at refresh.

    Raises Refused for a name that is not topic/verb-object, or one that the series has.
    """
    patch = name.removesuffix(".patch") + ".patch"
    finish_writing(root)
    _refuse_name(root, pin, name, patch)
    tree = WorkTree(root, pin.tag)
    with tree.locked():
        state = tree.inspect().state
    if state in (State.ABSENT, State.UNAPPLIED):
        apply(root, pin, None)
    with tree.locked() as lock:
        if tree.inspect().state is State.FOREIGN:
            raise foreign(pin)
        file = tree.path / "patches" / patch
        if not quilts.is_begun(tree.path, patch):
            if patch in quilts.listed(tree.path) or file.exists():
                what = f"{patch} is in the tree already"
                raise Refused.of("duplicate", f"work/{pin.tag}", what, "choose another name")
            if lost := set(quilts.applied(tree.path)) - {*quilts.listed(tree.path)}:
                what = f"patches/series lacks patches that are applied: {some(sorted(lost))}"
                step = f"list them there again; or {to_type('apply', pin.tag, '--discard')}"
                raise Refused.of("edited-tree", f"work/{pin.tag}", what, step)
            # beside the tree: a killed `quilt new` leaves half a series, or a patch that is listed
            # and not applied
            quilts.find(source.cache_folder()).run(tree.start(copy=True), "new", patch, lock=lock)
            tree.finish(tree.finished_listing())
        # of a new topic: `quilt header -e` makes none
        file.parent.mkdir(parents=True, exist_ok=True)
    return file


def _refuse_name(root: Path, pin: Pin, name: str, patch: str) -> None:
    """Raise Refused for a name that the series has, or that is not like topic/verb-object."""
    entries, _ = series.parse((root / series.FILE).read_text(encoding="utf-8"))
    if patch in (entry.name for entry in entries):
        raise Refused.of(
            "duplicate", series.FILE.name, f"{patch} is listed already", "choose another name"
        )
    if "@" in patch:
        what = "names a variant, which `new` does not start"
        step = (
            f"edit the patch in work/{pin.tag}: {to_type('refresh', pin.tag)} writes a variant"
            " where its text does not fit every release"
        )
        raise Refused.of("bad-path", repr(name), what, step)
    if series.parse(f"{patch}  # >=0")[1]:
        what = "is not like topic/verb-object, in small letters"
        step = f"for example: {to_type('new', 'nsa/skip-pointer-check')}"
        raise Refused.of("bad-path", repr(name), what, step)


def refresh(root: Path, pins: Pins, pin: Pin, add: bool) -> tuple[list[Change], Report | None]:
    """Write the edits of work/<tag>/ back; what was written, and the apply that followed (None
    where lint stopped it).

    Without such a tree (or with one that holds no edits) the trees that the queue makes are written
    to upstream/pins.toml. add: edits of files that are in no patch go into the top one. Raises
    Refused, with nothing written, where an edit would be lost, or another release broken.
    """
    finish_writing(root)
    with atomic.locked(root / atomic.QUEUE_LOCK):
        queue, problems = series.read(root)
        if unreadable := [problem for problem in problems if problem.name in UNREADABLE]:
            raise Refused(unreadable)
        pristine = _made_of(root, pin)
        edits = read_edits(root, pin, add, pristine)
        planned = _plan(root, pins, pin, queue, edits or TreeEdits(), pristine)
        changes = [each for each in planned if quilts.content(root / each.path) != each.content]
        write(root, changes)
    try:
        load_queue(root)
    except Refused as refusal:
        for problem in refusal.problems:
            LOG.info(str(problem))
        return changes, None
    return changes, apply(root, pinning.load(root).find(pin.tag), None, discard=True)


def _made_of(root: Path, pin: Pin) -> Source:
    """The release as work/<tag>/ was made of it: a wheel has files that a checkout has not."""
    tree = WorkTree(root, pin.tag)
    with tree.locked():
        record = read_record(tree.path)
    kept = source.kept(pin, record["source"]["sha256"]) if record else None
    return kept or source.fetch(pin, None)


def _plan(
    root: Path, pins: Pins, pin: Pin, queue: Queue, tree: TreeEdits, pristine: Source
) -> list[Change]:
    """The changes that make the queue hold what the tree holds, proved on this release. Raises
    Refused where there are none."""
    changes = list(_texts(root, pins, pin, queue, tree))
    changes += _overlay(pin, queue, tree)
    changed_queue, _ = tried(queue, changes)
    changed_pins = [
        other for other in pins.all if other == pin or _changes(queue, changed_queue, other)
    ]
    trees = {
        other.version: Selection(changed_queue, other).patched_tree(source.fetch(other, None))
        for other in changed_pins
    }
    changes += change_of(root, trees)
    planned = Selection(changed_queue, pin).plan(pristine.read, pristine.origin)
    expected = listing_with(pristine.listing(), planned.files)
    newer = _moved_on(planned, tree)
    lost = [
        path
        for path in differing(expected, tree.listing)
        if path in tree.listing and path not in newer
    ]
    # the tree is about to be built anew from the queue: never when that would lose an edit
    if lost:
        what = f"the queue does not make the tree's own {' '.join(lost[:5])}"
        add = to_type("quilt", pin.tag, "add FILE")
        step = f"the tree stays as it is; say which patch should have the edit: {add}"
        raise Refused.of("edits-not-kept", f"work/{pin.tag}", what, step)
    return changes


def _overlay(pin: Pin, queue: Queue, tree: TreeEdits) -> Iterator[Change]:
    """The overlay files that were edited in the tree. Raises Refused where one was edited in the
    queue too."""
    for path, text in tree.overlay.items():
        recorded, ours = tree.recorded_overlay.get(path), queue.overlay.get(path)
        if path == PROVENANCE or recorded == sha256(text):
            continue
        if recorded and ours not in (None, text) and sha256(ours or b"") != recorded:
            raise _changed_twice(pin, f"overlay/{path}")
        yield Change(f"overlay/{path}", text, "new" if ours is None else "refreshed")


def _changed_twice(pin: Pin, path: str) -> Refused:
    what = f"was changed in the queue and in work/{pin.tag}"
    step = "keep one of the two: put the other aside, then refresh again"
    return Refused.of("changed-twice", path, what, step)


def _changes(queue: Queue, changed_queue: Queue, pin: Pin) -> bool:
    """Whether a release's tree is to be pinned anew. Where its texts are the same and it is not
    cached, it is not fetched for that."""
    patches = [either.select(pin.version) for either in (queue, changed_queue)]
    texts = [[(patch.name, patch.diff) for patch in either] for either in patches]
    if texts[0] != texts[1]:
        return True
    if queue.overlay_for(patches[0]) == changed_queue.overlay_for(patches[1]):
        return False
    if not source.is_cached(pin):
        LOG.info(
            f"{pin.tag} is not in the cache, and its tree stays as it was pinned;"
            f" {to_type('check', '--write')} fetches it and pins it"
        )
    return source.is_cached(pin)


def _moved_on(planned: Plan, tree: TreeEdits) -> set[str]:
    """Files that the queue changes otherwise than it did when the tree was made, or changes no
    more: there the tree is only older, not edited."""
    now = {name: sha256(text) for name, text in planned.stack.items()}
    newer = [
        patch
        for patch in planned.selection.patches
        if tree.recorded.get(patch.name) != now[patch.name]
    ]
    dropped = [
        file
        for name, _, diff in tree.texts
        if name in tree.recorded and name not in now
        for file in patchfile.parse_diff(diff)
    ]
    overlay = {
        path
        for path, digest in tree.recorded_overlay.items()
        if sha256(planned.files.get(path, b"")) != digest
    }
    return {PROVENANCE, *overlay} | {
        file.path for file in (*dropped, *(file for patch in newer for file in patch.files))
    }


def _texts(root: Path, pins: Pins, pin: Pin, queue: Queue, tree: TreeEdits) -> Iterator[Change]:
    """The patches that the tree has otherwise than the queue, and what that makes of the series."""
    old = (root / series.FILE).read_text(encoding="utf-8")
    lines, below, pinned = Lines.of(old), "", [other.version for other in pins.all]
    here = {
        row.patch: (row, rendered(queue.patches[row.patch], row))
        for row in Selection(queue, pin).replay(source.fetch(pin, None).read).steps
        if row.lines is not None
    }
    entries = {entry.name: entry for entry in queue.entries}
    for name, head, diff in tree.texts:
        if not diff and name in here:
            raise _undone(pin, name)
        if not diff:
            LOG.info(f"{name} changes nothing yet; it stays in the tree")
            continue
        if name not in entries and name in tree.recorded:
            _refuse_edited(pin, tree, name, joined(head, diff))
            LOG.info(f"{name} is not in the queue any more; the tree is made without it")
            continue
        above, below = below, name
        if name not in entries:
            lines.insert(above, name, edit.guard_for(pin.version, pinned))
            yield Change(f"patches/{name}", joined(head or TEMPLATE, diff), f"new, for {pin.tag}")
            continue
        # started in the tree, its header filled in in patches/
        if name not in tree.recorded and not head:
            head = patchfile.split((root / "patches" / name).read_text(encoding="utf-8"))[0]  # noqa: PLW2901
        content = joined(head, diff)
        if not _is_edited(queue, pin, tree, here, name, content):
            continue
        change = _shared(pins, pin, queue, entries[name], content, lines)
        queue = tried(queue, [change])[0] if change.path == f"patches/{name}" else queue
        yield change
    if lines.text != old:
        yield Change(str(series.FILE), lines.text.encode(), "guards")


def _undone(pin: Pin, name: str) -> Refused:
    what = f"changes nothing any more in work/{pin.tag}"
    step = (
        "put the change back there; or drop the patch: delete the file and its line in series,"
        f" then {to_type('apply', pin.tag, '--discard')}"
    )
    return Refused.of("empty-patch", f"patches/{name}", what, step)


def _refuse_edited(pin: Pin, tree: TreeEdits, name: str, content: bytes) -> None:
    """Raise Refused where a patch that the queue has dropped was edited in the tree."""
    if tree.recorded[name] != sha256(content):
        what = f"is not in the queue any more, and was edited in work/{pin.tag}"
        step = (
            "put the patch back into patches/ and series, then refresh again; or"
            f" {to_type('apply', pin.tag, '--discard')}"
        )
        raise Refused.of("changed-twice", f"patches/{name}", what, step)


def _is_edited(
    queue: Queue,
    pin: Pin,
    tree: TreeEdits,
    here: Mapping[str, tuple[Row, Patch]],
    name: str,
    content: bytes,
) -> bool:
    """Whether a patch was edited in the tree. Raises Refused where it was in the queue too."""
    today = here[name][1].content if name in here else b""
    if content == today or tree.recorded.get(name) == sha256(content):
        return False  # the queue has a newer text
    head, diff = patchfile.split(content.decode("utf-8"))
    is_same_head = head.strip() == patchfile.split(today.decode("utf-8"))[0].strip()
    patch, _ = patchfile.read(name, content)
    if name in here and is_same_head and patch is not None:
        row = here[name][0]
        if apply_patch(patch, row.before.get).after == row.after:
            return False  # the same change, as another diff writes it
    base = queue.base(name)
    if diff in (text.diff for other, (_, text) in here.items() if queue.base(other) == base):
        return False  # written already, as the release's own variant
    if tree.recorded.get(name, sha256(today)) != sha256(today):
        raise _changed_twice(pin, f"patches/{name}")
    return True


def _shared(
    pins: Pins, pin: Pin, queue: Queue, entry: Entry, content: bytes, lines: Lines
) -> Change:
    """The patch itself where its changes match on every release that it is for, with the context on
    which they agree; else a variant."""
    patch, _ = patchfile.read(entry.name, content)
    served = [other for other in pins.all if other == pin or entry.is_for(other.version)]
    if patch is None or served == [pin]:
        return Change(f"patches/{entry.name}", content, "refreshed")
    trees = {each.tag: _below(queue, patch, each) for each in served}
    tags = [tag for tag in trees if tag != pin.tag]
    if text := shared(patch, [*trees.values()]):
        why = f"refreshed, for {' '.join(tags)} too"
        return Change(f"patches/{entry.name}", text.content, why)
    broken = [tag for tag in tags if not shared(patch, [trees[pin.tag], trees[tag]])] or tags
    why = f"new variant: as it is on {pin.tag} it does not fit {' '.join(broken)}"
    pinned = [other.version for other in pins.all]
    diff = patchfile.split(content.decode("utf-8"))[1]
    return variant(queue, entry, pin.version, pinned, lines, diff, why)


def _below(queue: Queue, patch: Patch, pin: Pin) -> dict[str, bytes]:
    """The files of a release that a patch changes, as they are below it."""
    read, patches = source.fetch(pin, None).read, queue.select(pin.version)
    number = [each.name for each in patches].index(patch.name)
    below = in_front(replay(patches[:number], {}, read, pin.tag).files, read)
    contents = {file.path: below(file.path) for file in patch.files}
    return {path: content for path, content in contents.items() if content is not None}
