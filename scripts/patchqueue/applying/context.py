"""The text of a patch for a release's own tree, and the one text that several releases share."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

from ..files import run
from ..outcome import Refused
from ..queue.patchfile import CONTEXT, FileDiff, Hunk, Patch, of_files
from .matching import Files, Row, find, line_at, split_lines, text_of

NEAR = 20  # lines
BETWEEN_CHANGES = re.compile(r"(?<=[-+]) +(?=[-+])")  # in the kinds of a hunk's lines


def rendered(patch: Patch, row: Row) -> Patch:
    """A patch that `row` applied, with the lines of that tree and three lines of its context."""
    lines = iter(row.lines or ())
    files = (
        _widened(file, [*islice(lines, len(file.hunks))], row.before[file.path])
        for file in patch.files
    )
    return of_files(patch, files)


def _widened(file: FileDiff, starts: Sequence[int], content: bytes) -> FileDiff:
    """The diff with three lines of context; hunks that meet then are one. starts: the line of each,
    1-based."""
    text = [f" {line}" for line in split_lines(text_of(content))]
    hunks, opening = list[Hunk](), (1, 1)
    covered = moved = 0  # lines of the text that are in a hunk; lines that were added so far
    for hunk, start, limit in zip(file.hunks, starts, [*starts[1:], len(text) + 1]):
        end = start - 1 + len(hunk.old)
        first = max(start - 1 - CONTEXT + hunk.leading, 0)
        last = min(end + CONTEXT - hunk.trailing, limit - 1)
        if hunks and first <= covered:
            before = (*hunks.pop().lines, *text[covered : start - 1])
        else:
            before, opening = tuple(text[first : start - 1]), (first + 1, first + 1 + moved)
        hunks.append(Hunk(*opening, (*before, *hunk.lines, *text[end:last])))
        covered = last
        moved += len(hunk.new) - len(hunk.old)
    return replace(file, hunks=tuple(hunks))


def shared(patch: Patch, trees: Sequence[Files]) -> Patch | None:
    """The patch with as much of its context as is at one place of each tree; None where a change
    has no such place.

    patch: as one of the trees has it, with three lines of context. trees: the files of each below
    the patch; its lines are numbered as in the first.
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
    """Where a hunk may end, and its rest begin: whole, else between two changes, the last first.
    The context there is in both."""
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
    """Whether the context line next to an insertion is near, but not next to it, in a text. step:
    1 where the text follows the insertion, -1 where it comes before. Blank lines do not count."""
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
    """The diff of every file of `after` that is not as it was, sorted by path; "" where none is.
    Both hold the same paths. It has the form that `quilt refresh` writes: quilt asks the same
    program."""
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
