"""Write what a person did in work/<tag>/ back to the queue: edited patches, new ones, and the
overlay.

Each patch is read from the copies that quilt keeps of its files. A text that several releases share
is matched on them anew; where it does not match, this release gets a variant. All changes are
planned, proved, and written whole or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.version import Version

from ..files import atomic
from ..files.tree import differing, sha256
from ..outcome import Refused, some, to_type
from ..queue import edit, patchfile, series
from ..queue.edit import Change, Lines, joined, tried, variant, write
from ..queue.patchfile import Patch
from ..queue.series import OVERLAY_PATCH, PROVENANCE, Entry, Queue
from ..upstream import pins as pinning
from ..upstream import source
from ..upstream.pins import Pin, Pins
from ..upstream.source import Source
from . import worktree
from .apply import Report, apply, finish_writing, load_queue
from .check import change_of
from .matching import Row, apply_patch, in_front, listing_with, replay, shared, unified
from .selection import Selection
from .worktree import State, WorkTree, content, foreign, listed, lowest

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


def refresh(root: Path, pins: Pins, pin: Pin, add: bool) -> tuple[list[Change], Report | None]:
    """Write the edits of work/<tag>/ back; what was written, and the apply that followed (None
    where lint stopped it).

    add: edits of files that are in no patch go into the top one. Raises Refused, with nothing
    written, where an edit would be lost, or another release broken.
    """
    finish_writing(root)
    with atomic.locked(root / atomic.QUEUE_LOCK):
        queue, problems = series.read(root)
        if unreadable := [problem for problem in problems if problem.name in UNREADABLE]:
            raise Refused(unreadable)
        pristine = source.fetch(pin, None)
        tree = read_tree(root, pin, add, pristine) or EditedTree()
        planned = _Refresh(root, pins, pin, queue, tree, pristine).changes()
        changes = [each for each in planned if content(root / each.path) != each.content]
        write(root, changes)
    try:
        load_queue(root)
    except Refused as refusal:
        for problem in refusal.problems:
            LOG.info(str(problem))
        return changes, None
    return changes, apply(root, pinning.load(root).find(pin.tag), None, discard=True)


@dataclass(frozen=True)
class EditedTree:
    """A tree that holds edits. layers: its patches, bottom first; headers: their own."""

    layers: tuple[Row, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    listing: Mapping[str, str] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def recorded(self) -> dict[str, str]:
        """The patches as they were left in the tree, name -> sha256."""
        return dict(self.record.get("texts", {}))

    @property
    def made_of(self) -> dict[str, str]:
        """The texts of the queue and the overlay files it was made of, name -> sha256."""
        return _made_of(self.record)


@dataclass(frozen=True)
class _Refresh:
    """How the queue comes to hold what a tree holds."""

    root: Path
    pins: Pins
    pin: Pin
    queue: Queue
    tree: EditedTree
    pristine: Source

    @property
    def pinned(self) -> list[Version]:
        return [pin.version for pin in self.pins.all]

    @cached_property
    def here(self) -> dict[str, Row]:
        """The queue's patches for the release, as they are applied to it."""
        rows = Selection(self.queue, self.pin).replay(self.pristine.read).steps
        return {row.patch: row for row in rows if row.as_is}

    def changes(self) -> list[Change]:
        """The changes to write, proved on this release. Raises Refused where there are none."""
        changes = [*self._texts(), *self._overlay()]
        changed_queue, _ = tried(self.queue, changes)
        trees = {
            pin.version: Selection(changed_queue, pin).patched_tree(source.fetch(pin, None))
            for pin in self.pins.all
            if pin == self.pin or _changes(self.queue, changed_queue, pin)
        }
        self._refuse_to_lose(Selection(changed_queue, self.pin))
        return changes + change_of(self.root, trees)

    def _refuse_to_lose(self, selection: Selection) -> None:
        """The tree is about to be built anew from the queue: never when that would lose an edit."""
        planned = selection.plan(self.pristine.read, self.pristine.origin)
        expected = listing_with(self.pristine.listing(), planned.files)
        # where the queue has moved on the tree is only older
        before, now = self.tree.made_of, _made_of(planned.record)
        moved = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
        layers = (*self.tree.layers, *planned.layers)
        newer = moved.union(*(layer.before for layer in layers if layer.patch in moved))
        present = self.tree.listing
        lost = [path for path in differing(expected, present) if path in {*present} - newer]
        if lost:
            what = f"the queue does not make the tree's own {' '.join(lost[:5])}"
            add = to_type("quilt", self.pin.tag, "add FILE")
            step = f"the tree stays as it is; say which patch should have the edit: {add}"
            raise Refused.of("edits-not-kept", f"work/{self.pin.tag}", what, step)

    def _overlay(self) -> Iterator[Change]:
        """The overlay files that were edited in the tree, and not in the queue too."""
        edited = {layer.patch: layer.after for layer in self.tree.layers}.get(OVERLAY_PATCH, {})
        for path, text in edited.items():
            recorded, ours = self.tree.made_of.get(path), self.queue.overlay.get(path)
            if not text or path == PROVENANCE or recorded == sha256(text):
                continue
            if recorded and ours not in (None, text) and sha256(ours or b"") != recorded:
                raise _changed_twice(self.pin, f"overlay/{path}")
            yield Change(f"overlay/{path}", text, "new" if ours is None else "refreshed")

    def _texts(self) -> Iterator[Change]:
        """The patches that the tree has otherwise, and what that makes of the series."""
        old = (self.root / series.FILE).read_text(encoding="utf-8")
        lines, below, queue = Lines(old), "", self.queue
        entries = {entry.name: entry for entry in self.queue.entries}
        for layer in self.tree.layers:
            name, head = layer.patch, self.tree.headers[layer.patch]
            diff = "" if name == OVERLAY_PATCH else unified(layer.before, layer.after)
            if not diff or (name not in entries and name in self.tree.recorded):
                self._leave_out(name, head, diff)
                continue
            above, below = below, name
            if name not in entries:
                _refuse_name(name)
                lines.insert(above, name, edit.guard_for(self.pin.version, self.pinned))
                content, why = joined(head or TEMPLATE, diff), f"new, for {self.pin.tag}"
                yield Change(f"patches/{name}", content, why)
                continue
            # started in the tree, its header filled in in patches/
            if name not in self.tree.recorded and not head:
                head = patchfile.split((self.root / "patches" / name).read_text("utf-8"))[0]
            if self._is_edited(name, head, diff):
                change = self._text(queue, entries[name], joined(head, diff), lines)
                if change.path == f"patches/{name}":
                    queue, _ = tried(queue, [change])
                yield change
        if lines.text != old:
            yield Change(str(series.FILE), lines.text.encode(), "guards")

    def _leave_out(self, name: str, head: str, diff: str) -> None:
        """Say why a patch of the tree is not written, unless an edit would be lost."""
        if name in self.here and not diff:
            what = f"changes nothing any more in work/{self.pin.tag}"
            step = (
                "put the change back there; or drop the patch: delete the file and its line in"
                f" series, then {to_type('apply', self.pin.tag, '--discard')}"
            )
            raise Refused.of("empty-patch", f"patches/{name}", what, step)
        if diff and self.tree.recorded[name] != sha256(joined(head, diff)):
            what = f"is not in the queue any more, and was edited in work/{self.pin.tag}"
            step = (
                "put the patch back into patches/ and series, then refresh again; or"
                f" {to_type('apply', self.pin.tag, '--discard')}"
            )
            raise Refused.of("changed-twice", f"patches/{name}", what, step)
        if diff:
            LOG.info(f"{name} is not in the queue any more; the tree is made without it")
        elif name != OVERLAY_PATCH:
            LOG.info(f"{name} changes nothing yet; it stays in the tree")

    def _is_edited(self, name: str, head: str, diff: str) -> bool:
        """Whether a patch was edited in the tree. Raises Refused where it was in the queue too."""
        content, ours = joined(head, diff), self.queue.patches[name]
        if self.tree.recorded.get(name) == sha256(content):
            return False  # the queue may have a newer text
        patch, _ = patchfile.read(name, content)
        base, is_headed = self.queue.base(name), head.strip() == ours.head.strip()
        rows = [  # of the patch, or of what was written as its variant
            row
            for other, row in self.here.items()
            if self.queue.base(other) == base and (other != name or is_headed)
        ]
        if patch and any(apply_patch(patch, row.before.get).after == row.after for row in rows):
            return False
        made_of = self.tree.made_of.get(name)
        if made_of and (name not in self.here or made_of != sha256(ours.content)):
            raise _changed_twice(self.pin, f"patches/{name}")
        return True

    def _text(self, queue: Queue, entry: Entry, content: bytes, lines: Lines) -> Change:
        """The patch itself where it matches on every release that it is for; else a variant."""
        patch, _ = patchfile.read(entry.name, content)
        served = [pin for pin in self.pins.all if pin == self.pin or entry.is_for(pin.version)]
        if patch is None or served == [self.pin]:
            return Change(f"patches/{entry.name}", content, "refreshed")
        trees = {pin.tag: _below(queue, patch, pin) for pin in served}
        tags = [tag for tag in trees if tag != self.pin.tag]
        if text := shared(patch, [*trees.values()]):
            why = f"refreshed, for {' '.join(tags)} too"
            return Change(f"patches/{entry.name}", text.content, why)
        own = trees[self.pin.tag]
        broken = [tag for tag in tags if not shared(patch, [own, trees[tag]])] or tags
        why = f"new variant: as it is on {self.pin.tag} it does not fit {' '.join(broken)}"
        version, pinned = self.pin.version, self.pinned
        return variant(queue, entry, version, pinned, lines, patch.diff, why)


