"""work/<tag>/: the patched copy of a release. Built aside, renamed into place last, never replaced
while it holds edits; and the edits in it, read from the copies that quilt keeps.

Everything of the tool's own beside the trees lies in work/.patchqueue/, and a rebase's conflict in
work/rebase-VERSION/; other names in work/ are the user's.
"""

from __future__ import annotations

import enum
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ..files import tree as trees
from ..files.atomic import locked
from ..files.tree import ROOTS, differing, hash_python, list_folder, sha256
from ..outcome import Refused, to_type
from ..queue import patchfile
from ..queue.series import OVERLAY_PATCH
from ..upstream.pins import Pin
from ..upstream.source import Source
from . import quilt
from .context import unified
from .matching import Files, apply_patch, in_front, listing_with, misfits

RECORD = "provenance.json"
# what the tool puts into a tree; anything else there is the user's
OWN_NAMES = (*ROOTS, "patches", ".pc", RECORD)
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
        """Be the only writer of this tree; what an earlier, killed run left is mended or removed
        first. Yields the lock's descriptor."""
        with locked(self._own / f"{self.tag}.lock") as descriptor:
            self._put_back()
            for left in (self._aside("building"), self._aside("old")):
                _remove(left)
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
        """The listing of the tree as it was finished, kept to tell which files were edited since;
        empty where it is lost."""
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
        for root in ROOTS:
            compiled = sorted((self.path / root).rglob("*.so"))
            untracked += [path.relative_to(self.path).as_posix() for path in compiled]
        folder = self.path / "patches"
        recorded = {patch["name"]: patch["sha256"] for patch in record["patches"]}
        files = [path for path in folder.rglob("*") if path.is_file() and path.name[-1] != "~"]
        present = {path.relative_to(folder).as_posix(): sha256(path.read_bytes()) for path in files}
        series = (folder / "series").read_text().split() if present.pop("series", None) else []
        edited = [f"patches/{name}" for name in differing(recorded, present)]
        edited += [] if series == list(recorded) else ["patches/series"]
        is_own = not untracked and not edited
        state = self._state(record, listing) if is_own else State.CHANGED
        return Inspection(state, record, listing, tuple(untracked), tuple(edited))

    def _state(self, record: dict[str, Any], listing: dict[str, str]) -> State:
        """How far the patches are applied, where no file of patches/ was edited.

        Files that the tree hash does not cover are compared with the tree as it was finished.
        """
        tree, hashes, stack = hash_python(listing), record["tree"], quilt.applied(self.path)
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


class Provenance(Struct):
    """The fields that every tree's record has. source: what the tree was made of."""

    source: dict[str, str]
    patches: list[dict[str, str]]
    overlay: list[dict[str, str]]
    tree: dict[str, str]


def read_record(tree: Path) -> dict[str, Any] | None:
    """The tree's provenance, or None where there is none that this tool wrote."""
    try:
        record: dict[str, Any] = json.loads((tree / RECORD).read_bytes())
        msgspec.convert(record, Provenance)
    except (OSError, ValueError, msgspec.ValidationError):
        return None
    return record


def write_patches(tree: Path, patches: dict[str, bytes]) -> None:
    """The selected patches and quilt's series, as any quilt user expects them in a tree."""
    for name, content in patches.items():
        path = tree / "patches" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tree / "patches").mkdir(exist_ok=True)
    (tree / "patches/series").write_text("".join(f"{name}\n" for name in patches))


@dataclass(frozen=True)
class TreeEdits:
    """The content of a tree. texts: (patch, header, diff) of each applied patch, in order; overlay:
    its new files.

    recorded: the patches it was made of, name -> sha256, empty where it was not; recorded_overlay:
    the overlay files, path -> sha256; listing: its files, empty likewise.
    """

    texts: tuple[tuple[str, str, str], ...] = ()
    overlay: Files = field(default_factory=dict)
    recorded: dict[str, str] = field(default_factory=dict)
    recorded_overlay: dict[str, str] = field(default_factory=dict)
    listing: dict[str, str] = field(default_factory=dict)


