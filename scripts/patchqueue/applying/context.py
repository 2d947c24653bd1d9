"""The text of a patch for a release's own tree, and the one text that several releases share."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from ..files import run as programs
from ..outcome import Refused
from ..queue.patchfile import CONTEXT, FileDiff, Hunk, Line, Patch, of_files
from .matching import Files, Row, apply_patch, find, line_at, split_lines


def rendered(patch: Patch, row: Row) -> Patch:
    """A patch that `row` applied, with the lines of that tree and three lines of its context."""
    lines = iter(row.lines or ())
    files = (
        replace(file, hunks=tuple(replace(hunk, old_start=next(lines)) for hunk in file.hunks))
        for file in patch.files
    )
    texts = {path: text.decode("utf-8", "surrogateescape") for path, text in row.before.items()}
    return of_files(patch, (_widened(file, texts[file.path]) for file in files))


@dataclass(frozen=True)
class _Run:
    """Changed lines without context between them.

    start: the old line before which they begin, 0-based; gone: how many they remove.
    above, below: the context lines that are known before and behind them, up to the runs beside.
    """

    start: int
    gone: int
    lines: tuple[Line, ...]
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()

    @property
    def end(self) -> int:
        return self.start + self.gone


def _runs(hunk: Hunk) -> Iterator[_Run]:
    """A hunk's runs of changed lines."""
    lines = hunk.lines
    is_context = [True, *(line.kind == " " for line in lines), True]
    edges = [n for n in range(len(lines) + 1) if is_context[n] != is_context[n + 1]]
    pairs = list(zip(edges[::2], edges[1::2]))
    ends = [0, *(end for _, end in pairs)]
    begins = [*(begin for begin, _ in pairs), len(lines)]
    for number, (begin, end) in enumerate(pairs):
        start = hunk.old_start - 1 + sum(line.kind != "+" for line in lines[:begin])
        gone = sum(line.kind == "-" for line in lines[begin:end])
        above = tuple(line.text for line in lines[ends[number] : begin])
        below = tuple(line.text for line in lines[end : begins[number + 1]])
        yield _Run(start, gone, lines[begin:end], above, below)


def _hunk(runs: list[_Run], above: list[str], below: list[str], moved: int) -> Hunk:
    """Runs with all that is between them as one hunk, with these lines of context round it."""
    body = [Line(" ", line) for line in above]
    for number, run in enumerate(runs):
        body += run.lines
        body += [Line(" ", line) for line in (run.below if number + 1 < len(runs) else below)]
    start = runs[0].start - len(above) + 1
    return Hunk(start, start + moved, tuple(body), 0)


def _written(file: FileDiff, groups: Iterable[tuple[list[_Run], list[str], list[str]]]) -> FileDiff:
    hunks: list[Hunk] = []
    moved = 0
    for runs, above, below in groups:
        hunks.append(_hunk(runs, above, below, moved))
        moved += len(hunks[-1].new) - len(hunks[-1].old)
    return replace(file, hunks=tuple(hunks))


def _widened(file: FileDiff, text: str) -> FileDiff:
    lines = split_lines(text)
    runs = [run for hunk in file.hunks for run in _runs(hunk)]
    groups: list[list[_Run]] = []
    for run, after in zip(runs, [*runs[1:], None]):
        joined = replace(run, below=tuple(lines[run.end : after.start])) if after else run
        if groups and run.start - groups[-1][-1].end <= 2 * CONTEXT:
            groups[-1].append(joined)
        else:
            groups.append([joined])
    edges = [(group[0].start, group[-1].end) for group in groups]
    above = [lines[max(start - CONTEXT, 0) : start] for start, _ in edges]
    below = [lines[end : end + CONTEXT] for _, end in edges]
    return _written(file, zip(groups, above, below))


def shared(patches: Sequence[Patch]) -> Patch | None:
    """The text that these have in common: the same changes, and the context on which all agree.

    Its lines are those of the first. patches: one patch as the own trees of several releases have
    it (see `rendered`). None where they change other lines, or where nothing is left by which
    a change's place is found.
    """
    if len({tuple(file.path for file in patch.files) for patch in patches}) != 1:
        return None
    files = [_shared(versions) for versions in zip(*(patch.files for patch in patches))]
    return None if None in files else of_files(patches[0], [file for file in files if file])


