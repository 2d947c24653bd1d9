"""The engine: where a patch's hunks apply, for every command that applies patches in memory; the
one text of a patch that several releases share; and the text of a change.

A hunk applies where its exact text is, at one place behind the hunk before it. Line numbers are not
read.
"""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher, get_close_matches
from itertools import islice, product
from pathlib import Path

from ..files import run
from ..files.tree import sha256
from ..outcome import Outcome, Problem, Refused, to_type
from ..queue.patchfile import CONTEXT, FileDiff, Hunk, Patch, of_files

Read = Callable[[str], "bytes | None"]
Files = Mapping[str, bytes]  # path in the tree -> content

WORST_FIRST = (Outcome.CONFLICT, Outcome.MERGED_UPSTREAM)
AROUND = 8  # lines beside a hunk among which the rest of it is looked for
REVERSED = {"+": "-", "-": "+", " ": " "}  # kinds of lines
NEAR = 20  # lines beside an insertion among which it could be elsewhere
BETWEEN_CHANGES = re.compile(r"(?<=[-+]) +(?=[-+])")  # in the kinds of a hunk's lines


@dataclass(frozen=True)
class Row:
    """The outcome of one patch on a release, or of the overlay. why: in short; problems: the same
    for a strict replay; before, after: the files it changes; ambiguous: a hunk fits at several
    places; as_is: its own text was applied."""

    patch: str
    outcome: Outcome
    why: str = ""
    before: Files = field(default_factory=dict, repr=False, compare=False)
    after: Files = field(default_factory=dict, repr=False, compare=False)
    ambiguous: bool = False
    as_is: bool = False
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Replay:
    """steps: one per patch, in order; files: path -> content after all patches that apply."""

    steps: tuple[Row, ...]
    files: dict[str, bytes]

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(problem for step in self.steps for problem in step.problems)


def match(text: str, file: FileDiff) -> tuple[str, list[list[int]]]:
    """The text with every hunk that has one place; and, for each hunk, every line (1-based) at
    which its text begins, behind the hunk before it."""
    result: list[str] = []
    done = 0  # characters of the old text that are in the result
    places = []
    for hunk in file.hunks:
        old = "".join(hunk.old)
        offsets = list(find(text, old, done))
        places.append([line_at(text, offset) for offset in offsets])
        if len(offsets) == 1:
            result += [text[done : offsets[0]], *hunk.new]
            done = offsets[0] + len(old)
    return "".join([*result, text[done:]]), places


def find(text: str, lines: str, begin: int) -> Iterator[int]:
    """Where whole lines of `text` are `lines`, as offsets; no lines at all are nowhere."""
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


