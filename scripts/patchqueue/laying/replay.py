"""The queue applied in memory: overlay and patches on a release's files, each misfit named.

Nothing here calls quilt, patch or git.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from ..hint import to_type
from ..outcome import Outcome, Problem
from ..queue.patchfile import Patch
from .place import Read, Row, Spot, in_front, lay, lay_patch, places, split_lines

WORST_FIRST = (Outcome.CONFLICT, Outcome.MERGED_UPSTREAM)
AROUND = 8  # lines beside a hunk among which the rest of it is looked for


@dataclass(frozen=True)
class Step:
    """What became of one patch, or of the overlay. row: where it was applied."""

    patch: str
    outcome: Outcome
    problems: tuple[Problem, ...] = ()
    row: Row | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Replay:
    """steps: one per patch, in order. files: path -> content after all patches that apply, touched
    files only."""

    steps: tuple[Step, ...]
    files: dict[str, bytes]

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(problem for step in self.steps for problem in step.problems)

    @property
    def rows(self) -> dict[str, Row]:
        """The patches that were applied, by name."""
        return {step.patch: step.row for step in self.steps if step.row}


def replay(patches: Iterable[Patch], overlay: dict[str, bytes], read: Read, tag: str) -> Replay:
    """Apply overlay and patches, in this order, to the files that `read` gives. tag names the
    revision in messages."""
    files: dict[str, bytes] = dict(overlay)
    steps = []
    what, hint = "upstream has this file", "change it with a patch, or rename the overlay file"
    taken = tuple(
        Problem("overlay-shadows-upstream", f"overlay/{path} on {tag}", what, hint)
        for path in overlay
        if read(path) is not None
    )
    for patch in patches:
        row = lay_patch(patch, in_front(files, read))
        if row.lines is None:
            found = list(_misfits(patch, in_front(files, read), tag))
            worst = next(each for each in WORST_FIRST if each in [outcome for outcome, _ in found])
            steps.append(Step(patch.name, worst, tuple(problem for _, problem in found)))
        else:
            steps.append(Step(patch.name, Outcome.APPLIED, row=row))
            files |= row.after
    if taken:
        steps.insert(0, Step("overlay", Outcome.CONFLICT, taken))
    return Replay(tuple(steps), files)


def _misfits(patch: Patch, read: Read, tag: str) -> Iterator[tuple[Outcome, Problem]]:
    """Each file and hunk that keeps a patch from being applied to a release."""
    for file in patch.files:
        where = f"patches/{patch.name} on {tag}: {file.path}"
        content = read(file.path)
        if content is None:
            what, step = "upstream has no such file there", "correct the guard, or the path"
            yield _named(Outcome.CONFLICT, where, what, step)
            continue
        text = content.decode("utf-8", "surrogateescape")
        for spot in lay(text, file).spots:
            if len(spot.lines) != 1:
                yield _misfit(text, spot, f"{where}: hunk {spot.number}", tag)


def _misfit(text: str, spot: Spot, where: str, tag: str) -> tuple[Outcome, Problem]:
    """Why a hunk does not apply to a release."""
    hunk = spot.hunk
    if spot.lines:
        step = "change what tells them apart, so that its text is at one place"
        return _named(Outcome.CONFLICT, where, several(spot), step)
    step = f"{to_type('rebase', tag)} lays the conflict out; or correct the guard"
    if places(text, "".join(hunk.old)):
        what = "its text is before the end of the hunk that comes first"
        return _named(Outcome.CONFLICT, where, what, step)
    if hunk.new != hunk.old and places(text, "".join(hunk.new)):
        what = "the tree has this change already"
        return _named(Outcome.MERGED_UPSTREAM, where, what, "end the guard before this release")
    return _named(Outcome.CONFLICT, where, both_sides(split_lines(text), spot), step)


def _named(outcome: Outcome, where: str, what: str, step: str = "") -> tuple[Outcome, Problem]:
    return outcome, Problem(str(outcome), where, what, step)


def several(spot: Spot) -> str:
    """What is wrong with a hunk whose text is at several places."""
    shown = ", ".join(map(str, spot.lines[:5])) + (" …" if len(spot.lines) > 5 else "")
    return f"its text is at {len(spot.lines)} places: lines {shown}"


def both_sides(lines: Sequence[str], spot: Spot) -> str:
    """The first line that differs between a hunk and the lines that are there in its place."""
    ours = spot.hunk.old
    first = max(nearest(lines, ours) - AROUND, 0)
    region = lines[first : first + len(ours) + 2 * AROUND]
    for kind, at, end, there, behind in SequenceMatcher(None, ours, region).get_opcodes():
        if kind != "equal" and at < len(ours) and (at or kind != "insert"):
            begins = at == 0 and end < len(ours)  # the region begins before the hunk
            line = max(there, behind - end) if begins else there
            found = region[line] if line < len(region) else ""
            theirs = repr(found.rstrip("\n")) if found else "the end of the file"
            needs = repr(ours[at].rstrip("\n"))
            return f"line {first + line + 1} reads {theirs}; the queue's patch needs {needs}"
    return "its lines stand before those of the hunk that comes first"


def nearest(lines: Sequence[str], wanted: Sequence[str]) -> int:
    """Where most of the wanted lines stand, in order and without a gap, 0-based; the first of these
    places. Blank lines count for little."""
    weights = [1.0 if line.strip() else 0.01 for line in wanted]
    scores: dict[int, float] = {}
    known: dict[str, list[int]] = {}
    for number, line in enumerate(wanted):
        known.setdefault(line, []).append(number)
    for at, line in enumerate(lines):
        for number in known.get(line, ()):
            scores[at - number] = scores.get(at - number, 0) + weights[number]
    fitting = {start: score for start, score in scores.items() if start >= 0}
    return max(fitting, key=lambda start: (fitting[start], -start)) if fitting else 0
