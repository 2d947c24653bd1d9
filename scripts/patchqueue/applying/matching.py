"""The engine: where a patch's hunks apply, for every command that applies patches in memory.

A hunk applies where its exact text is: all its context and removed lines, in order, at one place
behind the hunk before it. The line numbers in a patch file are not read. Nothing here calls quilt,
patch or git.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher, get_close_matches

from ..files.tree import sha256
from ..outcome import Outcome, Problem, to_type
from ..queue.patchfile import FileDiff, Hunk, Patch, of_files

Read = Callable[[str], "bytes | None"]
Files = Mapping[str, bytes]  # path in the tree -> content

WORST_FIRST = (Outcome.CONFLICT, Outcome.MERGED_UPSTREAM)
AROUND = 8  # lines beside a hunk among which the rest of it is looked for
REVERSED = {"+": "-", "-": "+", " ": " "}  # kinds of lines


@dataclass(frozen=True)
class Spot:
    """One hunk of a file.

    number: 1-based; lines: every line at which its text begins, behind the hunk before it.
    """

    number: int
    hunk: Hunk
    lines: tuple[int, ...]


@dataclass(frozen=True)
class Match:
    """A file's text with every hunk that has one place, and where the hunks are."""

    text: str
    spots: tuple[Spot, ...]


@dataclass(frozen=True)
class Row:
    """The outcome of one patch on a release, or of the overlay.

    outcome: APPLIED as it is, NEEDS_REFRESH where git or a person made the change, MERGED_UPSTREAM,
    NOT_SELECTED or CONFLICT. why: the reason in short; problems: the same for a strict replay.
    before, after: the files it changes on the release, where it was applied. ambiguous: a hunk fits
    at several places. lines: where its own text was applied, a line for each hunk; None where the
    change was made otherwise.
    """

    patch: str
    outcome: Outcome
    why: str = ""
    before: Files = field(default_factory=dict, repr=False, compare=False)
    after: Files = field(default_factory=dict, repr=False, compare=False)
    ambiguous: bool = False
    lines: tuple[int, ...] | None = field(default=None, compare=False)
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Replay:
    """steps: one per patch, in order. files: path -> content after all patches that apply, touched
    files only."""

    steps: tuple[Row, ...]
    files: dict[str, bytes]

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(problem for step in self.steps for problem in step.problems)


def match(text: str, file: FileDiff) -> Match:
    """The file's hunks on a text, each at its one place; others are left out."""
    result: list[str] = []
    done = 0  # characters of the old text that are in the result
    spots = []
    for number, hunk in enumerate(file.hunks, 1):
        old = "".join(hunk.old)
        offsets = list(find(text, old, done))
        spots.append(Spot(number, hunk, tuple(line_at(text, offset) for offset in offsets)))
        if len(offsets) == 1:
            result += [text[done : offsets[0]], *hunk.new]
            done = offsets[0] + len(old)
    return Match("".join([*result, text[done:]]), tuple(spots))


def places(text: str, lines: str) -> list[int]:
    """Every line (1-based) at which `lines` are in `text`."""
    return [line_at(text, offset) for offset in find(text, lines, 0)]


def find(text: str, lines: str, begin: int) -> Iterator[int]:
    """Where whole lines of `text` are `lines`, as offsets.

    What lacks its line end is at the end only; no lines at all are nowhere.
    """
    at = text.find(lines, begin) if lines else -1
    while at >= 0:
        begins = at == 0 or text[at - 1] == "\n"
        if begins and (lines.endswith("\n") or at + len(lines) == len(text)):
            yield at
        at = text.find(lines, at + 1)


