"""What this tree was made of, and whether it still is that: from three files that the queue's tool
left beside this folder.

provenance.json: the release, the queue, and every patch and overlay file with its sha256.
tree.sha256: the sha256 of every file of the tree, as sha256sum prints it, by its name in upstream's
repository; `sha256sum tree.sha256` is the tree's hash.
laid.json: "files", each change of the queue in upstream's files by the sha256 of its lines with one
line of context on both sides ("whole") and without ("bare", so many "times" in the file); "edits",
the files that others had edited before. In a tree that came by git, tree.sha256 has the queue's
files alone, and laid.json the tree's hash ("tree") and one sha256 of the listing of the "rest".
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

HERE = Path(__file__).parents[1]
RECORD, LISTING, LAID = HERE / "provenance.json", HERE / "tree.sha256", HERE / "laid.json"
# the folder that holds sglang/: python/ of a checkout, or site-packages
ROOT = Path(__file__).parents[4]
PREFIX, PACKAGE = "python/", "sglang"
GENERATED = "sglang/_version.py"  # written when a wheel is built
REST = "sglang/… (files that the queue leaves alone)"
# how sha256sum writes these characters in a name
ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r"})
UNESCAPED = {escaped: chr(character) for character, escaped in ESCAPES.items()}
ESCAPED = re.compile(r"\\[\\nr]")
ALGORITHM, SHOWN = "sha256:", 12  # how a tree's hash begins, and how many of its digits are logged


@dataclass(frozen=True)
class Provenance:
    """What this tree was made of. version: the sglang release; release: the queue's own; patches:
    names, in order."""

    version: str = "unknown"
    release: str = "unknown (not built by the queue)"
    queue: str = "unknown"
    patches: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"sglang {self.version}, queue release {self.release}, {len(self.patches)} patches"


# how a file is not as the queue made it
CHANGED, MISSING, ADDED = "changed", "missing", "added"


@dataclass(frozen=True)
class Verification:
    """Whether the files are those that the queue made. files: how many were compared; faults: by
    name below the folder that holds sglang/; reason: why nothing could be compared. No faults are:
    others, edited since, where every change of the queue is in place; before, edited before."""

    files: int = 0
    faults: tuple[tuple[str, str], ...] = ()
    tree: str = ""
    reason: str = ""
    others: tuple[tuple[str, str], ...] = ()
    before: tuple[str, ...] = ()

    @property
    def intact(self) -> bool:
        return not self.reason and not self.faults


def read() -> Provenance:
    """The record; "unknown" where there is none, or not in this form."""
    found = _json(RECORD)
    try:
        names = tuple(patch["name"].removesuffix(".patch") for patch in found["patches"])
        return Provenance(found["version"], str(found["release"]), found["queue"], names)
    except (KeyError, TypeError, AttributeError):
        return Provenance()


def log_tree() -> None:
    """Log what this server is made of. Called where a server starts, right after its logging is set
    up (_set_envs_and_config of srt/entrypoints/engine.py). Never raises."""
    tree = tree_hash()
    logger.info(
        "Patched by the prefill graph queue: %s%s",
        read(),
        f", tree {tree[: len(ALGORITHM) + SHOWN]}" if tree else "",
    )


def log_plugin() -> None:
    """The entry point `prefill_graph_queue` of the group sglang.srt.plugins (from 0.5.11 on), which
    every process of a server calls first. It logs one line, and changes nothing. Never raises."""
    logger.info("The prefill graph queue's plugin only reports: %s, tree %s", read(), tree_hash())


def tree_hash() -> str:
    """The hash of the tree as it was made, "sha256:<hex>"; "" where no listing of it is there."""
    try:
        return (
            _json(LAID).get("tree") or ALGORITHM + hashlib.sha256(LISTING.read_bytes()).hexdigest()
        )
    except OSError:
        return ""


def verify() -> Verification:
    """Compare every file with the listing. Compiled extensions are in no listing: they are the
    wheel's, and differ by platform."""
    try:
        wanted = dict(_listed(LISTING.read_bytes().decode("utf-8", "surrogateescape")))
    except (OSError, ValueError) as error:
        why = f"cannot be read ({type(error).__name__}): the queue's tool did not make this tree"
        return Verification(reason=f"{LISTING.name} {why}")
    files = (path for path in (ROOT / PACKAGE).rglob("*.py") if path.is_file())
    here = {path.relative_to(ROOT).as_posix() for path in files} - {GENERATED}
    faults = ((name, _fault(ROOT / name, digest)) for name, digest in wanted.items())
    found = [(name, fault) for name, fault in faults if fault]
    rest = _json(LAID).get("rest")
    unlisted = here - wanted.keys()
    unnamed = {name for name in unlisted if rest and not (ROOT / name).is_relative_to(HERE)}
    found += [(name, ADDED) for name in unlisted - unnamed]
    changes, before = _laid()
    others = {name for name, fault in found if _of_others(name, fault, changes)}
    if rest and _digest(unnamed) != rest["sha256"]:
        found.append((REST, CHANGED))
        others.add(REST)
    return Verification(
        len(wanted) + (rest["files"] if rest else 0),
        tuple(sorted(each for each in found if each[0] not in others)),
        tree_hash(),
        others=tuple(sorted(each for each in found if each[0] in others)),
        before=before,
    )


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where it cannot be read."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _digest(names: set[str]) -> str:
    """The sha256 of these files' listing, as sha256sum prints it by their names in the
    repository."""
    rows = (_row(f"{PREFIX}{name}", _content(ROOT / name)) for name in sorted(names))
    return hashlib.sha256("".join(rows).encode("utf-8", "surrogateescape")).hexdigest()