def read_edits(root: Path, pin: Pin, add: bool, pristine: Source) -> TreeEdits | None:
    """The content of work/<tag>/ with its popped patches; None where it holds no edits.

    add: edits of files that are in no patch go into the top one. Raises Refused where an edit
    belongs to no patch, and where a popped patch does not fit.
    """
    tree, where = WorkTree(root, pin.tag), f"work/{pin.tag}"
    with tree.locked():
        inspection = tree.inspect()
        if inspection.state is State.FOREIGN:
            raise foreign(pin)
        if inspection.state is not State.CHANGED:
            return None
        layers = quilt.layers(tree.path)
        stray = _stray(tree.path, layers, inspection.listing, pristine)
        popped = list(_popped(tree.path, where, layers))
        layers += popped
        files = {layer.patch: tree.path / "patches" / layer.patch for layer in layers}
        headers = {
            name: patchfile.split(quilt.content(file).decode())[0] for name, file in files.items()
        }
    if stray and not (add and layers):
        adds, before = to_type("refresh", pin.tag, "--add"), to_type("quilt", pin.tag, "add FILE")
        step = f"{adds} takes these into the top patch; {before} comes before an edit"
        what = f"edited, but in no patch: {' '.join(stray)}"
        raise Refused.of("stray-edits", where, what, step)
    if stray:
        original, top = {path: pristine.read(path) or b"" for path in stray}, layers[-1]
        layers[-1] = replace(top, before=top.before | original, after=top.after | stray)
    overlay = {layer.patch: layer.after for layer in layers}.get(OVERLAY_PATCH, {})
    texts = tuple(
        (layer.patch, headers[layer.patch], unified(layer.before, layer.after))
        for layer in layers
        if layer.patch != OVERLAY_PATCH
    )
    recorded = {patch["name"]: patch["sha256"] for patch in inspection.record["patches"]}
    pushed = {path: text for layer in popped for path, text in layer.after.items()}
    new_files = {path: text for path, text in overlay.items() if text}
    laid = {file["path"]: file["sha256"] for file in inspection.record["overlay"]}
    return TreeEdits(texts, new_files, recorded, laid, listing_with(inspection.listing, pushed))


def _stray(
    tree: Path, layers: list[quilt.Layer], listing: Mapping[str, str], pristine: Source
) -> dict[str, bytes]:
    """The edits that are in no patch, path -> content. listing: the tree's."""
    below = {path: text for layer in reversed(layers) for path, text in layer.before.items()}
    popped = {path: digest for path, digest in listing.items() if path not in below}
    popped = listing_with(popped, {path: text for path, text in below.items() if text})
    stray = {}
    for name in differing(popped, pristine.listing()):
        file = tree / name
        if name not in popped or file.suffix in (".orig", ".rej") or name.endswith("~"):
            what = "is missing, or left over from an editor or a failed push"
            step = "put it right in the tree, then refresh again"
            raise Refused.of("stray-edits", name, what, step)
        stray[name] = below.get(name) or quilt.content(file)
    return stray


def _popped(tree: Path, where: str, layers: list[quilt.Layer]) -> Iterator[quilt.Layer]:
    """The patches of the tree's series that are not applied, as they would be."""
    applied = [layer.patch for layer in layers]
    files: dict[str, bytes] = {}
    read = in_front(files, lambda path: quilt.content(tree / path) or None)
    for name in quilt.listed(tree):
        if name in applied:
            continue
        text = quilt.content(tree / "patches" / name)
        diff = patchfile.split(text.decode())[1]
        if name == OVERLAY_PATCH or not diff:  # new files, or a patch that has only begun
            after = {
                file.path: "".join(line for hunk in file.hunks for line in hunk.new).encode()
                for file in patchfile.parse_diff(diff)
            }
            files |= after
            yield quilt.Layer(name, dict.fromkeys(after, b""), after)
            continue
        patch, problems = patchfile.read(name, text)
        if patch is None:
            raise Refused(problems)
        row = apply_patch(patch, read)
        if row.lines is None:
            step = "correct it in the tree, or the files below it, then refresh again"
            raise Refused(misfits(patch, read, where, step))
        files |= row.after
        yield quilt.Layer(name, dict(row.before), dict(row.after))


def foreign(pin: Pin) -> Refused:
    where = f"work/{pin.tag}"
    return Refused.of("foreign-tree", where, "this tool did not make it", "move it away")