def one_text(texts: Mapping[Version, Patch | None], below: Mapping[Version, Files]) -> Patch | None:
    """`shared`, where it matches at one place on every release.

    texts: the patch as each release's own tree has it; below: the files there. None where one of
    them has no text, and where there is nothing in common.
    """
    whole = [text for _, text in sorted(texts.items()) if text is not None]
    text = shared(whole) if len(whole) == len(texts) else None
    if text is None or any(apply_patch(text, files.get).lines is None for files in below.values()):
        return None
    return text


def _shared(versions: Sequence[FileDiff]) -> FileDiff | None:
    every = [[run for hunk in file.hunks for run in _runs(hunk)] for file in versions]
    if len({tuple(run.lines for run in runs) for runs in every}) != 1:
        return None
    changes = list(zip(*every))  # a change: its run in each version
    groups: list[tuple[list[_Run], list[str], list[str]]] = []
    open_hunk: list[_Run] = []
    above: list[str] = []
    free = CONTEXT  # how many lines above a change no hunk has yet
    for change, behind in zip(changes, [*changes[1:], None]):
        above = above if open_hunk else _common([run.above[::-1][:free] for run in change])[::-1]
        open_hunk.append(change[0])
        gaps = {after.start - run.end for run, after in zip(change, behind or [])} or {CONTEXT}
        if behind and gaps == {len(change[0].below)} and len({run.below for run in change}) == 1:
            continue  # all between the two is known, and the same everywhere
        below = _common([run.below[: min(CONTEXT, *gaps)] for run in change])
        groups.append((open_hunk, above, below))
        open_hunk, free = [], min(CONTEXT, min(gaps) - len(below)) if behind else CONTEXT
    shared_diff = _written(versions[0], groups)
    return shared_diff if all(hunk.old for hunk in shared_diff.hunks) else None


def _common(several: Sequence[Sequence[str]]) -> list[str]:
    """The lines with which all begin."""
    same = itertools.takewhile(lambda lines: len(set(lines)) == 1, zip(*several))
    return [lines[0] for lines in same]


def edits(patch: Patch) -> str:
    """The lines that a patch removes and adds, by file and in order."""
    runs = ((file.path, run) for file in patch.files for hunk in file.hunks for run in _runs(hunk))
    return "".join(
        f"{path}\n" + "".join(f"{line.kind}{line.text}" for line in run.lines) for path, run in runs
    )


def fitted(patch: Patch, below: Files) -> Patch | None:
    """A patch of one release as another's own tree would have it.

    Each change goes to the one place that matches most of its context. below: the other release's
    files. None where a change has no such place.
    """
    files = []
    for file in patch.files:
        if file.path not in below:
            return None
        text, hunks, done = below[file.path].decode("utf-8", "surrogateescape"), list[Hunk](), 0
        for run in (run for hunk in file.hunks for run in _runs(hunk)):
            start = _start(run, text, done)
            if start is None:
                return None
            hunks.append(_hunk([replace(run, start=start, above=(), below=())], [], [], 0))
            done = sum(map(len, split_lines(text)[: start + run.gone]))
        files.append(_widened(replace(file, hunks=tuple(hunks)), text))
    return of_files(patch, files)


def _start(run: _Run, text: str, done: int) -> int | None:
    """The line (0-based) before which a run belongs in a text, behind `done`.

    None where it is nowhere, at several places, or either behind one line or before another.
    """
    above, below = run.above[-CONTEXT:], run.below[:CONTEXT]
    gone = [line.text for line in run.lines if line.kind == "-"]
    sizes = itertools.product(range(len(above), -1, -1), range(len(below), -1, -1))
    for over, under in sorted(sizes, key=sum, reverse=True):
        expected = "".join([*above[len(above) - over :], *gone, *below[:under]])
        offsets = list(find(text, expected, done))
        unused = "".join(above if not over else below if not under else ())
        if offsets:
            elsewhere = not gone and bool(list(find(text, unused, done)))
            is_sure = len(offsets) == 1 and not elsewhere
            return line_at(text, offsets[0]) - 1 + over if is_sure else None
    return None


def unified(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
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
                done = programs.run(programs.DIFF, *words, folder=space, good=(1,))
                diffs.append(done.stdout.decode("utf-8"))
            except programs.Failed as failure:
                raise Refused.of("diff-failed", path, failure.said, "report this") from None
            except UnicodeDecodeError:
                what = "has text that is not UTF-8 beside the change"
                step = "a patch is UTF-8; leave those lines alone"
                raise Refused.of("not-utf-8", path, what, step) from None
    return "".join(diffs)
