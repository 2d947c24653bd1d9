"""The queue on a tree that carries edits of others: where its hunks stand there, or what conflicts.

A hunk stands where its exact text is, at one place; at which line does not matter. A patch whose
every change the tree has already is left out. Anything else is a conflict, and nothing is laid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from ..hint import some
from ..outcome import Outcome, Problem, Refused
from ..queue import placed
from ..queue.patchfile import FileDiff, Line, Patch
from ..queue.series import PROVENANCE
from .place import Read, Spot, in_front, lay, lay_patch, split_lines
from .selection import Selection

AROUND = 8  # lines beside a hunk among which the rest of it is looked for
KINDS = {"+": "-", "-": "+", " ": " "}


def settle(selection: Selection, read: Read, where: str, step: str) -> Selection:
    """The selection with the lines that its hunks have in a tree.

    read: its files; where: what a user calls it; step: what to do about a conflict. Raises Refused,
    with a problem for each hunk that does not fit, by both sides.
    """
    problems = list(_shadowed(selection, read, where))
    files = dict(selection.overlay)
    lines: dict[str, tuple[int, ...]] = {}
    bad: set[str] = set()
    for patch in selection.patches:
        below = in_front(files, read)
        row = lay_patch(patch, below)
        if row.lines is not None:
            lines[patch.name] = row.lines
            files |= row.after
        elif lay_patch(inverse(patch), below).lines is None:
            paths = {file.path for file in patch.files}
            # what stands on a patch that does not fit says nothing of its own
            problems += [] if paths & bad else _conflicts(patch, below, where, step)
            bad |= paths
    if problems:
        raise Refused(problems)
    return replace(selection, lines=lines)


def inverse(patch: Patch) -> Patch:
    """What takes a patch off again, each hunk where the patch has put it."""
    return placed.of_files(patch, (inverted(file) for file in patch.files))


def inverted(file: FileDiff) -> FileDiff:
    hunks = (
        replace(
            hunk,
            old_start=hunk.new_start,
            new_start=hunk.old_start,
            lines=tuple(Line(KINDS[line.kind], line.text) for line in hunk.lines),
        )
        for hunk in file.hunks
    )
    return replace(file, hunks=tuple(hunks))


def _shadowed(selection: Selection, read: Read, where: str) -> Iterator[Problem]:
    """Files of the tree that have the name of one that the queue adds."""
    taken = [path for path in selection.overlay if read(path) is not None]
    if PROVENANCE in taken:
        what = "carries a queue already: it has the files of its package"
        step = "take that one off first, or begin with a commit that has none"
        yield Problem("patched-already", where, what, step)
    elif taken:
        what = f"the queue adds {some(taken)}, and this tree has a file of that name"
        step = "rename the one of the tree, with what imports it"
        yield Problem(str(Outcome.CONFLICT), where, what, step)


def _conflicts(patch: Patch, read: Read, where: str, step: str) -> Iterator[Problem]:
    """What keeps a patch from being laid: each hunk with the lines that are there in its place."""
    for file in patch.files:
        at, content = f"patches/{patch.name} on {where}: {file.path}", read(file.path)
        if content is None:
            what = "the queue changes this file, and the tree has it no more"
            yield Problem(str(Outcome.CONFLICT), at, what, step)
            continue
        text = content.decode("utf-8", "surrogateescape")
        for spot in lay(text, file).spots:
            if len(spot.lines) != 1:
                what = _both_sides(split_lines(text), spot)
                yield Problem(str(Outcome.CONFLICT), f"{at}: hunk {spot.number}", what, step)


def _both_sides(lines: Sequence[str], spot: Spot) -> str:
    if spot.lines:
        shown = ", ".join(map(str, spot.lines[:5]))
        return f"the lines that it changes stand at {len(spot.lines)} places: lines {shown}"
    ours = spot.hunk.old
    first = max(nearest(lines, ours) - AROUND, 0)
    region = lines[first : first + len(ours) + 2 * AROUND]
    for kind, at, _, there, _ in SequenceMatcher(None, ours, region).get_opcodes():
        if kind != "equal" and at < len(ours) and (at or kind != "insert"):
            found = region[there] if there < len(region) else ""
            theirs = repr(found.rstrip("\n")) if found else "the end of the file"
            needs = repr(ours[at].rstrip("\n"))
            return f"line {first + there + 1} reads {theirs}; the queue's patch needs {needs}"
    return "its lines stand before those of the hunk that comes first"


def nearest(lines: Sequence[str], wanted: Sequence[str]) -> int:
    """Where most of the wanted lines stand, in order and without a gap, 0-based; the first of these
    places. Blank lines count for little."""
    weights = [1.0 if line.strip() else 0.01 for line in wanted]
    places: dict[int, float] = {}
    known: dict[str, list[int]] = {}
    for number, line in enumerate(wanted):
        known.setdefault(line, []).append(number)
    for at, line in enumerate(lines):
        for number in known.get(line, ()):
            places[at - number] = places.get(at - number, 0) + weights[number]
    fitting = {start: score for start, score in places.items() if start >= 0}
    return max(fitting, key=lambda start: (fitting[start], -start)) if fitting else 0