def _refuse_name(name: str) -> None:
    """Raise Refused for a new patch's name that the series cannot have, or a variant's."""
    if "@" in name or series.parse(f"{name}  # >=0")[1]:
        what = "is not like topic/verb-object.patch, in small letters"
        step = "`quilt rename` gives the patch another name, as nsa/skip-pointer-check.patch"
        raise Refused.of("bad-path", name, what, step)


def _below(queue: Queue, patch: Patch, pin: Pin) -> dict[str, bytes]:
    """The files of a release that a patch changes, as they are below it."""
    read, patches = source.fetch(pin, None).read, queue.select(pin.version)
    number = [each.name for each in patches].index(patch.name)
    below = in_front(replay(patches[:number], {}, read, pin.tag).files, read)
    contents = {file.path: below(file.path) for file in patch.files}
    return {path: content for path, content in contents.items() if content is not None}


def _made_of(record: Mapping[str, Any]) -> dict[str, str]:
    patches = {patch["name"]: patch["text"] for patch in record.get("patches", ())}
    return patches | {file["path"]: file["sha256"] for file in record.get("overlay", ())}


def _changed_twice(pin: Pin, path: str) -> Refused:
    what = f"was changed in the queue and in work/{pin.tag}"
    step = "keep one of the two: put the other aside, then refresh again"
    return Refused.of("changed-twice", path, what, step)


