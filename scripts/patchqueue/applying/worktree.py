"""work/<tag>/: the patched copy of a release. Built aside, renamed into place last, never replaced
while it holds edits; and quilt's book-keeping in it, .pc/, which this tool writes and reads itself.
Its own files lie in work/.patchqueue/."""

from __future__ import annotations

import enum
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import tree as trees
from ..files.atomic import locked
from ..files.tree import differing, hash_python, list_folder, sha256
from ..outcome import Outcome, Refused
from ..upstream.pins import Pin
from .matching import Row

RECORD = "provenance.json"
RECORDED = {"source", "patches", "overlay", "tree", "texts"}  # in every record
# what the tool puts into a tree; anything else there is the user's
OWN_NAMES = ("python", "patches", ".pc", RECORD)
APPLIED, STAMP = ".pc/applied-patches", ".timestamp"  # names that quilt gives
QUILT_TREE = {
    ".pc/.version": b"2\n",
    ".pc/.quilt_patches": b"patches\n",
    ".pc/.quilt_series": b"series\n",
}
IGNORED = ("__pycache__", ".pytest_cache", ".hypothesis")  # running a tree leaves these behind


class State(enum.Enum):
    """The state of a work tree by its own record."""

    ABSENT = "absent"
    APPLIED = "applied"  # every patch, nothing else
    UNAPPLIED = "unapplied"  # no patch, the pristine tree
    CHANGED = "changed"  # patches partly popped, or edits that no patch of the record holds
    FOREIGN = "foreign"  # not made by this tool


@dataclass(frozen=True)
class Inspection:
    """A tree as found. record: its provenance. untracked: files the tool did not put there."""

    state: State
    record: dict[str, Any]
    listing: dict[str, str]
    untracked: tuple[str, ...] = ()
    edited_patches: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkTree:
    """The place of one revision's tree below the project's work/ folder."""

    root: Path
    tag: str

    @property
    def path(self) -> Path:
        return self.root / "work" / self.tag

    @property
    def _own(self) -> Path:
        return self.root / "work" / ".patchqueue"

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Be the only writer; mend what a killed run left. Yields the lock's descriptor."""
        with locked(self._own / f"{self.tag}.lock") as descriptor:
            self._put_back()
            for left in (self._aside("building"), self._aside("old")):
                _remove(left)
            yield descriptor

    def start(self, copy: bool = False) -> Path:
        """An empty folder (or a copy of the tree) to build in."""
        aside = self._aside("building")
        if copy:
            shutil.copytree(self.path, aside, symlinks=True)
        else:
            aside.mkdir(parents=True)
        return aside

    def finish(self, listing: dict[str, str]) -> None:
        """Put what was built in the tree's place; if this is killed, the old one comes back."""
        self._aside("sha256sum").write_bytes(trees.to_sha256sum(listing))
        old, building = self._aside("old"), self._aside("building")
        try:
            if os.path.lexists(self.path):
                os.rename(self.path, old)
            os.rename(building, self.path)
        except BaseException:
            self._put_back()
            raise
        if os.path.lexists(old):
            os.rename(old, building)
        _remove(building)

    def _put_back(self) -> None:
        """Give the tree its place again where it was moved away and no other came."""
        if os.path.lexists(self._aside("old")) and not os.path.lexists(self.path):
            os.rename(self._aside("old"), self.path)

    def finished_listing(self) -> dict[str, str]:
        """The listing of the tree as it was finished; empty where it is lost."""
        kept = self._aside("sha256sum")
        return trees.from_sha256sum(kept.read_bytes()) if kept.is_file() else {}

    def inspect(self) -> Inspection:
        """The tree's state. Hashes all of its files (0.1 to 0.5 s)."""
        if not os.path.lexists(self.path):
            return Inspection(State.ABSENT, {}, {})
        record = read_record(self.path)
        if record is None:
            return Inspection(State.FOREIGN, {}, {})
        listing = list_folder(self.path)
        # what lies beside the tool's own names; and compiled extensions: the tool puts none there
        names = sorted(path.name for path in self.path.iterdir())
        untracked = [name for name in names if name not in (*OWN_NAMES, *IGNORED)]
        compiled = sorted((self.path / "python").rglob("*.so"))
        untracked += [path.relative_to(self.path).as_posix() for path in compiled]
        recorded, folder = record["texts"], self.path / "patches"
        files = [path for path in folder.rglob("*") if path.is_file() and path.name[-1] != "~"]
        present = {path.relative_to(folder).as_posix(): sha256(path.read_bytes()) for path in files}
        present.pop("series", None)
        edited = [f"patches/{name}" for name in differing(recorded, present)]
        series = content(folder / "series").decode("utf-8", "replace").split()
        edited += [] if series == list(recorded) else ["patches/series"]
        state = State.CHANGED if untracked or edited else self._state(record, listing)
        return Inspection(state, record, listing, tuple(untracked), tuple(edited))

    def _state(self, record: dict[str, Any], listing: dict[str, str]) -> State:
        """How far the patches are applied, and whether other files are as finished."""
        tree, hashes, stack = hash_python(listing), record["tree"], applied(self.path)
        finished = self.finished_listing() or listing
        others = {*differing(finished, listing)} - {*trees.python_part(finished | listing)}
        if stack == [patch["name"] for patch in record["patches"]]:
            is_whole = tree == hashes["after"] and not others
            return State.APPLIED if is_whole else State.CHANGED
        others -= {file["path"] for file in record["overlay"]}
        is_popped = not stack and tree == hashes["before"] and not others
        return State.UNAPPLIED if is_popped else State.CHANGED

    def _aside(self, what: str) -> Path:
        return self._own / f"{self.tag}.{what}"


