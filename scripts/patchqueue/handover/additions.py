"""The folder of a pull request, pull-requests/TOPIC/PATCH/, laid out as upstream's tree is.

It holds tests at the places where upstream keeps them, and, under python/, files in place of the
overlay's, which know more releases than upstream needs. A change@VERSION.patch there replaces the
series' text from that release up to the next one: the series hooks upstream's code where a pull
request mends it. pull-request.toml has the words that no header has, as Markdown.

A folder without a patch in the series is a step: what a reviewer is sent before a large change. Its
text names the patch that the step leads to, and that patch's text has the step `below` it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import Struct
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..files import record
from ..outcome import Problem, Refused
from ..queue import patchfile
from ..queue.header import TREE_PATH, Header
from ..queue.patchfile import Patch
from ..queue.series import Entry, Queue, read_overlay
from ..upstream.pins import Pin

FOLDER = Path("pull-requests")
NAME = "pull-request.toml"
BAD = "bad-pull-request"
STATUS, PENDING = "Upstream-Status", "Pending"
PROBE = re.compile(rf"{TREE_PATH} :: \S[^\n]*")


class Text(Struct, frozen=True, forbid_unknown_fields=True):
    """pull-request.toml. body: Markdown, with the sections of upstream's template; title: where it
    is not the patch's subject; below: patches that its branch contains, besides those that the
    patch's header needs; step_to: the patch that a step leads to; probe: how to see that upstream
    has the step."""

    body: str
    title: str = ""
    below: tuple[str, ...] = ()
    step_to: str = ""
    probe: str = ""


def stem(queue: Queue, patch: Patch) -> str:
    """A patch's name without variant and suffix: breakable/keep-break-tensors."""
    return queue.base(patch.name).removesuffix(".patch")


def read_text(root: Path, name: str) -> Text | None:
    """The text of a patch's pull request, None where there is none. Raises Refused where it is
    wrong."""
    where = f"{FOLDER}/{name}/{NAME}"
    try:
        content = (root / where).read_bytes()
    except FileNotFoundError:
        return None
    text = record.toml(content, Text, where, BAD, "CONTRIBUTING.md says what stands in it")
    if text.step_to and not (text.title and PROBE.fullmatch(text.probe)):
        what, step = "a step has a title and a probe", "write the probe as `PATH :: TEXT`"
        raise Refused.of(BAD, where, what, step)
    return text


def with_steps(root: Path, queue: Queue, pin: Pin) -> Queue:
    """The queue with each step in front of the patch that it leads to, where the release gets that
    patch. Raises Refused for a step's bad text."""
    patches, entries = dict(queue.patches), [*queue.entries]
    selected = {queue.base(patch.name) for patch in queue.select(pin.version)}
    for name, text in _steps(root, queue).items():
        goal, own = f"{text.step_to}.patch", f"{name}.patch"
        words = (("Subject", text.title), (STATUS, queue.header(goal).get(STATUS)))
        # a step that is not applied has a name too: the goal's text has it below
        patches[own] = Patch(own, b"", Header((*words, ("Probe", text.probe))), ())
        brings = change(root, name, pin) or (root / FOLDER / name / "python").is_dir()
        if goal in selected and brings:
            at = next(n for n, entry in enumerate(entries) if entry.base == goal)
            entries.insert(at, Entry(own, SpecifierSet(), "", 0))
    return replace(queue, patches=patches, entries=tuple(entries))


def _steps(root: Path, queue: Queue) -> dict[str, Text]:
    """The texts of the folders without a patch, by their names in order. Raises Refused for a bad
    text, and for a folder that neither has a patch nor leads to one."""
    known = {entry.base.removesuffix(".patch") for entry in queue.entries}
    steps = {}
    for file in sorted((root / FOLDER).glob(f"*/*/{NAME}")):
        name = file.parent.relative_to(root / FOLDER).as_posix()
        text = read_text(root, name)
        if name in known or text is None:
            continue
        if text.step_to not in known:
            what = f"no patch of the series is named {name!r}, nor {text.step_to!r}, its step_to"
            step = "name the folder as its patch, or in step_to the patch that it is a step to"
            raise Refused.of(BAD, f"{FOLDER}/{name}/{NAME}", what, step)
        steps[name] = text
    return steps


def change(root: Path, name: str, pin: Pin) -> Path | None:
    """The patch that replaces the series' text in a pull request on a release; None where there is
    none."""
    found = {
        Version(file.stem.partition("@")[2]): file
        for file in (root / FOLDER / name).glob("change@*.patch")
    }
    fitting = [version for version in found if version <= pin.version]
    return found[max(fitting)] if fitting else None


def changes(root: Path, queue: Queue, patches: Iterable[Patch], pin: Pin) -> dict[str, Patch]:
    """Those of `patches` that have a replacement for pull requests, with it, by name. Raises
    Refused for a bad one."""
    found: dict[str, Patch] = {}
    wrong: list[Problem] = []
    for patch in patches:
        if file := change(root, stem(queue, patch), pin):
            made, problems = patchfile.read(patch.name, file.read_bytes())
            wrong += [replace(problem, where=str(file.relative_to(root))) for problem in problems]
            found |= {patch.name: made} if made else {}
    if wrong:
        raise Refused(wrong)
    return found


def files(root: Path, queue: Queue, patch: Patch, pin: Pin) -> dict[str, bytes]:
    """The files of a patch's pull request: those of its folder, and the overlay's where the folder
    has none under python/, and no replacement for the patch."""
    name = stem(queue, patch)
    own = {
        path: content for path, content in read_overlay(root / FOLDER / name).items() if "/" in path
    }
    alone = change(root, name, pin) or any(path.startswith("python/") for path in own)
    return own if alone else queue.overlay_for([patch]) | own


@dataclass(frozen=True)
class Part:
    """One commit of a pull request. patch: TOPIC/PATCH; own: the patch that is sent, not one that
    only has to be below it.

    files: path -> content as committed; renamed: its tests whose name upstream has, by that name.
    """

    patch: str
    subject: str
    own: bool
    files: dict[str, bytes] = field(repr=False)
    renamed: dict[str, str] = field(default_factory=dict)

    @property
    def tests(self) -> list[str]:
        """The test files that it adds or changes."""
        return sorted(path for path in self.files if path.startswith("test/"))


def body_of(header: Header) -> str:
    """The body for a patch whose pull request is not written."""
    paragraphs = re.split(r"\n\s*\n", header.get("Description"))
    # one line each: where it is read, a line end is a line's end
    described = "\n\n".join(" ".join(part.split()) for part in paragraphs)
    text = f"## Motivation\n\n{described}\n\n## Modifications\n\n{header.get('Subject')}.\n"
    return text.replace("sglang#", "#")
