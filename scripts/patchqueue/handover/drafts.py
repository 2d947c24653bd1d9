"""A pull request laid on a base, in memory: its patches, the files that come along, and no more
than these need below them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..hint import counted
from ..laying.matching import Row, in_front, lay_patch
from ..outcome import Outcome, Refused
from ..queue.patchfile import Hunk, Patch
from ..queue.series import Queue
from ..upstream.pins import Pin
from . import additions, cases, prtext

Read = Callable[[str], "bytes | None"]


@dataclass(frozen=True)
class Part:
    """One commit of a pull request. own: not one that only has to be below it; row: how its patch
    was laid.

    files: path -> content as committed; added: those of them that upstream does not have; subject:
    of its commit; cases: path -> the names of our own cases in a test file of upstream's.
    """

    patch: str
    subject: str
    own: bool
    row: Row
    added: frozenset[str]
    files: dict[str, bytes] = field(repr=False)
    cases: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def tests(self) -> list[str]:
        """The test files that it adds, or adds cases to."""
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
    """The chosen patches, and what their headers need, on the base.

    Where a text stands on others of the same files that no header names, it may merely stand beside
    their lines: then it is laid without them, with less context. Else they come too: on an older
    release a patch may need some that later ones have.
    """
    needed = _standing(ground, chosen)
    try:
        return _laid(ground, name, chosen, needed)
    except Refused as refusal:
        more = _same_files(chosen, ground.selected)
        if len(more) == len(needed) or refusal.problems[0].name != str(Outcome.CONFLICT):
            raise
    stacked = _laid(ground, name, chosen, more)
    try:
        return _laid(ground, name, chosen, needed, beside=True)
    except Refused:
        return stacked


def _laid(
    ground: Ground, name: str, chosen: list[Patch], patches: list[Patch], beside: bool = False
) -> Draft:
    laid: dict[str, bytes] = {}
    parts = []
    for patch in patches:
        read = in_front(laid, ground.read)
        stem = additions.stem(ground.queue, patch)
        row = _row(ground, patch, read, beside)
        new, joined = _along(ground, patch, stem, laid)
        files = {**row.after, **new}
        laid |= files
        subject, own = ground.queue.header(patch.name).get("Subject"), patch in chosen
        parts.append(Part(stem, subject, own, row, frozenset(new) - joined.keys(), files, joined))
    return Draft(name, tuple(parts), tuple(patches))


def _row(ground: Ground, patch: Patch, read: Read, beside: bool) -> Row:
    """A patch where its text stands; beside: with less context, where all of it stands nowhere."""
    row = lay_patch(patch, read)
    for context in (2, 1) if beside and row.outcome is Outcome.CONFLICT else ():
        tried = lay_patch(trimmed(patch, context), read)
        if tried.outcome is not Outcome.CONFLICT:
            why = f"{counted(context, 'line')} of context: it stands beside another patch"
            return replace(tried, outcome=Outcome.NEEDS_REFRESH, why=why)
    if row.outcome is not Outcome.CONFLICT:
        return row
    stem = additions.stem(ground.queue, patch)
    text = additions.change(ground.root, stem, ground.pin) or ground.root / "patches" / patch.name
    step = "write a variant that fits this base, or name another: --base COMMIT"
    raise Refused.of(str(row.outcome), str(text.relative_to(ground.root)), row.why, step)


def trimmed(patch: Patch, context: int) -> Patch:
    """The patch with no more than so many lines of context round each of its hunks."""
    files = (
        replace(file, hunks=tuple(_cut(hunk, context) for hunk in file.hunks))
        for file in patch.files
    )
    return replace(patch, files=tuple(files))


def _cut(hunk: Hunk, context: int) -> Hunk:
    first = max(hunk.leading - context, 0)
    last = len(hunk.lines) - max(hunk.trailing - context, 0)
    return replace(
        hunk,
        old_start=hunk.old_start + first,
        new_start=hunk.new_start + first,
        lines=hunk.lines[first:last],
    )


def _along(
    ground: Ground, patch: Patch, stem: str, laid: dict[str, bytes]
) -> tuple[dict[str, bytes], dict[str, tuple[str, ...]]]:
    """(the files that come with a patch, which of them are upstream's tests with cases of ours, by
    the names of these). Raises Refused for another file that the base has."""
    new: dict[str, bytes] = {}
    joined: dict[str, tuple[str, ...]] = {}
    for path, content in additions.files(ground.root, ground.queue, patch, ground.pin).items():
        there = laid.get(path, ground.read(path))
        if there is None:
            new[path] = content
        elif path.startswith("test/"):
            new[path] = cases.join(path, there, content)
            joined[path] = cases.names(there, new[path])
        elif path not in laid:
            what = "the base has a file of this name, and the pull request would add one"
            step = f"rename it below {additions.FOLDER}/{stem}/"
            raise Refused.of("file-exists", path, what, step)
    return new, joined


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


def _same_files(chosen: Iterable[Patch], selected: list[Patch]) -> list[Patch]:
    """The chosen patches and every earlier one that changes a file of theirs, or of those before
    them."""
    kept: list[Patch] = []
    files: set[str] = set()
    for patch in reversed(selected):
        paths = {file.path for file in patch.files}
        if patch in chosen or paths & files:
            kept.append(patch)
            files |= paths
    return kept[::-1]
