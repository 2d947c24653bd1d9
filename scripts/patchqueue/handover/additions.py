"""What a pull request brings beside its patch: its folder pull-requests/TOPIC/PATCH/, laid out as
upstream's tree is.

Tests lie at the places where upstream keeps them, and, under python/, files in place of the
overlay's, which know more releases than upstream needs. A change@VERSION.patch there is laid in
place of the series' text, from that release on up to the next one: the series hooks upstream's code
where a pull request mends it. What the text says lies beside them (prtext.py).

A folder without a patch in the series is a step: what a reviewer is sent before a large change. Its
text names the patch that the step leads to, and that one's text has the step `below` it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..outcome import Problem, Refused
from ..queue import patchfile
from ..queue.header import Header
from ..queue.patchfile import Patch
from ..queue.series import Entry, Queue, read_overlay
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


def with_steps(root: Path, queue: Queue, pin: Pin) -> Queue:
    """The queue with each step in front of the patch that it leads to, where the release gets that
    one. Raises Refused for a step's bad text."""
    patches, entries = dict(queue.patches), [*queue.entries]
    got = {queue.base(patch.name) for patch in queue.select(pin.version)}
    for name, said in _steps(root, queue).items():
        goal, own = f"{said.step_to}.patch", f"{name}.patch"
        # its name is known where it is not laid: the goal's text has it below
        patches[own] = Patch(own, b"", _header_of(said, queue.header(goal)), ())
        brings = change(root, name, pin) or (root / FOLDER / name / "python").is_dir()
        if goal in got and brings:
            at = next(n for n, entry in enumerate(entries) if entry.base == goal)
            entries.insert(at, Entry(own, SpecifierSet(), "", 0))
    return replace(queue, patches=patches, entries=tuple(entries))


def _steps(root: Path, queue: Queue) -> dict[str, prtext.Text]:
    """The texts of the folders that no patch has, by their names in order. Raises Refused for one
    that leads to no patch, and for a patch's that is called a step."""
    known = {entry.base for entry in queue.entries}
    steps = {}
    for file in sorted((root / FOLDER).glob(f"*/*/{prtext.NAME}")):
        name = file.parent.relative_to(root / FOLDER).as_posix()
        try:
            said = text(root, name)
        except Refused:
            if f"{name}.patch" in known:
                continue  # told when that patch is sent
            raise
        if said and (wrong := _misplaced(said, name, known)):
            raise Refused.of(prtext.BAD, f"{FOLDER}/{name}/{prtext.NAME}", *wrong)
        if said and said.step_to:
            steps[name] = said
    return steps


def _misplaced(said: prtext.Text, name: str, known: Container[str]) -> tuple[str, str] | None:
    """What is wrong with where a text lies and what it leads to, and what to do about it."""
    if f"{name}.patch" in known:
        step = "leave step_to and probe out: its header says more"
        return ("it has step_to, and its patch is in the series", step) if said.step_to else None
    if f"{said.step_to}.patch" in known:
        return None
    leads = f"nor {said.step_to!r}, its step_to" if said.step_to else "and it has no step_to"
    step = "name the folder as its patch, or in step_to the patch that it is a step to"
    return f"no patch of the series is named {name!r}, {leads}", step


def _header_of(said: prtext.Text, goal: Header) -> Header:
    """A step's header: the words of its text, and the status of the patch that it leads to."""
    status = "Upstream-Status"
    return Header((("Subject", said.title), (status, goal.get(status)), ("Probe", said.probe)))


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
