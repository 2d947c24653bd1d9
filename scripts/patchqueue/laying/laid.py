"""What the queue laid in upstream's files, so that a tree can tell it from edits of others:
laid.json, beside the tree's own listing.

Each change is known by hashes of its lines as they are after it. `whole`: with one line of context
on both sides; `bare`: the changed lines alone, and how often they stand in the file. A change is in
place where it stands whole, or where its bare lines stand as often as they did.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..files.tree import LAID, sha256
from ..queue.series import PROVENANCE
from ..upstream.edits import Edits
from .place import Read, split_lines

PREFIX = "python/"
NONE = Edits()


def record(files: Mapping[str, bytes], read: Read, edits: Edits) -> bytes:
    """laid.json for what is laid on a tree.

    files: all of it, as it is then; read: the tree as it was before.
    """
    changed = ((path, read(path), after) for path, after in sorted(files.items()))
    written = {
        "files": {
            path.removeprefix(PREFIX): list(_rows(before, after))
            for path, before, after in changed
            if before is not None and before != after
        },
        "edits": edits.as_record(),
    }
    return (json.dumps(written, indent=1) + "\n").encode()


def in_tree(files: Mapping[str, bytes], read: Read, edits: Edits = NONE) -> dict[str, bytes]:
    """The same by its path in the tree; nothing where the overlay's package is not laid."""
    return {LAID: record(files, read, edits)} if PROVENANCE in files else {}


def rows_in(text: bytes) -> dict[str, list[dict[str, Any]]]:
    """The changes that laid.json lists, by file below the folder that holds sglang/; none where it
    cannot be read."""
    try:
        found: dict[str, list[dict[str, Any]]] = json.loads(text)["files"]
        return found
    except (ValueError, KeyError, TypeError):
        return {}


def opcodes(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    """The changed ranges of two texts' lines: (first, end) before, (first, end) after."""
    matcher = difflib.SequenceMatcher(None, before, after)
    return (code[1:] for code in matcher.get_opcodes() if code[0] != "equal")


def _rows(before: bytes, after: bytes) -> Iterator[dict[str, Any]]:
    old, new = (split_lines(text.decode("utf-8", "surrogateescape")) for text in (before, after))
    for _, _, first, end in opcodes(old, new):
        whole, bare = new[max(first - 1, 0) : end + 1], new[first:end]
        yield {
            "line": first + 1,
            "whole": [len(whole), _digest(whole)],
            "bare": [len(bare), _digest(bare)],
            "times": sum(new[at : at + len(bare)] == bare for at in range(len(new)) if bare),
        }


def undone(content: bytes, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """The changes of a file that are not in place any more, by the line at which they were laid."""
    lines = split_lines(content.decode("utf-8", "surrogateescape"))
    return [row["line"] for row in rows if not _stands(lines, row)]


def _stands(lines: Sequence[str], row: Mapping[str, Any]) -> bool:
    if any(True for _ in _places(lines, *row["whole"])):
        return True
    return bool(row["bare"][0]) and sum(1 for _ in _places(lines, *row["bare"])) >= row["times"]


def _places(lines: Sequence[str], count: int, digest: str) -> Iterator[int]:
    """Where so many lines with this hash begin, 0-based; none where they are no lines."""
    starts = range(len(lines) - count + 1) if count else ()
    return (start for start in starts if _digest(lines[start : start + count]) == digest)


def _digest(lines: Sequence[str]) -> str:
    return sha256("".join(lines).encode("utf-8", "surrogateescape"))