def apply_patch(patch: Patch, read: Read, where: str = "", edited: str = "") -> Row:
    """One patch on files that it may not have been made for: all of it; or none of it, with a
    problem for each misfit. where, edited: as for `replay`."""
    before: dict[str, bytes] = {}
    after: dict[str, bytes] = {}
    problems, ambiguous = list[Problem](), False
    step = edited or f"{to_type('rebase', where)} shows both sides; or correct the guard"
    for file in patch.files:
        at, content = f"patches/{patch.name} on {where}: {file.path}", read(file.path)
        if content is None:
            what = "the queue changes this file, and the tree has it no more"
            what = what if edited else "upstream has no such file there"
            wrong = edited or "correct the guard, or the path"
            problems.append(Problem(str(Outcome.CONFLICT), at, what, wrong))
            continue
        text = text_of(content)
        changed, places = match(text, file)
        for number, (hunk, starts) in enumerate(zip(file.hunks, places), 1):
            if len(starts) != 1:
                ambiguous = len(starts) > 1 if not problems else ambiguous
                problem = Problem(str(Outcome.CONFLICT), f"{at}: hunk {number}", "", step)
                problems.append(_misfit(text, hunk, starts, problem, bool(edited)))
        before[file.path], after[file.path] = content, changed.encode("utf-8", "surrogateescape")
    if not problems:
        return Row(patch.name, Outcome.APPLIED, "", before, after, as_is=True)
    why = f"{problems[0].where.partition(': ')[2]}: {problems[0].what}"
    conflict = Row(patch.name, Outcome.CONFLICT, why, ambiguous=ambiguous)
    return replace(conflict, problems=tuple(problems))


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
    what, hint = "upstream has this file", "change it with a patch, or rename the overlay file"
    shadowed = tuple(
        Problem("overlay-shadows-upstream", f"overlay/{path} on {where}", what, hint)
        for path in overlay
        if not edited and read(path) is not None
    )
    steps = [Row("overlay", Outcome.CONFLICT, problems=shadowed)] if shadowed else []
    unfit_paths: set[str] = set()
    for patch in patches:
        below = in_front(files, read)
        row = apply_patch(patch, below, where, edited)
        if not row.as_is:
            named = [problem.name for problem in row.problems]
            worst = next(outcome for outcome in WORST_FIRST if outcome in named)
            row = replace(row, outcome=worst, why="")
            backwards = of_files(patch, map(inverted, patch.files))
            if edited and apply_patch(backwards, below).as_is:
                row = replace(row, outcome=Outcome.ALREADY_APPLIED, problems=())
        if edited and row.problems:
            paths = {file.path for file in patch.files}
            # a patch on top of one that does not fit says nothing of its own
            row = replace(row, problems=()) if paths & unfit_paths else row
            unfit_paths |= paths
        steps.append(row)
        files |= row.after
    return Replay(tuple(steps), files)


def _misfit(
    text: str, hunk: Hunk, places: Sequence[int], problem: Problem, is_edited: bool
) -> Problem:
    """The problem with the reason why a hunk does not apply; it has an outcome's name."""
    if places:
        shown = ", ".join(map(str, places[:5])) + (" …" if len(places) > 5 else "")
        what = f"its text is at {len(places)} places: lines {shown}"
        step = "change what tells them apart, so that its text is at one place"
        return replace(problem, what=what, hint=problem.hint if is_edited else step)
    if not is_edited and [*find(text, "".join(hunk.old), 0)]:
        what = "its text is before the end of the hunk that comes first"
        return replace(problem, what=what)
    if not is_edited and hunk.new != hunk.old and [*find(text, "".join(hunk.new), 0)]:
        what, step = "the tree has this change already", "end the guard before this release"
        return replace(problem, name=str(Outcome.MERGED_UPSTREAM), what=what, hint=step)
    return replace(problem, what=_both_sides(split_lines(text), hunk.old))


def _both_sides(lines: Sequence[str], ours: Sequence[str]) -> str:
    """The first line that differs between a hunk's old side and the lines in its place."""
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
    """Where the lines begin of which most are there without a gap, 0-based; else the most alike."""
    matcher = SequenceMatcher(lambda line: not line.strip(), lines, searched, autojunk=False)
    block = matcher.find_longest_match()
    if not block.size and searched:
        longest = max(searched, key=len)
        for alike in get_close_matches(longest, lines, 1):
            return max(0, lines.index(alike) - searched.index(longest))
    return max(0, block.a - block.b)


def shared(patch: Patch, trees: Sequence[Files]) -> Patch | None:
    """The patch with as much of its context as is at one place of each tree; None where a change
    has no such place.

    patch: as one of the trees has it. trees: the files of each below it; lines are numbered as in
    the first.
    """
    files = []
    for file in patch.files:
        contents = [tree.get(file.path) for tree in trees]
        texts = [text_of(content) for content in contents if content is not None]
        hunks = _shared(file.hunks, texts) if len(texts) == len(trees) else None
        if hunks is None:
            return None
        files.append(replace(file, hunks=tuple(hunks)))
    return of_files(patch, files)