def _row(name: str, content: bytes) -> str:
    """A line of sha256sum, which escapes a name that holds a line end or a backslash."""
    written = name.translate(ESCAPES)
    begin = "" if written == name else "\\"
    return f"{begin}{hashlib.sha256(content).hexdigest()}  {written}\n"


def _laid() -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """(the queue's changes by file, the files that others had edited before); (None, none) where
    that is not known: then everything that differs is a fault."""
    found = _json(LAID)
    try:
        edits = [name for names in found["edits"].values() for name in names]
        return dict(found["files"]), tuple(sorted(edits))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, ()


def _of_others(name: str, fault: str, changes: dict[str, Any] | None) -> bool:
    """Whether a difference leaves everything of the queue in place."""
    if changes is None or (ROOT / name).is_relative_to(HERE):
        return False
    if name not in changes:
        return not _is_overlaid(name)
    return fault is CHANGED and _stand(ROOT / name, changes[name])


def _is_overlaid(name: str) -> bool:
    """Whether the queue added the file, outside of its own package; so, too, where that is not
    known."""
    try:
        return PREFIX + name in {file["path"] for file in _json(RECORD)["overlay"]}
    except (KeyError, TypeError):
        return True


def _stand(path: Path, changes: list[dict[str, Any]]) -> bool:
    """Whether every change of the queue is in place in a file."""
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1:] = [lines[-1][:-1]] if lines[-1] != "\n" else []
    return all(
        _times(lines, *change["whole"]) or _times(lines, *change["bare"]) >= max(change["times"], 1)
        for change in changes
    )


def _times(lines: list[str], count: int, digest: str) -> int:
    """How often so many lines with this sha256 stand there; 0 for no lines."""
    blocks = (
        "".join(lines[at : at + count]) for at in range(len(lines) - count + 1 if count else 0)
    )
    return sum(
        hashlib.sha256(block.encode("utf-8", "surrogateescape")).hexdigest() == digest
        for block in blocks
    )


def _listed(text: str) -> Iterator[tuple[str, str]]:
    """(name below the folder that holds sglang/, sha256) of each of sglang's files in a listing.
    Raises ValueError."""
    for line in text.removesuffix("\n").split("\n"):
        digest, name = line.split("  ", 1)
        if digest.startswith("\\"):
            digest, name = digest[1:], ESCAPED.sub(lambda each: UNESCAPED[each[0]], name)
        if name.startswith(f"{PREFIX}{PACKAGE}/"):
            yield name.removeprefix(PREFIX), digest


def _fault(path: Path, digest: str) -> str | None:
    try:
        content = _content(path)
    except OSError:
        return MISSING
    return None if hashlib.sha256(content).hexdigest() == digest else CHANGED


def _content(path: Path) -> bytes:
    """What a listing has of a file. Raises OSError."""
    return b"link to " + os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()


def lines(found: Verification) -> Iterator[str]:
    """The printed verification: one line, and one for each file that differs."""
    if found.reason:
        yield f"cannot be verified: {found.reason}"
        return
    yield f"tree: {found.tree}"
    if found.intact:
        kept = found.files - sum(fault is not ADDED for _, fault in found.others)
        yield f"{kept} files are as the queue made them"
    else:
        yield f"not as the queue made them: {len(found.faults)} of {found.files} files:"
        yield from (f"  {fault:8} {name}" for name, fault in found.faults)
    if found.before:
        yield f"edits of others from before ({len(found.before)}):"
        yield from (f"           {name}" for name in found.before)
    if found.others:
        yield f"edits of others since then ({len(found.others)}):"
        yield from (f"  {fault:8} {name}" for name, fault in found.others)
