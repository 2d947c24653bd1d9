"""Which files of a tree a run depended on, and whether they are the same today.

tests/gpu/watch/sitecustomize.py notes, in every process of an engine, each module of sglang that
the process looks up and each file of sglang/ that it opens. A footprint is made of these notes when
a result is taken, on the tree that ran. Python files count without comments and docstrings. A file
that was opened, as data or as source, counts by its bytes: Triton reads the source of its kernels.
The overlay's provenance does not count: it names the whole queue, and servers show it alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from msgspec.structs import replace

from patchqueue.applying.apply import load_queue
from patchqueue.applying.selection import select
from patchqueue.files.tree import sha256
from patchqueue.outcome import Refused
from patchqueue.queue.series import PROVENANCE, Queue
from patchqueue.upstream import source
from patchqueue.upstream.pins import Pin, Pins

from . import harness, results
from .results import Footprint, Row, bitset, members

MODULE, OPENED = "m ", "o "  # begin the notes
CODE, BYTES = "code:", "bytes:"  # begin the hashes
SHORT = 16  # hex digits of a hash


@dataclass(frozen=True)
class Tree:
    """A release with the queue. pristine: its own files, sorted; laid: what the queue changes or
    adds. Paths begin with python/sglang/."""

    pristine: tuple[str, ...]
    laid: Mapping[str, bytes]

    @cached_property
    def known(self) -> frozenset[str]:
        return frozenset(self.pristine) | frozenset(self.laid)


def tree_of(queue: Queue, pin: Pin) -> Tree:
    """The release with the queue. Raises Refused where a patch does not apply."""
    release = source.fetch(pin, None)
    planned = select(queue, pin).replay(release.read)
    if planned.problems:
        raise Refused(planned.problems)
    own = (path for path in release.paths if path.startswith("python/sglang/"))
    return Tree(tuple(own), planned.files)


def footprint(tree: Tree, notes: Iterable[str]) -> Footprint:
    """What a run with these notes depended on."""
    loaded, opened, absent = set[str](), set[str](), set[str]()
    for note in notes:
        if note.startswith(OPENED):
            opened.add(f"python/{note.removeprefix(OPENED)}")
            continue
        name = note.removeprefix(MODULE)
        files = [path for path in module_files(name) if path in tree.known]
        loaded.update(files)
        absent.update([] if files else [name])
    loaded |= opened & tree.known
    names = sorted((loaded & tree.laid.keys()) - {PROVENANCE})
    laid = {name: digest(name, tree.laid[name], by_bytes=name in opened) for name in names}
    return Footprint(bitset(tree.pristine, loaded), laid, tuple(sorted(absent)))


def module_files(name: str) -> tuple[str, str]:
    """Where a module's file can be."""
    path = f"python/{name.replace('.', '/')}"
    return f"{path}.py", f"{path}/__init__.py"


@cache  # releases share most of these files
def digest(path: str, content: bytes, by_bytes: bool) -> str:
    """A file's hash: of its bytes alone, or of its code and, behind a stroke, of its bytes."""
    whole = sha256(content)[:SHORT]
    if by_bytes or not path.endswith(".py"):
        return BYTES + whole
    return f"{CODE}{sha256(harness.code(content).encode())[:SHORT]}/{whole}"


@cache
def is_same(path: str, content: bytes, before: str) -> bool:
    """Whether a file has the hash `before`, in its code if that was asked for. Code is read where
    its bytes differ alone: that takes 10 ms a file, of 90 files of each release."""
    if before.endswith(sha256(content)[:SHORT]):
        return True
    now = digest(path, content, by_bytes=before.startswith(BYTES))
    return now.partition("/")[0] == before.partition("/")[0]


def changed(tree: Tree, then: Footprint) -> str:
    """The first file on which the run depended and which is another one today; empty for none."""
    own = set(members(tree.pristine, then.loaded))
    # first those that releases share
    for path in sorted(tree.laid.keys() - {PROVENANCE}, key=lambda path: (path in own, path)):
        content, before = tree.laid[path], then.laid.get(path)
        name = path.removeprefix("python/").removesuffix(".py").removesuffix("/__init__")
        if before is not None:
            if not is_same(path, content, before):
                return f"{path} has changed"
        elif path in own:
            return f"{path} is patched since"
        elif name.replace("/", ".") in then.absent:
            return f"{path} is new"
    gone = [path for path in then.laid if path not in tree.laid]
    return f"{gone[0]} is patched no more" if gone else ""


class Validity:
    """Which rows of one release are about today's queue: with the same tree, or the same files. The
    files were compared by `compared`, so that no reader of rows needs the release's own."""

    def __init__(self, today: str, rules: str) -> None:
        self.today, self.rules = today, rules

    def is_today(self, row: Row) -> bool:
        """Whether a row is about today's tree."""
        return results.is_same(row.queue, self.today)

    def judged_alike(self, row: Row) -> bool:
        """Whether a row was judged by today's rules."""
        return results.is_same(row.rules, self.rules)

    def same_files(self, row: Row) -> bool:
        """Whether a row about an earlier tree is about the same files."""
        compared = self.judged_alike(row) and row.footprint is not None
        return compared and results.is_same(row.same_as, self.today)

    def holds(self, row: Row) -> bool:
        return self.is_today(row) or self.same_files(row)


def compared(root: Path, pins: Pins, rows: Sequence[Row], rules: str) -> list[Row]:
    """The rows. Those by today's rules with a footprint have the tree of today as `same_as` or as
    `differs_from`. Fetches the releases that have a row that was not compared. Raises Refused where
    a patch does not apply."""

    def is_asked(row: Row) -> bool:
        if not row.footprint or not results.is_same(row.rules, rules):
            return False
        now = pins.find(row.release).patched
        known = (row.queue, row.same_as, row.differs_from)
        return not any(results.is_same(tree, now) for tree in known)

    def settled(row: Row) -> Row:
        differs = changed(trees[row.release], row.footprint or Footprint())
        now = pins.find(row.release).patched
        return replace(row, **{"differs_from" if differs else "same_as": now})

    if not (asked := {row.release for row in rows if is_asked(row)}):
        return list(rows)
    queue = load_queue(root)
    trees = {release: tree_of(queue, pins.find(release)) for release in asked}
    return [settled(row) if is_asked(row) else row for row in rows]
