"""work/<tag>/: the patched copy of a release. Built aside, renamed into place last, never replaced
while it holds edits.

Everything of the tool's own beside the trees lies in work/.patchqueue/, and a rebase's conflict in
work/rebase-VERSION/; other names in work/ are the user's.
"""

from __future__ import annotations

import enum
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ..files.atomic import locked
from ..files.tree import (
    ROOTS,
    differing,
    from_sha256sum,
    hash_python,
    list_folder,
    python_part,
    sha256,
    to_sha256sum,
)
from . import quilt

RECORD = "provenance.json"
# what the tool puts into a tree; anything else there is the user's
OWN_NAMES = (*ROOTS, "patches", ".pc", RECORD)
IGNORED = ("__pycache__", ".pytest_cache", ".hypothesis")  # running a tree leaves these behind


class State(str, enum.Enum):
    """The state of a work tree by its own record."""

    ABSENT = "absent"
    APPLIED = "applied"  # every patch, nothing else
    UNAPPLIED = "unapplied"  # no patch, the pristine tree
    CHANGED = "changed"  # patches partly popped, or edits that no patch of the record holds
    FOREIGN = "foreign"  # not made by this tool

    def __str__(self) -> str:
        return self.value


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
        """Be the only writer of this tree; what an earlier, killed run left is mended or removed
        first. Yields the lock's descriptor."""
        with locked(self._own / f"{self.tag}.lock") as descriptor:
            self._put_back()
            for left in (self._aside("building"), self._aside("old")):
                _remove(left)
            quilt.finish_begun(self.path)
            yield descriptor

    def start(self, copy: bool = False) -> Path:
        """An empty folder (or a copy of the tree) to build in, out of everybody's
        sight."""
        aside = self._aside("building")
        if copy:
            shutil.copytree(self.path, aside, symlinks=True)
        else:
            aside.mkdir(parents=True)
        return aside

    def finish(self, listing: dict[str, str]) -> None:
        """Put what was built in the tree's place. Killed between the renames, the next run puts the
        old tree back: it is whole for as long as it has that name."""
        self._aside("sha256sum").write_bytes(to_sha256sum(listing))
        old, building = self._aside("old"), self._aside("building")
        try:
            if _is_there(self.path):
                os.rename(self.path, old)
            os.rename(building, self.path)
        except BaseException:
            self._put_back()
            raise
        if _is_there(old):
            os.rename(old, building)
        _remove(building)

    def _put_back(self) -> None:
        """Give the tree its place again where it was moved away and no other came."""
        if _is_there(self._aside("old")) and not _is_there(self.path):
            os.rename(self._aside("old"), self.path)

    def finished_listing(self) -> dict[str, str]:
        """The listing of the tree as it was finished, kept to tell which files were edited since;
        empty where it is lost."""
        kept = self._aside("sha256sum")
        return from_sha256sum(kept.read_bytes()) if kept.is_file() else {}

    def inspect(self) -> Inspection:
        """The tree's state. Hashes all of its files (0.1 to 0.5 s)."""
        if not _is_there(self.path):
            return Inspection(State.ABSENT, {}, {})
        record = read_record(self.path)
        if record is None:
            return Inspection(State.FOREIGN, {}, {})
        listing = list_folder(self.path)
        untracked = tuple(_untracked(self.path))
        edited = tuple(_edited_patches(self.path, record))
        state = State.CHANGED
        if not untracked and not edited:
            state = self._state(record, listing)
        return Inspection(state, record, listing, untracked, edited)

    def _state(self, record: dict[str, Any], listing: dict[str, str]) -> State:
        """How far the patches are applied, where no file of patches/ was edited.

        Files that the tree hash does not cover are compared with the tree as it was finished.
        """
        tree, stack = hash_python(listing), quilt.applied(self.path)
        finished = self.finished_listing() or listing
        others = {*differing(finished, listing)} - {*python_part(finished | listing)}
        if stack == [patch["name"] for patch in record["patches"]]:
            is_whole = tree == record["tree"]["after"] and not others
            return State.APPLIED if is_whole else State.CHANGED
        others -= {file["path"] for file in record["overlay"]}
        is_popped = not stack and tree == record["tree"]["before"] and not others
        return State.UNAPPLIED if is_popped else State.CHANGED

    def _aside(self, what: str) -> Path:
        return self._own / f"{self.tag}.{what}"


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _remove(path: Path) -> None:
    """Remove a folder, or what a discarded foreign tree was instead: a file or a link."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


class Hashed(Struct):
    """Anything that is known by a hash."""

    sha256: str


class AppliedPatch(Hashed):
    name: str


class Hashes(Struct):
    before: str
    after: str


class Provenance(Struct):
    """What a tree's record holds, as far as it must. source: what the tree was made of."""

    source: Hashed
    patches: list[AppliedPatch]
    overlay: list[dict[str, str]]
    tree: Hashes


def read_record(tree: Path) -> dict[str, Any] | None:
    """The tree's provenance, or None where there is none that this tool wrote."""
    try:
        record: dict[str, Any] = json.loads((tree / RECORD).read_bytes())
        msgspec.convert(record, Provenance)
    except (OSError, ValueError, msgspec.ValidationError):
        return None
    return record


def write_record(tree: Path, record: dict[str, Any]) -> None:
    (tree / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def write_patches(tree: Path, patches: dict[str, bytes]) -> None:
    """The selected patches and quilt's series, as any quilt user expects them in a tree."""
    for name, content in patches.items():
        path = tree / "patches" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tree / "patches").mkdir(exist_ok=True)
    (tree / "patches/series").write_text("".join(f"{name}\n" for name in patches))


def _untracked(tree: Path) -> Iterator[str]:
    """The user's own files: what lies beside the tool's own names, and compiled extensions (the
    tool puts none there)."""
    yield from (
        path.name for path in sorted(tree.iterdir()) if path.name not in (*OWN_NAMES, *IGNORED)
    )
    yield from (
        path.relative_to(tree).as_posix()
        for root in ROOTS
        for path in sorted((tree / root).rglob("*.so"))
    )


def _edited_patches(tree: Path, record: dict[str, Any]) -> Iterator[str]:
    """What of the tree's own patches/ is no longer as the record says."""
    folder = tree / "patches"
    recorded = {patch["name"]: patch["sha256"] for patch in record["patches"]}
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("~"))
    present = {path.relative_to(folder).as_posix(): sha256(path.read_bytes()) for path in files}
    series = (folder / "series").read_text().split() if present.pop("series", None) else []
    yield from (f"patches/{name}" for name in differing(recorded, present))
    if series != list(recorded):
        yield "patches/series"
