"""The independent check: the same patches laid on the same files in memory, at their exact lines and exact context.

Nothing here calls quilt, patch or git. A hunk that would fit elsewhere is not moved there; it is reported with the offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..hint import counted, to_type
from ..outcome import Outcome, Problem
from ..queue.patchfile import CONTEXT, FileDiff, Hunk, Patch

Read = Callable[[str], "bytes | None"]


@dataclass(frozen=True)
class Step:
    """What became of one patch."""

    patch: str
    outcome: Outcome
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Replay:
    """steps: one per patch, in order. files: path -> content after all patches that apply, touched files only."""

    steps: tuple[Step, ...]
    files: dict[str, bytes]

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(problem for step in self.steps for problem in step.problems)


def replay(patches: Iterable[Patch], overlay: dict[str, bytes], read: Read, tag: str) -> Replay:
    """Lay overlay and patches, in this order, on the files that `read` gives. tag names the revision in messages."""
    files: dict[str, bytes] = {}
    steps = []
    taken = tuple(
        Problem("overlay-shadows-upstream", f"overlay/{path} on {tag}", "upstream has this file", "change it with a patch, or rename the overlay file")
        for path in overlay
        if read(path) is not None
    )  # fmt: skip
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
    changed: dict[str, bytes] = {}
    problems: list[tuple[Outcome, Problem]] = []
    for file in patch.files:
        where = f"patches/{patch.name} on {tag}: {file.path}"
        content = read(file.path)
        if content is None:
            problems.append((Outcome.CONFLICT, Problem(str(Outcome.CONFLICT), where, "upstream has no such file there", "correct the guard, or the path")))
            continue
        text = content.decode("utf-8", "surrogateescape")
        result, wrong = apply_to_text(text, file, where, tag)
        problems += wrong
        changed[file.path] = result.encode("utf-8", "surrogateescape")
    if not problems:
        return Step(patch.name, Outcome.APPLIED), changed
    worst = next(o for o in (Outcome.CORRUPT, Outcome.CONFLICT, Outcome.MERGED_UPSTREAM, Outcome.NEEDS_REFRESH) if o in [p[0] for p in problems])
    return Step(patch.name, worst, tuple(problem for _, problem in problems)), {}


def apply_to_text(text: str, file: FileDiff, where: str, tag: str) -> tuple[str, list[tuple[Outcome, Problem]]]:
    """The text after the file's hunks, and what is wrong with each hunk that does not fit exactly.

    Hunks are tried in order against the text as it was; line numbers in messages are upstream's, 1-based.
    """
    lines = split_lines(text)
    result: list[str] = []
    done = 0  # lines of the old text that are already in the result
    moved = 0  # by how many lines the hunks so far push down what follows, whether they fit or not
    problems = []
    for number, hunk in enumerate(file.hunks, 1):
        start = max(hunk.old_start - 1, 0)
        wrong = _misfit(lines, start, hunk, number, where, tag)
        if not wrong and start < done:
            wrong = Outcome.CORRUPT, Problem(str(Outcome.CORRUPT), f"{where}: hunk {number}", "it overlaps the hunk before it")
        if not wrong and hunk.new_start - 1 != start + moved:
            wrong = Outcome.CORRUPT, Problem("wrong-hunk-counts", f"{where}: hunk {number}", f"its new side begins at line {hunk.new_start}, but the hunks before it make that {start + moved + 1}", f"write patches with {to_type('refresh')}, not by hand")
        moved += len(hunk.new) - len(hunk.old)
        if wrong:
            problems.append(wrong)
            continue
        result += lines[done:start] + hunk.new
        done = start + len(hunk.old)
    return "".join(result + lines[done:]), problems


def _misfit(lines: list[str], start: int, hunk: Hunk, number: int, where: str, tag: str) -> tuple[Outcome, Problem] | None:
    """Why the hunk does not belong at line `start` (0-based), or None where it does."""
    at = f"{where}: hunk {number}, line {start + 1}"
    old = hunk.old
    if lines[start : start + len(old)] == old:
        if hunk.trailing < CONTEXT and start + len(old) != len(lines):
            return Outcome.CORRUPT, Problem("unequal-context", at, f"{counted(hunk.trailing, 'line')} of context after it, though the file goes on; they are {CONTEXT}", f"{to_type('refresh')} writes it so")
        return None
    elsewhere = find_text(lines, old)
    if elsewhere:
        nearest = min(elsewhere, key=lambda found: abs(found - start))
        offset = nearest - start
        what = f"its text is at line {nearest + 1}, {counted(abs(offset), 'line')} {'later' if offset > 0 else 'earlier'}"
        what += f" (and at {len(elsewhere) - 1} other places)" if len(elsewhere) > 1 else ""
        return Outcome.NEEDS_REFRESH, Problem(str(Outcome.NEEDS_REFRESH), at, what, f"{to_type('rebase', tag)} makes a variant for this release")
    if hunk.new != old and find_text(lines, hunk.new):
        return Outcome.MERGED_UPSTREAM, Problem(str(Outcome.MERGED_UPSTREAM), at, "the tree has this change already", "lower the guard")
    return Outcome.CONFLICT, Problem(str(Outcome.CONFLICT), at, _first_difference(lines, start, old), f"{to_type('rebase', tag)} lays the conflict out; or correct the guard")


def find_text(lines: list[str], wanted: list[str]) -> list[int]:
    """Where (0-based) `wanted` stands in `lines`, every place."""
    if not wanted:  # a hunk that deletes the whole file has no new text to look for
        return []
    return [n for n in range(len(lines) - len(wanted) + 1) if lines[n] == wanted[0] and lines[n : n + len(wanted)] == wanted]


def _first_difference(lines: list[str], start: int, old: list[str]) -> str:
    for n, expected in enumerate(old):
        found = lines[start + n] if start + n < len(lines) else None
        if found != expected:
            shown = repr(found.rstrip("\n")) if found is not None else "the end of the file"
            return f"line {start + n + 1} should read {expected.rstrip(chr(10))!r}, upstream has {shown}"
    return "the text is nowhere in the file"


def split_lines(text: str) -> list[str]:
    """Lines by \\n alone (str.splitlines also cuts at form feeds and carriage returns)."""
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
