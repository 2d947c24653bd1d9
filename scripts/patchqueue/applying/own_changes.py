"""The queue's changes of upstream's files as a tree records them, in laid.json beside its listing:
edits of others are told apart by it. Where the tree goes into git, it has the queue's files alone,
and one hash of the others (`in_git`).

A change is known by hashes of its lines: `whole`, with one line of context on both sides; `bare`,
without, and how often the file has them. It is in place where the file has it whole, or bare as
often as before.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ..files.record import text_of as record_text
from ..files.tree import LAID, LISTING, PREFIX, hash_python, own_listing, sha256, to_sha256sum
from ..queue.series import PACKAGE, PROVENANCE
from ..upstream.release import Edits
from .matching import Read, split_lines

NONE = Edits()


def described(
    files: Mapping[str, bytes], read: Read, listing: Mapping[str, str], edits: Edits = NONE
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
    files: Mapping[str, bytes], read: Read, listing: Mapping[str, str], edits: Edits = NONE
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
    old, new = (split_lines(text.decode("utf-8", "surrogateescape")) for text in (before, after))
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
    lines = split_lines(content.decode("utf-8", "surrogateescape"))
    missing = []
    for row in rows:
        whole, bare = (len(_places(lines, *row[form])) for form in ("whole", "bare"))
        if not whole and (not bare or bare < row["times"]):
            missing.append(row["line"])
    return missing


def _places(lines: Sequence[str], count: int, digest: str) -> list[int]:
    """Where so many lines with this hash begin, 0-based; none where they are no lines."""
    starts = range(len(lines) - count + 1) if count else ()
    return [start for start in starts if _digest(lines[start : start + count]) == digest]


def _digest(lines: Sequence[str]) -> str:
    return sha256("".join(lines).encode("utf-8", "surrogateescape"))
