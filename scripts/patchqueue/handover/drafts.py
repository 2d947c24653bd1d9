"""A pull request laid on a base, in memory: its patches, the files that come along, and no more
than these need below them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..laying.matching import Row, apply_patch, in_front
from ..outcome import Outcome, Refused
from ..queue.patchfile import Patch
from ..queue.series import Queue
from ..upstream.pins import Pin
from . import additions, prtext

Read = Callable[[str], "bytes | None"]


@dataclass(frozen=True)
class Part:
    """One commit of a pull request. own: not one that only has to be below it; row: how its patch
    was laid.

    files: path -> content as committed; subject: of its commit; renamed: its tests whose name
    upstream has already, by that name.
    """

    patch: str
    subject: str
    own: bool
    row: Row
    files: dict[str, bytes] = field(repr=False)
    renamed: dict[str, str] = field(default_factory=dict)

    @property
    def tests(self) -> list[str]:
        """The test files that it adds."""
        return sorted(path for path in self.files if path.startswith("test/"))


@dataclass(frozen=True)
class Draft:
    """A pull request before its format is seen to. name: a topic, or one patch of it; patches: as
    the queue has them, one for each part."""

    name: str
    parts: tuple[Part, ...]
    patches: tuple[Patch, ...]


@dataclass(frozen=True)
class Ground:
    """What drafts are laid on. selected: the patches that the release gets, with their texts for
    pull requests; read: a file of the base."""

    root: Path
    queue: Queue
    pin: Pin
    selected: list[Patch]
    read: Read


def draft(ground: Ground, name: str, chosen: list[Patch]) -> Draft:
    """The chosen patches, and what their headers and texts need, on the base. Raises Refused where
    one does not fit."""
    patches = _standing(ground, chosen)
    laid: dict[str, bytes] = {}
    parts = []
    for patch in patches:
        read = in_front(laid, ground.read)
        stem = additions.stem(ground.queue, patch)
        row = _row(ground, patch, read)
        new, renamed = _along(ground, patch, stem, laid)
        files = {**row.after, **new}
        laid |= files
        subject, own = ground.queue.header(patch.name).get("Subject"), patch in chosen
        parts.append(Part(stem, subject, own, row, files, renamed))
    return Draft(name, tuple(parts), tuple(patches))


def _row(ground: Ground, patch: Patch, read: Read) -> Row:
    """A patch where its text stands. Raises Refused where that is nowhere, or no one place."""
    row = apply_patch(patch, read)
    if row.outcome is not Outcome.CONFLICT:
        return row
    stem = additions.stem(ground.queue, patch)
    text = additions.change(ground.root, stem, ground.pin) or ground.root / "patches" / patch.name
    step = (
        "name what it stands on in `below` of its text, write a variant that fits this base, or"
        " name another: --base COMMIT"
    )
    raise Refused.of(str(row.outcome), str(text.relative_to(ground.root)), row.why, step)


def _along(
    ground: Ground, patch: Patch, stem: str, laid: dict[str, bytes]
) -> tuple[dict[str, bytes], dict[str, str]]:
    """(the files that come with a patch, those of its tests that got another name since upstream
    has theirs, by that). Raises Refused for another file that the base has."""
    new: dict[str, bytes] = {}
    renamed: dict[str, str] = {}
    for path, content in additions.files(ground.root, ground.queue, patch, ground.pin).items():
        there = laid.get(path, ground.read(path))
        if there is None:
            new[path] = content
        elif path.startswith("test/"):
            name = f"test_{stem.rpartition('/')[2].replace('-', '_')}.py"
            renamed[path] = f"{path.rpartition('/')[0]}/{name}"
            new[renamed[path]] = content
        elif path not in laid:
            what = "the base has a file of this name, and the pull request would add one"
            step = f"rename it below {additions.FOLDER}/{stem}/"
            raise Refused.of("file-exists", path, what, step)
    return new, renamed


def _standing(ground: Ground, chosen: list[Patch]) -> list[Patch]:
    """The chosen patches and those that they need, each behind what it needs, and else in the
    series' order."""
    queue = ground.queue
    there = {queue.base(patch.name): patch for patch in ground.selected}
    wanted = {queue.base(patch.name) for patch in chosen}
    while (
        more := {need for name in wanted & there.keys() for need in _needs(ground, there[name])}
        - wanted
    ):
        wanted |= more
    begun: set[str] = set()
    found: list[Patch] = []

    def add(name: str) -> None:
        if name in begun or name not in there:
            return
        begun.add(name)
        for need in _needs(ground, there[name]):
            add(need)
        found.append(there[name])

    for name in there:
        if name in wanted:
            add(name)
    return found


def _needs(ground: Ground, patch: Patch) -> tuple[str, ...]:
    """What a patch's branch stands on: by its header, and by the text of its pull request. Raises
    Refused where the text names no patch."""
    stem = additions.stem(ground.queue, patch)
    text = additions.text(ground.root, stem)
    below = tuple(f"{one}.patch" for one in text.below) if text else ()
    for one in below:
        if one not in ground.queue.patches:
            where = f"{additions.FOLDER}/{stem}/{prtext.NAME}"
            what = f"below names no patch: {one.removesuffix('.patch')!r}"
            raise Refused.of(prtext.BAD, where, what, "name it as TOPIC/PATCH")
    return (*ground.queue.header(patch.name).needs, *below)