def _remove(path: Path) -> None:
    """Remove a folder, or what a discarded foreign tree was instead: a file or a link."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def read_record(tree: Path) -> dict[str, Any] | None:
    """The tree's provenance, or None where there is none that this tool wrote."""
    try:
        record: dict[str, Any] = json.loads((tree / RECORD).read_bytes())
        return record if record.keys() >= RECORDED else None
    except (OSError, ValueError, AttributeError):
        return None


def write_patches(tree: Path, patches: Mapping[str, bytes]) -> None:
    """The selected patches and quilt's series, as any quilt user expects them in a tree."""
    series = "".join(f"{name}\n" for name in patches).encode()
    _write(tree / "patches", {**patches, "series": series})


def push(tree: Path, stack: Mapping[str, bytes], layers: Sequence[Row]) -> None:
    """Make of a pristine tree what `quilt push -a` would; .pc/PATCH/ has every file below it."""
    write_patches(tree, stack)
    applied = (tree / "patches/series").read_bytes()
    _write(tree, QUILT_TREE | {APPLIED: applied})
    for layer in layers:
        _write(tree / ".pc" / layer.patch, layer.before)
    _write(tree, {path: content for layer in layers for path, content in layer.after.items()})
    for layer in layers:  # last: quilt takes a file that is newer for edited
        (tree / ".pc" / layer.patch / STAMP).touch()


def pop(tree: Path) -> None:
    """Make of a patched tree what `quilt pop -a` would, without the folders that are then empty."""
    below = lowest(layers(tree))
    _write(tree, {path: content for path, content in below.items() if content})
    for path in (tree / path for path, content in below.items() if not content):
        path.unlink(missing_ok=True)
        for folder in path.parents:  # Python would import an empty package still
            if folder == tree or any(folder.iterdir()):
                break
            folder.rmdir()
    shutil.rmtree(tree / ".pc", ignore_errors=True)


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def applied(tree: Path) -> list[str]:
    """The patches that are applied in this tree, bottom first."""
    return content(tree / APPLIED).decode().split("\n")[:-1]


def layers(tree: Path) -> list[Row]:
    """The patches that are applied in this tree, bottom first, with what each makes now.

    An edit that no `quilt refresh` has seen is one of the topmost patch that has the file.
    """
    top_first: list[Row] = []
    above: dict[str, bytes] = {}
    for patch in reversed(applied(tree)):
        folder = tree / ".pc" / patch
        copies = sorted(path for path in folder.rglob("*") if path.is_file())
        before = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in copies
            if path.name != STAMP
        }
        after = {path: above[path] if path in above else content(tree / path) for path in before}
        above |= before
        top_first.append(Row(patch, Outcome.APPLIED, "", before, after))
    return top_first[::-1]


def lowest(layers: Sequence[Row]) -> dict[str, bytes]:
    """The files of these patches as they are below all of them; empty where there is none."""
    return {path: text for layer in reversed(layers) for path, text in layer.before.items()}


def content(file: Path) -> bytes:
    """The content of a file; empty where there is none."""
    return file.read_bytes() if file.is_file() else b""


def listed(tree: Path) -> list[str]:
    """The patches of the tree's series, bottom first."""
    lines = content(tree / "patches/series").decode().splitlines()
    return [words[0] for line in lines if (words := line.partition("#")[0].split())]


def foreign(pin: Pin) -> Refused:
    where = f"work/{pin.tag}"
    return Refused.of("foreign-tree", where, "this tool did not make it", "move it away")
