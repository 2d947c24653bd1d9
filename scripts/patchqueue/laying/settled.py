"""The queue on a tree with edits of others: which patches it has already, or what conflicts.

A patch whose every change the tree has already is left out. Anything else that does not apply is a
conflict, and nothing is laid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..hint import some
from ..outcome import Outcome, Problem, Refused
from ..queue.patchfile import FileDiff, Line, Patch, of_files
from ..queue.series import PROVENANCE
from .place import Read, in_front, lay, lay_patch, split_lines
from .replay import both_sides, several
from .selection import Selection

KINDS = {"+": "-", "-": "+", " ": " "}


def settle(selection: Selection, read: Read, where: str, step: str) -> Selection:
    """The selection without the patches whose change a tree has already.

    read: its files; where: what a user calls it; step: what to do about a conflict. Raises Refused,
    with a problem for each hunk that does not fit, by both sides.
    """
    problems = list(_shadowed(selection, read, where))
    files = dict(selection.overlay)
    present: list[str] = []
    bad: set[str] = set()
    for patch in selection.patches:
        below = in_front(files, read)
        row = lay_patch(patch, below)
        if row.lines is not None:
            files |= row.after
        elif lay_patch(inverse(patch), below).lines is not None:
            present.append(patch.name)
        else:
            paths = {file.path for file in patch.files}
            # what stands on a patch that does not fit says nothing of its own
            problems += [] if paths & bad else _conflicts(patch, below, where, step)
            bad |= paths
    if problems:
        raise Refused(problems)
    return replace(selection, already_present=tuple(present))


def inverse(patch: Patch) -> Patch:
    """What takes a patch off again, each hunk where the patch has put it."""
    return of_files(patch, (inverted(file) for file in patch.files))


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
                what = several(spot) if spot.lines else both_sides(split_lines(text), spot)
                yield Problem(str(Outcome.CONFLICT), f"{at}: hunk {spot.number}", what, step)