def line_at(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def split_lines(text: str) -> list[str]:
    """Lines by \\n alone (str.splitlines also cuts at form feeds and carriage returns)."""
    return list(io.StringIO(text))


def text_of(content: bytes) -> str:
    """The text of a file; bytes that are no UTF-8 are kept."""
    return content.decode("utf-8", "surrogateescape")


def in_front(files: Mapping[str, bytes], read: Read) -> Read:
    """`read`, where `files` does not have the path. files: looked at when a path is read."""
    return lambda path: files[path] if path in files else read(path)


def apply_patch(patch: Patch, read: Read) -> Row:
    """One patch on files that it may not have been made for: all of it, or none of it."""
    before: dict[str, bytes] = {}
    after: dict[str, bytes] = {}
    lines: list[int] = []
    for file in patch.files:
        content = read(file.path)
        if content is None:
            return Row(patch.name, Outcome.CONFLICT, f"{file.path} is gone")
        matched = match(text_of(content), file)
        bad = next((spot for spot in matched.spots if len(spot.lines) != 1), None)
        if bad:
            where = f"at {len(bad.lines)} places"
            if not bad.lines:
                where = f"nowhere; it begins {bad.hunk.changed[0][1:].strip()[:60]!r}"
            why = f"{file.path}: hunk {bad.number} fits {where}"
            return Row(patch.name, Outcome.CONFLICT, why, ambiguous=len(bad.lines) > 1)
        lines += [spot.lines[0] for spot in matched.spots]
        before[file.path], after[file.path] = (
            content,
            matched.text.encode("utf-8", "surrogateescape"),
        )
    return Row(patch.name, Outcome.APPLIED, "", before, after, lines=tuple(lines))


def inverted(file: FileDiff) -> FileDiff:
    """The diff that takes a file's hunks off again, wherever their new text is."""
    hunks = (
        replace(hunk, lines=tuple(f"{REVERSED[line[0]]}{line[1:]}" for line in hunk.lines))
        for hunk in file.hunks
    )
    return replace(file, hunks=tuple(hunks))


def listing_with(listing: Mapping[str, str], files: Files) -> dict[str, str]:
    """The listing of a tree with these files on it. listing: before them."""
    return {**listing, **{path: sha256(content) for path, content in files.items()}}


def replay(
    patches: Iterable[Patch], overlay: Files, read: Read, where: str, edited: str = ""
) -> Replay:
    """Apply overlay and patches, in this order, to the files that `read` gives.

    where: the release, or a tree with edits of others, in messages. edited: for such a tree, what
    to do about a conflict; a patch whose change it has already is ALREADY_APPLIED there.
    """
    files: dict[str, bytes] = dict(overlay)
    steps = [] if edited else list(_shadowed(overlay, read, where))
    unfit_paths: set[str] = set()
    for patch in patches:
        below = in_front(files, read)
        row = apply_patch(patch, below)
        if row.lines is None:
            backwards = of_files(patch, map(inverted, patch.files))
            if edited and apply_patch(backwards, below).lines is not None:
                row = replace(row, outcome=Outcome.ALREADY_APPLIED)
            else:
                problems = tuple(misfits(patch, below, where, edited))
                named = [problem.name for problem in problems]
                worst = next(outcome for outcome in WORST_FIRST if outcome in named)
                row = replace(row, outcome=worst, problems=problems)
        if edited and row.problems:
            paths = {file.path for file in patch.files}
            # a patch on top of one that does not fit says nothing of its own
            row = replace(row, problems=()) if paths & unfit_paths else row
            unfit_paths |= paths
        steps.append(row)
        files |= row.after
    return Replay(tuple(steps), files)


def _shadowed(overlay: Files, read: Read, where: str) -> Iterator[Row]:
    what, hint = "upstream has this file", "change it with a patch, or rename the overlay file"
    problems = tuple(
        Problem("overlay-shadows-upstream", f"overlay/{path} on {where}", what, hint)
        for path in overlay
        if read(path) is not None
    )
    if problems:
        yield Row("overlay", Outcome.CONFLICT, problems=problems)


def misfits(patch: Patch, read: Read, where: str, edited: str = "") -> Iterator[Problem]:
    """Each file and hunk that keeps a patch from being applied.

    where: the release, or a tree with edits of others; edited: what to do about these, for a tree.
    """
    for file in patch.files:
        at, content = f"patches/{patch.name} on {where}: {file.path}", read(file.path)
        if content is None:
            what = "the queue changes this file, and the tree has it no more"
            what = what if edited else "upstream has no such file there"
            step = edited or "correct the guard, or the path"
            yield Problem(str(Outcome.CONFLICT), at, what, step)
            continue
        text = text_of(content)
        for spot in match(text, file).spots:
            if len(spot.lines) != 1:
                yield _misfit(text, spot, f"{at}: hunk {spot.number}", where, edited)


def _misfit(text: str, spot: Spot, where: str, tag: str, edited: str) -> Problem:
    """Why a hunk does not apply; the problem has an outcome's name."""
    hunk, conflict = spot.hunk, str(Outcome.CONFLICT)
    if spot.lines:
        shown = ", ".join(map(str, spot.lines[:5])) + (" …" if len(spot.lines) > 5 else "")
        what = f"its text is at {len(spot.lines)} places: lines {shown}"
        step = "change what tells them apart, so that its text is at one place"
        return Problem(conflict, where, what, edited or step)
    step = edited or f"{to_type('rebase', tag)} shows both sides; or correct the guard"
    if not edited and places(text, "".join(hunk.old)):
        what = "its text is before the end of the hunk that comes first"
        return Problem(conflict, where, what, step)
    if not edited and hunk.new != hunk.old and places(text, "".join(hunk.new)):
        what = "the tree has this change already"
        step = "end the guard before this release"
        return Problem(str(Outcome.MERGED_UPSTREAM), where, what, step)
    return Problem(conflict, where, _both_sides(split_lines(text), hunk.old), step)


def _both_sides(lines: Sequence[str], ours: Sequence[str]) -> str:
    """The first line that differs between a hunk's old side and the lines that are there in its
    place."""
    around = AROUND if any(line.strip() and line in lines for line in ours) else 0
    first = max(nearest(lines, ours) - around, 0)
    region = lines[first : first + len(ours) + 2 * around]
    for kind, at, end, there, behind in SequenceMatcher(None, ours, region).get_opcodes():
        if kind != "equal" and at < len(ours) and (at or kind != "insert"):
            begins = at == 0 and end < len(ours)  # the region begins before the hunk
            line = max(there, behind - end) if begins else there
            present = region[line] if line < len(region) else ""
            theirs = repr(present.rstrip("\n")) if present else "the end of the file"
            needs = repr(ours[at].rstrip("\n"))
            return f"line {first + line + 1} reads {theirs}; the queue's patch needs {needs}"
    return "its lines stand before those of the hunk that comes first"


def nearest(lines: Sequence[str], searched: Sequence[str]) -> int:
    """Where the lines begin of which most are there without a gap, 0-based. Blank lines alone do
    not count. Where none is there, the place of the line that is most like the longest one."""
    matcher = SequenceMatcher(lambda line: not line.strip(), lines, searched, autojunk=False)
    block = matcher.find_longest_match()
    if not block.size and searched:
        longest = max(searched, key=len)
        for alike in get_close_matches(longest, lines, 1):
            return max(0, lines.index(alike) - searched.index(longest))
    return max(0, block.a - block.b)
