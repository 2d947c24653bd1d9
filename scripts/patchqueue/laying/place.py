"""Where a patch's hunks stand in a file: one way of placing them, for the replay, for refresh, rebase and export alike.

A hunk stands where its exact text is: all its context and removed lines, in order, at one place behind the hunk before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..outcome import Outcome
from ..queue import placed
from ..queue.patchfile import CONTEXT, FileDiff, Hunk, Line, Patch

Read = Callable[[str], "bytes | None"]
Files = Mapping[str, bytes]  # path in the tree -> content


@dataclass(frozen=True)
class Spot:
    """One hunk of a file. number: 1-based; lines: every line at which its text begins, behind the hunk before it."""

    number: int
    hunk: Hunk
    lines: tuple[int, ...]

    @property
    def moved(self) -> bool:
        """Whether it stands at one place, and not at its own line."""
        return len(self.lines) == 1 and self.lines[0] != self.hunk.old_start


@dataclass(frozen=True)
class Laid:
    """A file's text with every hunk that has one place, and where the hunks are."""

    text: str
    spots: tuple[Spot, ...]

    @property
    def whole(self) -> bool:
        """Whether every hunk has one place."""
        return all(len(spot.lines) == 1 for spot in self.spots)


@dataclass(frozen=True)
class Row:
    """One patch. outcome: APPLIED as it is, NEEDS_REFRESH, MERGED_UPSTREAM, NOT_SELECTED or CONFLICT; why: what to know about it.

    before, after: the files it changes on the release, where it was laid. ambiguous: a hunk fits at several places.
    lines: where its own text was laid, a line for each hunk; None where the change was made otherwise.
    """

    patch: str
    outcome: Outcome
    why: str = ""
    before: Files = field(default_factory=dict, repr=False, compare=False)
    after: Files = field(default_factory=dict, repr=False, compare=False)
    ambiguous: bool = False
    lines: tuple[int, ...] | None = field(default=None, compare=False)


def lay(text: str, file: FileDiff) -> Laid:
    """The file's hunks on a text, each at its one place; one that has none, or several, is left out."""
    result: list[str] = []
    done = 0  # characters of the old text that are in the result
    spots = []
    for number, hunk in enumerate(file.hunks, 1):
        old = "".join(hunk.old)
        found = list(_find(text, old, done))
        spots.append(Spot(number, hunk, tuple(_line(text, place) for place in found)))
        if len(found) == 1:
            result += [text[done : found[0]], *hunk.new]
            done = found[0] + len(old)
    return Laid("".join([*result, text[done:]]), tuple(spots))


def places(text: str, wanted: str) -> list[int]:
    """Every line (1-based) at which the lines of `wanted` stand in `text`."""
    return [_line(text, place) for place in _find(text, wanted, 0)]


def _find(text: str, wanted: str, begin: int) -> Iterator[int]:
    """Where whole lines of `text` are `wanted`, as offsets; what lacks its line end stands at the end only."""
    at = text.find(wanted, begin) if wanted else -1  # a hunk that deletes the whole file has no new text to look for
    while at >= 0:
        if (at == 0 or text[at - 1] == "\n") and (wanted.endswith("\n") or at + len(wanted) == len(text)):
            yield at
        at = text.find(wanted, at + 1)


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def lay_patch(patch: Patch, read: Read) -> Row:
    """One patch on files that it may not have been made for, in memory: all of it, or none of it."""
    before: dict[str, bytes] = {}
    after: dict[str, bytes] = {}
    lines: list[int] = []
    for file in patch.files:
        content = read(file.path)
        if content is None:
            return Row(patch.name, Outcome.CONFLICT, f"{file.path} is gone")
        laid = lay(content.decode("utf-8", "surrogateescape"), file)
        bad = next((spot for spot in laid.spots if len(spot.lines) != 1), None)
        if bad:
            return Row(patch.name, Outcome.CONFLICT, f"{file.path}: hunk {bad.number} fits {_where(bad)}", ambiguous=len(bad.lines) > 1)
        lines += [spot.lines[0] for spot in laid.spots]
        before[file.path], after[file.path] = content, laid.text.encode("utf-8", "surrogateescape")
    moved = sum(here != own for here, own in zip(lines, placed.own_lines(patch)))
    if moved:
        return Row(patch.name, Outcome.NEEDS_REFRESH, f"{moved} hunk{'s' if moved > 1 else ''} moved", before, after, lines=tuple(lines))
    return Row(patch.name, Outcome.APPLIED, "", before, after, lines=tuple(lines))


