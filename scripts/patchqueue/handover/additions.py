"""What a pull request brings beside its patch: its folder pull-requests/TOPIC/PATCH/, laid out as
upstream's tree is.

Tests lie at the places where upstream keeps them, and, under python/, files in place of the
overlay's, which know more releases than upstream needs. A change@VERSION.patch there is laid in
place of the series' text, from that release on up to the next one: the series hooks upstream's code
where a pull request mends it. What the text says lies beside them (prtext.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from ..outcome import Problem, Refused
from ..queue import patchfile
from ..queue.patchfile import Patch
from ..queue.series import Queue, read_overlay
from ..upstream.pins import Pin
from . import prtext

FOLDER = Path("pull-requests")
PENDING = "Pending"


def stem(queue: Queue, patch: Patch) -> str:
    """A patch's name without variant and suffix: breakable/keep-break-tensors."""
    return queue.base(patch.name).removesuffix(".patch")


def text(root: Path, name: str) -> prtext.Text | None:
    """What the pull request of a patch says. Raises Refused for a bad one."""
    return prtext.read(root / FOLDER / name, f"{FOLDER}/{name}/{prtext.NAME}")


def change(root: Path, name: str, pin: Pin) -> Path | None:
    """The text of a patch's pull request on a release, where that is not the series' own."""
    found = {
        Version(file.stem.partition("@")[2]): file
        for file in (root / FOLDER / name).glob("change@*.patch")
    }
    fitting = [version for version in found if version <= pin.version]
    return found[max(fitting)] if fitting else None


def changes(root: Path, queue: Queue, patches: Iterable[Patch], pin: Pin) -> dict[str, Patch]:
    """Those of `patches` that have a text of their own for pull requests, with it, by name. Raises
    Refused for a bad one."""
    found: dict[str, Patch] = {}
    wrong: list[Problem] = []
    for patch in patches:
        if file := change(root, stem(queue, patch), pin):
            made, said = patchfile.read(patch.name, file.read_bytes())
            wrong += [replace(problem, where=str(file.relative_to(root))) for problem in said]
            found |= {patch.name: made} if made else {}
    if wrong:
        raise Refused(wrong)
    return found


def files(root: Path, queue: Queue, patch: Patch, pin: Pin) -> dict[str, bytes]:
    """The files of a patch's pull request: those of its folder, and the overlay's where it has none
    under python/.

    A text of its own for pull requests needs no file but those beside it.
    """
    name = stem(queue, patch)
    own = {
        path: content for path, content in read_overlay(root / FOLDER / name).items() if "/" in path
    }
    alone = change(root, name, pin) or any(path.startswith("python/") for path in own)
    return own if alone else queue.overlay_for([patch]) | own
