"""The independent check: the same patches laid on the same files in memory, at their exact lines
and exact context.

Nothing here calls quilt, patch or git. A hunk that would fit elsewhere is not moved there; it is
reported with the offset. One that fits at its line and elsewhere too is a conflict: a text is laid
only where it stands at one place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..hint import counted, to_type
from ..outcome import Outcome, Problem
from ..queue.patchfile import Patch
from .place import Files, Read, Spot, lay, places, split_lines

WORST_FIRST = (
    Outcome.CORRUPT,
    Outcome.CONFLICT,
    Outcome.MERGED_UPSTREAM,
    Outcome.NEEDS_REFRESH,
)


@dataclass(frozen=True)
class Step:
    """What became of one patch. below: the files that it changes, as they were before it; where it
    was laid."""

    patch: str
    outcome: Outcome
    problems: tuple[Problem, ...] = ()
    below: Files = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Replay:
    """steps: one per patch, in order. files: path -> content after all patches that apply, touched
    files only."""

    steps: tuple[Step, ...]
    files: dict[str, bytes]

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(problem for step in self.steps for problem in step.problems)


def replay(patches: Iterable[Patch], overlay: dict[str, bytes], read: Read, tag: str) -> Replay:
    """Lay overlay and patches, in this order, on the files that `read` gives. tag names the
    revision in messages."""
    files: dict[str, bytes] = {}
    steps = []
    what, hint = "upstream has this file", "change it with a patch, or rename the overlay file"
    taken = tuple(
        Problem("overlay-shadows-upstream", f"overlay/{path} on {tag}", what, hint)
        for path in overlay
        if read(path) is not None
    )
    files.update(overlay)
    for patch in patches:
        step, changed = _one(patch, lambda path: files[path] if path in files else read(path), tag)
        steps.append(step)
        files.update(changed)
    if taken:
        steps.insert(0, Step("overlay", Outcome.CONFLICT, taken))
    return Replay(tuple(steps), files)


def _one(patch: Patch, read: Read, tag: str) -> tuple[Step, dict[str, bytes]]:
    """One patch: all of it, or none of it."""
    below: dict[str, bytes] = {}
    changed: dict[str, bytes] = {}
    problems: list[tuple[Outcome, Problem]] = []
    for file in patch.files:
        where = f"patches/{patch.name} on {tag}: {file.path}"
        content = read(file.path)
        if content is None:
            what, step = "upstream has no such file there", "correct the guard, or the path"
            problems.append(_named(Outcome.CONFLICT, where, what, step))
            continue
        text = content.decode("utf-8", "surrogateescape")
        laid, moved = lay(text, file), 0
        for spot in laid.spots:
            wrong = _misfit(text, spot, moved, where, tag)
            problems += [wrong] if wrong else []
            moved += len(spot.hunk.new) - len(spot.hunk.old)
        below[file.path], changed[file.path] = content, laid.text.encode("utf-8", "surrogateescape")
    if not problems:
        return Step(patch.name, Outcome.APPLIED, below=below), changed
    worst = next(outcome for outcome in WORST_FIRST if outcome in [each for each, _ in problems])
    return Step(patch.name, worst, tuple(problem for _, problem in problems)), {}


def _misfit(
    text: str, spot: Spot, moved: int, where: str, tag: str
) -> tuple[Outcome, Problem] | None:
    """Why a hunk does not belong at its own line, or None where it does. moved: what the hunks
    before it push it down."""
    hunk, number = spot.hunk, spot.number
    at = f"{where}: hunk {number}, line {max(hunk.old_start, 1)}"
    if spot.lines != (hunk.old_start,):
        return _elsewhere(text, spot, at, f"{where}: hunk {number}", tag)
    if hunk.new_start != hunk.old_start + moved:
        what = f"its new side begins at line {hunk.new_start}, but the hunks before it make that"
        step = f"write patches with {to_type('refresh')}, not by hand"
        where = f"{where}: hunk {number}"
        problem = Problem("wrong-hunk-counts", where, f"{what} {hunk.old_start + moved}", step)
        return Outcome.CORRUPT, problem
    return None


def _elsewhere(text: str, spot: Spot, at: str, where: str, tag: str) -> tuple[Outcome, Problem]:
    """What to say of a hunk that does not stand at its own line, or not there alone."""
    hunk = spot.hunk
    if len(spot.lines) > 1:
        shown = ", ".join(map(str, spot.lines[:5])) + (" …" if len(spot.lines) > 5 else "")
        what = f"its text is at {len(spot.lines)} places: lines {shown}"
        step = "change what tells them apart, so that its text is at one place"
        return _named(Outcome.CONFLICT, at, what, step)
    if spot.lines:
        offset = spot.lines[0] - hunk.old_start
        away = f"{counted(abs(offset), 'line')} {'later' if offset > 0 else 'earlier'}"
        step = f"{to_type('refresh', tag)} pins the line that it has now"
        what = f"its text is at line {spot.lines[0]}, {away}"
        return _named(Outcome.NEEDS_REFRESH, at, what, step)
    if hunk.old_start in places(text, "".join(hunk.old)):
        return _named(Outcome.CORRUPT, where, "it overlaps the hunk before it")
    if hunk.new != hunk.old and places(text, "".join(hunk.new)):
        what = "the tree has this change already"
        return _named(Outcome.MERGED_UPSTREAM, at, what, "end the guard before this release")
    what = _first_difference(split_lines(text), max(hunk.old_start - 1, 0), hunk.old)
    step = f"{to_type('rebase', tag)} lays the conflict out; or correct the guard"
    return _named(Outcome.CONFLICT, at, what, step)


def _named(outcome: Outcome, where: str, what: str, step: str = "") -> tuple[Outcome, Problem]:
    return outcome, Problem(str(outcome), where, what, step)


def _first_difference(lines: list[str], start: int, old: list[str]) -> str:
    for n, expected in enumerate(old):
        found = lines[start + n] if start + n < len(lines) else None
        if found != expected:
            shown = repr(found.rstrip("\n")) if found is not None else "the end of the file"
            return (
                f"line {start + n + 1} should read {expected.rstrip(chr(10))!r}, upstream has"
                f" {shown}"
            )
    return "the text is nowhere behind the hunk before it"