def _shared(hunks: Sequence[Hunk], texts: Sequence[str]) -> list[Hunk] | None:
    """The hunks, each cut between two of its changes where the texts differ there."""
    done, moved = [0] * len(texts), 0  # what is behind the hunks so far; lines that they add
    tail = 0  # characters of context at the end of the last one
    waiting, made = [hunk.lines for hunk in reversed(hunks)], list[Hunk]()
    while waiting:
        lines = waiting.pop()
        parts = ((_narrowed(lines[:end], texts, done, tail), begin) for end, begin in _cuts(lines))
        hunk, begin = next((part for part in parts if part[0]), (None, 0))
        if hunk is None:
            return None
        old = "".join(hunk.old)
        offsets = [next(find(text, old, behind)) for text, behind in zip(texts, done)]
        start = line_at(texts[0], offsets[0])
        made.append(replace(hunk, old_start=start, new_start=start + moved))
        done = [offset + len(old) for offset in offsets]
        tail = sum(len(line) - 1 for line in hunk.lines[len(hunk.lines) - hunk.trailing :])
        moved += len(hunk.new) - len(hunk.old)
        waiting += [lines[begin:]] if lines[begin:] else []
    return made


def _cuts(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where a hunk may end, and its rest begin; the context between two changes is in both."""
    yield len(lines), len(lines)
    kinds = "".join(line[0] for line in lines)
    for context in reversed([*BETWEEN_CHANGES.finditer(kinds)]):
        yield context.end(), context.start()


def _narrowed(
    lines: tuple[str, ...], texts: Sequence[str], done: Sequence[int], tail: int
) -> Hunk | None:
    """These lines with the most context with which they are at one place of each text, behind
    `done`. None where there is none, or where an insertion could as well be elsewhere behind the
    change before it, which ends `tail` characters higher up."""
    whole, runs = Hunk(0, 0, lines), "".join(line[0] for line in lines).split()
    sizes = (range(min(size, CONTEXT), -1, -1) for size in (whole.leading, whole.trailing))
    for above, below in sorted(product(*sizes), key=sum, reverse=True):
        begin, end = whole.leading - above, len(lines) - whole.trailing + below
        hunk = Hunk(0, 0, lines[begin:end])
        old = "".join(hunk.old)
        offsets = [[*islice(find(text, old, at), 2)] for text, at in zip(texts, done)]
        if any(len(places) != 1 for places in offsets):
            continue
        for text, at, (place,) in zip(texts, done, offsets):
            before, after = text[at - tail : place], text[place + len(old) :]
            if not above and "-" not in runs[0] and _apart(lines[:begin][::-1], before, -1):
                return None
            if not below and "-" not in runs[-1] and _apart(lines[end:], after, 1):
                return None
        return hunk
    return None


def _apart(context: Sequence[str], text: str, step: int) -> bool:
    """Whether the context line next to an insertion is near, but not next to it, in a text. step: 1
    where the text follows it, -1 where it comes before."""
    near = [line for line in split_lines(text)[::step] if line.strip()][:NEAR]
    nearest = next((line[1:] for line in context if line.strip()), None)
    return nearest in near and nearest != near[0]


def edits(patch: Patch) -> str:
    """The lines that a patch removes and adds, by file and in order."""
    return "".join(
        f"{file.path}\n" + "".join(line for hunk in file.hunks for line in hunk.changed)
        for file in patch.files
    )


def unified(before: Files, after: Files) -> str:
    """The changed files' diffs, sorted by path, by the program that `quilt refresh` asks."""
    diffs = []
    with tempfile.TemporaryDirectory(prefix="patchqueue-diff-") as name:
        space = Path(name)
        for path in sorted(path for path in after if before[path] != after[path]):
            (space / "before").write_bytes(before[path])
            (space / "after").write_bytes(after[path])
            labels = ("--label", f"a/{path}", "--label", f"b/{path}")
            words = ("-a", "-U", str(CONTEXT), *labels, "before", "after")
            try:
                diffs.append(run.run(run.DIFF, *words, folder=space, good=(1,)).stdout.decode())
            except run.Failed as failure:
                raise Refused.of("diff-failed", path, failure.said, "report this") from None
            except UnicodeDecodeError:
                what = "has text that is not UTF-8 beside the change"
                step = "a patch is UTF-8; leave those lines alone"
                raise Refused.of("not-utf-8", path, what, step) from None
    return "".join(diffs)
