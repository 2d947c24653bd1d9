"""Apply the queue to one pinned release, and take it off again.

pin -> source -> selected patches -> strict replay -> build aside, a quilt tree -> record -> rename
into work/<tag>/.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..files import atomic
from ..files.tree import LAID, LISTING, differing, hash_python, list_folder, sha256
from ..outcome import Outcome, Refused, some, to_type
from ..queue import series
from ..queue.series import PROVENANCE, Queue
from ..upstream import source
from ..upstream.pins import Pin
from ..upstream.source import Source
from . import own_changes, worktree
from .matching import Read, listing_with
from .selection import Plan, select
from .worktree import RECORD, Inspection, State, WorkTree


@dataclass(frozen=True)
class Report:
    """The result of an apply or unapply. record: the tree's provenance."""

    pin: Pin
    outcome: Outcome
    path: Path
    record: dict[str, Any] = field(default_factory=dict)


def load_queue(root: Path, only: str = "") -> Queue:
    """The queue below `root`. Raises Refused with every problem that lint finds."""
    finish_writing(root)
    queue, problems = series.read(root)
    problems += series.lint(root, queue)
    if problems:
        raise Refused(problems)
    return queue.only(only)


def finish_writing(root: Path) -> list[str]:
    """Put in place what a run that was killed had made good to write (see files/atomic.py)."""
    if not (root / atomic.JOURNAL).is_dir():
        return []
    with atomic.locked(root / atomic.QUEUE_LOCK):
        return atomic.recover(root, root / atomic.JOURNAL)


def apply(root: Path, pin: Pin, origin: Path | None, discard: bool = False) -> Report:
    """Make work/<tag>/ the pinned release with the queue on it. Raises Refused, with nothing
    changed.

    discard: throw away edits in the tree that no patch holds.
    """
    selection = select(load_queue(root), pin)
    pristine = source.fetch(pin, origin)
    tree = WorkTree(root, pin.tag)
    with tree.locked():
        inspection = tree.inspect()
        record, outcome = inspection.record, Outcome.ALREADY_APPLIED
        is_current = inspection.state is State.APPLIED and selection.made(record)
        if not is_current or record["source"] != pristine.origin:
            planned = selection.plan(pristine.read, pristine.origin)
            refuse_to_lose(tree, inspection, discard)
            record, listing = _build(tree, pristine, planned)
            tree.finish(listing)
            outcome = Outcome.APPLIED
    return Report(pin, outcome, tree.path, record)


def unapply(root: Path, pin: Pin) -> Report:
    """Take every patch and overlay file off work/<tag>/: the pristine tree must be back."""
    tree = WorkTree(root, pin.tag)
    with tree.locked():
        inspection = tree.inspect()
        if inspection.state is State.ABSENT:
            raise no_tree(pin)
        if inspection.state is State.UNAPPLIED:
            return Report(pin, Outcome.ALREADY_APPLIED, tree.path, inspection.record)
        refuse_to_lose(tree, inspection, discard=False)
        aside = tree.start(copy=True)
        for name in (LISTING, LAID):
            (aside / name).unlink(missing_ok=True)
        worktree.pop(aside)
        listing = list_folder(aside)
        if hash_python(listing) != inspection.record["tree"]["before"]:
            what = "popping every patch did not bring the pristine tree back"
            step = f"{to_type('apply', pin.tag, '--discard')} builds it anew"
            raise Refused.of(str(Outcome.TREE_MISMATCH), f"work/{pin.tag}", what, step)
        tree.finish(listing)
    return Report(pin, Outcome.APPLIED, tree.path, inspection.record)


def no_tree(pin: Pin) -> Refused:
    step = f"{to_type('apply', pin.tag)} makes it"
    return Refused.of("no-tree", f"work/{pin.tag}", "there is no such tree", step)


def refuse_to_lose(tree: WorkTree, inspection: Inspection, discard: bool) -> None:
    """Raise Refused where replacing the tree would lose edits, unless `discard` is set."""
    where, again = f"work/{tree.tag}", to_type("apply", tree.tag, "--discard")
    if inspection.untracked:
        what = f"holds files of yours: {' '.join(inspection.untracked[:5])}"
        raise Refused.of("unknown-files", where, what, "move them out of the tree")
    if discard:
        return
    if inspection.state is State.FOREIGN:
        step = f"move it away, or {again} replaces it"
        raise Refused.of("foreign-tree", where, "is there, but this tool did not make it", step)
    if inspection.state is not State.CHANGED:
        return
    popped = len(inspection.record["patches"]) - len(worktree.applied(tree.path))
    if popped and not inspection.edited_patches:
        what = f"misses patches that were popped: {popped} of {len(inspection.record['patches'])}"
        step = f"{to_type('quilt', tree.tag, 'push -a')}, or {again}"
        raise Refused.of("popped-tree", where, what, step)
    files = [*inspection.edited_patches, *differing(tree.finished_listing(), inspection.listing)]
    what = f"has edits that the queue does not hold: {some(files) or 'patches partly popped'}"
    step = f"{to_type('refresh', tree.tag)} writes them back to patches/; {again} throws them away"
    raise Refused.of("edited-tree", where, what, step)


def _build(
    tree: WorkTree, pristine: Source, planned: Plan
) -> tuple[dict[str, Any], dict[str, str]]:
    """Build the tree aside; its record and its listing."""
    aside = tree.start()
    record, listing, beside = patched(pristine.unpack(aside), pristine.read, planned)
    texts = planned.texts()
    worktree.push(aside, texts, planned.layers)
    record["texts"] = {name: sha256(text) for name, text in texts.items()}
    (aside / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for path, content in beside.items():
        (aside / path).write_bytes(content)
    return record, listing


def patched(
    before: Mapping[str, str], read: Read, planned: Plan
) -> tuple[dict[str, Any], dict[str, str], dict[str, bytes]]:
    """(the record of the patched tree, its listing, the records beside the overlay's package).
    before, read: the release's listing and files."""
    after = listing_with(before, planned.files)
    tree = {"before": hash_python(before), "after": hash_python(after)}
    beside: dict[str, bytes] = {}
    if PROVENANCE in after:
        beside = own_changes.records(own_changes.described(planned.files, read, after), after)
    return planned.record | {"tree": tree}, after, beside
