"""Apply the queue to one pinned release in work/<tag>/, and take it off again; and what a patched
tree records of the queue's changes, so that edits of others are told apart.

The record, laid.json, lies beside the tree's listing. A change is known by hashes of its lines:
`whole`, with one line of context on both sides; `bare`, without, and how often the file has them.
It is in place where the file has it whole, or bare as often as before. Where a tree goes into git,
listing and record have the queue's files alone, and one hash of the others (`in_git`).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..files import atomic
from ..files.record import text_of as record_text
from ..files.tree import (
    LAID,
    LISTING,
    PREFIX,
    differing,
    hash_python,
    list_folder,
    own_listing,
    sha256,
    to_sha256sum,
)
from ..outcome import Outcome, Refused, some, to_type
from ..queue import series
from ..queue.series import PACKAGE, PROVENANCE, Queue
from ..upstream import source
from ..upstream.pins import Pin
from ..upstream.release import Edits
from ..upstream.source import Source
from . import worktree
from .matching import Read, listing_with, split_lines, text_of
from .selection import Plan, select
from .worktree import RECORD, Inspection, State, WorkTree

NO_EDITS = Edits()


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
        beside = records(described(planned.files, read, after), after)
    return planned.record | {"tree": tree}, after, beside


def described(
    files: Mapping[str, bytes], read: Read, listing: Mapping[str, str], edits: Edits = NO_EDITS
) -> dict[str, Any]:
    """The content of laid.json for a patched tree. files: all that the queue changes or adds; read:
    the tree before; listing: the patched tree's, whose hash a server prints."""
    changed = ((path, read(path), after) for path, after in sorted(files.items()))
    return {
        "files": {
            path.removeprefix(PREFIX): list(_rows(before, after))
            for path, before, after in changed
            if before is not None and before != after
        },
        "edits": edits.as_record(),
        "tree": hash_python(listing),
    }


def records(about: Mapping[str, Any], listing: Mapping[str, str]) -> dict[str, bytes]:
    """The two files of a tree that lie beside the overlay's package. about: see `described`."""
    return {LISTING: to_sha256sum(own_listing(listing)), LAID: record_text(dict(about)).encode()}


def in_git(
    files: Mapping[str, bytes], read: Read, listing: Mapping[str, str], edits: Edits = NO_EDITS
) -> dict[str, bytes]:
    """`records` for a tree that goes into git; nothing without the overlay's package."""
    if PROVENANCE not in files:
        return {}
    whole = own_listing(listing)
    ours = {path: digest for path, digest in whole.items() if path in files}
    return records(described(files, read, whole, edits) | {"rest": rest(whole, ours)}, ours)


def rest(listing: Mapping[str, str], ours: Collection[str]) -> dict[str, Any]:
    """The files that the queue leaves alone: how many, and the hash of their listing."""
    left = {
        path: digest
        for path, digest in listing.items()
        if path.endswith(".py") and path not in ours and not path.startswith(PACKAGE)
    }
    return {"files": len(left), "sha256": sha256(to_sha256sum(left))}


def rows_in(about: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The changes that laid.json lists, by file below the folder that holds sglang/."""
    rows = about.get("files")
    return rows if isinstance(rows, dict) else {}


def _rows(before: bytes, after: bytes) -> Iterator[dict[str, Any]]:
    old, new = (split_lines(text_of(content)) for content in (before, after))
    for kind, _, _, first, end in difflib.SequenceMatcher(None, old, new).get_opcodes():
        if kind == "equal":
            continue
        whole, bare = new[max(first - 1, 0) : end + 1], new[first:end]
        yield {
            "line": first + 1,
            "whole": [len(whole), _digest(whole)],
            "bare": [len(bare), _digest(bare)],
            "times": sum(new[at : at + len(bare)] == bare for at in range(len(new)) if bare),
        }


def undone(content: bytes, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """The changes of a file that are not in place any more, by the line at which they were made."""
    lines = split_lines(text_of(content))

    def times(count: int, digest: str) -> int:
        starts = range(len(lines) - count + 1) if count else ()
        return sum(_digest(lines[start : start + count]) == digest for start in starts)

    return [
        row["line"]
        for row in rows
        if not times(*row["whole"]) and times(*row["bare"]) < max(row["times"], 1)
    ]


def _digest(lines: Sequence[str]) -> str:
    return sha256("".join(lines).encode("utf-8", "surrogateescape"))