def _changes(queue: Queue, changed_queue: Queue, pin: Pin) -> bool:
    """Whether a release's tree is to be pinned anew."""
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


def read_tree(root: Path, pin: Pin, add: bool, pristine: Source) -> EditedTree | None:
    """The content of work/<tag>/; None where it holds no edits. Raises Refused where an edit
    belongs to no patch, or patches are popped."""
    tree, where = WorkTree(root, pin.tag), f"work/{pin.tag}"
    with tree.locked():
        inspection = tree.inspect()
        if inspection.state is State.FOREIGN:
            raise foreign(pin)
        if inspection.state is not State.CHANGED:
            return None
        layers = worktree.layers(tree.path)
        if popped := sorted({*listed(tree.path)} - {layer.patch for layer in layers}):
            # a killed `quilt new` lists a patch without a text, which quilt does not push
            begun = (f"delete {one}" for one in popped if not content(tree.path / "patches" / one))
            step = f"{to_type('quilt', pin.tag, next(begun, 'push -a'))}, then refresh again"
            raise Refused.of("popped-tree", where, f"misses popped patches: {some(popped)}", step)
        stray = _stray(tree.path, layers, inspection.listing, pristine)
        texts = {row.patch: content(tree.path / "patches" / row.patch).decode() for row in layers}
    if stray and not (add and layers):
        adds, before = to_type("refresh", pin.tag, "--add"), to_type("quilt", pin.tag, "add FILE")
        step = f"{adds} takes these into the top patch; {before} comes before an edit"
        what = f"edited, but in no patch: {' '.join(stray)}"
        raise Refused.of("stray-edits", where, what, step)
    if stray:
        original, top = {path: pristine.read(path) or b"" for path in stray}, layers[-1]
        layers[-1] = replace(top, before={**top.before, **original}, after={**top.after, **stray})
    headers = {name: patchfile.split(text)[0] for name, text in texts.items()}
    return EditedTree(tuple(layers), headers, inspection.listing, inspection.record)


def _stray(
    tree: Path, layers: list[Row], listing: Mapping[str, str], pristine: Source
) -> dict[str, bytes]:
    """The edits that are in no patch, path -> content. listing: the tree's."""
    below = lowest(layers)
    popped = {path: digest for path, digest in listing.items() if path not in below}
    popped = listing_with(popped, {path: text for path, text in below.items() if text})
    stray = {}
    for name in differing(popped, pristine.listing()):
        file = tree / name
        if name not in popped or file.suffix in (".orig", ".rej") or name.endswith("~"):
            what = "is missing, or left over from an editor or a failed push"
            step = "put it right in the tree, then refresh again"
            raise Refused.of("stray-edits", name, what, step)
        stray[name] = below.get(name) or content(file)
    return stray
