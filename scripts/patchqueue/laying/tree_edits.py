"""What a person did in work/<tag>/: read from the copies that quilt keeps of the files of each
patch, and from the series of the tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..files.tree import differing
from ..hint import to_type
from ..outcome import Refused
from ..queue import patchfile
from ..queue.series import OVERLAY_PATCH
from ..upstream.pins import Pin
from ..upstream.source import Source
from . import quilt as quilts
from .context import unified
from .matching import Files, in_front, lay_patch, listing_with, misfits
from .worktree import State, WorkTree


@dataclass(frozen=True)
class Tree:
    """What a tree holds. texts: (patch, header, diff) of each applied patch, in order; overlay: its
    new files.

    recorded: the patches it was made of, name -> sha256, empty where it was not; listing: its
    files, empty likewise.
    """

    texts: tuple[tuple[str, str, str], ...] = ()
    overlay: Files = field(default_factory=dict)
    recorded: dict[str, str] = field(default_factory=dict)
    listing: dict[str, str] = field(default_factory=dict)


def edited(root: Path, pin: Pin, add: bool, pristine: Source) -> Tree | None:
    """What work/<tag>/ holds, its popped patches too; None where it holds no edits."""
    tree, where = WorkTree(root, pin.tag), f"work/{pin.tag}"
    with tree.locked():
        inspection = tree.inspect()
        if inspection.state is State.FOREIGN:
            raise foreign(pin)
        if inspection.state is not State.CHANGED:
            return None
        layers = quilts.layers(tree.path)
        stray = _stray(tree.path, layers, inspection.listing, pristine)
        popped = list(_popped(tree.path, where, layers))
        headers = {
            layer.patch: patchfile.split(
                quilts.content(tree.path / "patches" / layer.patch).decode()
            )[0]
            for layer in [*layers, *popped]
        }
    layers += popped
    if stray:
        layers[-1:] = _with_stray(pin, layers[-1:], stray, add, pristine)
    overlay = {layer.patch: layer.after for layer in layers}.get(OVERLAY_PATCH, {})
    texts = tuple(
        (layer.patch, headers[layer.patch], unified(layer.before, layer.after))
        for layer in layers
        if layer.patch != OVERLAY_PATCH
    )
    recorded = {patch["name"]: patch["sha256"] for patch in inspection.record["patches"]}
    pushed = {path: text for layer in popped for path, text in layer.after.items()}
    return Tree(
        texts,
        {path: text for path, text in overlay.items() if text},
        recorded,
        listing_with(inspection.listing, pushed),
    )


def _with_stray(
    pin: Pin, top: list[quilts.Layer], stray: dict[str, bytes], add: bool, pristine: Source
) -> list[quilts.Layer]:
    """The top patch with the edits that are in no patch. Raises Refused where they are not to be
    added, or no patch is applied."""
    if not (add and top):
        step = (
            f"{to_type('refresh', pin.tag, '--add')} takes these into the top patch;"
            f" {to_type('quilt', pin.tag, 'add FILE')} comes before an edit"
        )
        what = f"edited, but in no patch: {' '.join(stray)}"
        raise Refused.of("stray-edits", f"work/{pin.tag}", what, step)
    original = {path: pristine.read(path) or b"" for path in stray}
    (layer,) = top
    return [replace(layer, before=layer.before | original, after=layer.after | stray)]


def _stray(
    tree: Path, layers: list[quilts.Layer], listing: Mapping[str, str], pristine: Source
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
        stray[name] = below.get(name) or quilts.content(file)
    return stray


def _popped(tree: Path, where: str, layers: list[quilts.Layer]) -> Iterator[quilts.Layer]:
    """The patches of the tree's series that are not applied, as they would be."""
    applied = [layer.patch for layer in layers]
    files: dict[str, bytes] = {}
    read = in_front(files, lambda path: quilts.content(tree / path) or None)
    for name in quilts.listed(tree):
        if name in applied:
            continue
        text = quilts.content(tree / "patches" / name)
        diff = patchfile.split(text.decode())[1]
        if name == OVERLAY_PATCH:
            after = {
                file.path: "".join(line for hunk in file.hunks for line in hunk.new).encode()
                for file in patchfile.parse_diff(diff)
            }
            files |= after
            yield quilts.Layer(name, dict.fromkeys(after, b""), after)
            continue
        if not diff:
            yield quilts.Layer(name, {}, {})
            continue
        patch, problems = patchfile.read(name, text)
        if patch is None:
            raise Refused(problems)
        row = lay_patch(patch, read)
        if row.lines is None:
            step = "correct it in the tree, or the files below it, then refresh again"
            raise Refused([each for _, each in misfits(patch, read, where, step)])
        files |= row.after
        yield quilts.Layer(name, dict(row.before), dict(row.after))


def foreign(pin: Pin) -> Refused:
    where = f"work/{pin.tag}"
    return Refused.of("foreign-tree", where, "this tool did not make it", "move it away")