def _where(spot: Spot) -> str:
    if spot.lines:
        return f"at {len(spot.lines)} places"
    first = next((line.text for line in spot.hunk.lines if line.kind != " "), "").strip()[:60]
    return f"nowhere; it begins {first!r}"


def widened(patch: Patch, before: Files) -> Patch:
    """The patch as a release's own tree has it: with three lines of that tree's own context round every change.

    before: the files below it, on which its hunks stand at their own lines.
    """
    return placed.of_files(patch, (_widened(file, before[file.path].decode("utf-8", "surrogateescape")) for file in patch.files))


def _widened(file: FileDiff, text: str) -> FileDiff:
    lines = split_lines(text)
    runs = [run for hunk in file.hunks for run in _runs(hunk)]

    def between(start: int, end: int) -> list[Line]:
        return [Line(" ", line) for line in lines[start:end]]

    groups: list[list[tuple[int, int, list[Line]]]] = []
    for run in runs:
        near = groups and run[0] - groups[-1][-1][1] <= 2 * CONTEXT
        groups[-1].append(run) if near else groups.append([run])
    hunks, moved = [], 0
    for group in groups:
        start, end = max(group[0][0] - CONTEXT, 0), group[-1][1] + CONTEXT
        body = between(start, group[0][0])
        for number, run in enumerate(group):
            body += run[2] + between(run[1], group[number + 1][0] if number + 1 < len(group) else end)
        hunks.append(Hunk(start + 1, start + 1 + moved, tuple(body), 0))
        moved += len(hunks[-1].new) - len(hunks[-1].old)
    return replace(file, hunks=tuple(hunks))


def _runs(hunk: Hunk) -> Iterator[tuple[int, int, list[Line]]]:
    """A hunk's runs of changed lines: (first, behind the last) of the old lines, 0-based, and the lines themselves."""
    at, run = hunk.old_start - 1, []
    for line in [*hunk.lines, Line(" ", "")]:
        if line.kind != " ":
            run.append(line)
        elif run:
            gone = sum(each.kind == "-" for each in run)
            yield at, at + gone, run
            at, run = at + gone + 1, []
        else:
            at += 1


def trimmed(patch: Patch, context: int) -> Patch:
    """The patch with fewer lines of context; a hunk whose changes then lie apart becomes two."""
    return placed.of_files(patch, (replace(file, hunks=tuple(_trimmed(file, context))) for file in patch.files))


def _trimmed(file: FileDiff, context: int) -> Iterator[Hunk]:
    moved = 0
    for hunk in file.hunks:
        changed = [number for number, line in enumerate(hunk.lines) if line.kind != " "]
        cuts = [n for n, (one, other) in enumerate(zip(changed, changed[1:]), 1) if other - one - 1 > 2 * context]
        for first, last in zip([0, *cuts], [*cuts, len(changed)]):
            begin, end = max(changed[first] - context, 0), min(changed[last - 1] + context + 1, len(hunk.lines))
            start = hunk.old_start + sum(line.kind != "+" for line in hunk.lines[:begin])
            made = Hunk(start, start + moved, hunk.lines[begin:end], hunk.at_line)
            moved += len(made.new) - len(made.old)
            yield made


def split_lines(text: str) -> list[str]:
    """Lines by \\n alone (str.splitlines also cuts at form feeds and carriage returns)."""
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
