"""The engine: where a patch's hunks apply, for every command that applies a patch in memory.

A hunk applies where its exact text is: all its context and removed lines, in order, at one place
behind the hunk before it. The line numbers in a patch file are not read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.version import Version

from ..outcome import Outcome
from ..queue.patchfile import CONTEXT, FileDiff, Hunk, Line, Patch, at_lines, of_files

Read = Callable[[str], "bytes | None"]
Files = Mapping[str, bytes]  # path in the tree -> content


@dataclass(frozen=True)
class Spot:
    """One hunk of a file.

    number: 1-based; lines: every line at which its text begins, behind the hunk before it.
    """

    number: int
    hunk: Hunk
    lines: tuple[int, ...]


@dataclass(frozen=True)
class Laid:
    """A file's text with every hunk that has one place, and where the hunks are."""

    text: str
    spots: tuple[Spot, ...]


@dataclass(frozen=True)
class Row:
    """What became of one patch on a release, and what to know about it.

    outcome: APPLIED as it is, NEEDS_REFRESH where git or a person made the change, MERGED_UPSTREAM,
    NOT_SELECTED or CONFLICT.
    before, after: the files it changes on the release, where it was laid. ambiguous: a hunk fits at
    several places. lines: where its own text was laid, a line for each hunk; None where the change
    was made otherwise.
    """

    patch: str
    outcome: Outcome
    why: str = ""
    before: Files = field(default_factory=dict, repr=False, compare=False)
    after: Files = field(default_factory=dict, repr=False, compare=False)
    ambiguous: bool = False
    lines: tuple[int, ...] | None = field(default=None, compare=False)


def lay(text: str, file: FileDiff) -> Laid:
    """The file's hunks on a text, each at its one place; others are left out."""
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
    """Where whole lines of `text` are `wanted`, as offsets.

    What lacks its line end stands at the end only; no lines at all stand nowhere.
    """
    at = text.find(wanted, begin) if wanted else -1
    while at >= 0:
        begins = at == 0 or text[at - 1] == "\n"
        if begins and (wanted.endswith("\n") or at + len(wanted) == len(text)):
            yield at
        at = text.find(wanted, at + 1)


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def in_front(files: Mapping[str, bytes], read: Read) -> Read:
    """`read`, where `files` does not have the path. files: looked at when a path is read."""
    return lambda path: files[path] if path in files else read(path)


def lay_patch(patch: Patch, read: Read) -> Row:
    """One patch on files that it may not have been made for: all of it, or none of it."""
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
            why = f"{file.path}: hunk {bad.number} fits {_where(bad)}"
            return Row(patch.name, Outcome.CONFLICT, why, ambiguous=len(bad.lines) > 1)
        lines += [spot.lines[0] for spot in laid.spots]
        before[file.path], after[file.path] = content, laid.text.encode("utf-8", "surrogateescape")
    return Row(patch.name, Outcome.APPLIED, "", before, after, lines=tuple(lines))


def _where(spot: Spot) -> str:
    if spot.lines:
        return f"at {len(spot.lines)} places"
    first = next((line.text for line in spot.hunk.lines if line.kind != " "), "").strip()[:60]
    return f"nowhere; it begins {first!r}"


def rendered(patch: Patch, row: Row) -> Patch:
    """A patch that `row` applied, with the lines of that tree and three lines of its context."""
    return _with_context(at_lines(patch, row.lines or ()), row.before)


def _with_context(patch: Patch, before: Files) -> Patch:
    """The patch as a release's own tree has it: with three lines of that tree's context.

    before: the files below it, on which its hunks stand at their own lines.
    """
    texts = {path: content.decode("utf-8", "surrogateescape") for path, content in before.items()}
    return of_files(patch, (_widened(file, texts[file.path]) for file in patch.files))


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
        known = replace(run, below=tuple(lines[run.end : after.start])) if after else run
        if groups and run.start - groups[-1][-1].end <= 2 * CONTEXT:
            groups[-1].append(known)
        else:
            groups.append([known])
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
    """`shared`, where it stands at one place on every release.

    texts: the patch as each release's own tree has it; below: the files there. None where one of
    them has no text, and where there is nothing in common.
    """
    whole = [text for _, text in sorted(texts.items()) if text is not None]
    text = shared(whole) if len(whole) == len(texts) else None
    if text is None or any(lay_patch(text, files.get).lines is None for files in below.values()):
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
    made = _written(versions[0], groups)
    return made if all(hunk.old for hunk in made.hunks) else None


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

    Each change goes to the one place where most of its context stands. below: the other release's
    files. None where a change has no such place.
    """
    texts = {path: content.decode("utf-8", "surrogateescape") for path, content in below.items()}
    files = [
        _fitted(each, texts[each.path]) if each.path in texts else None for each in patch.files
    ]
    return None if None in files else of_files(patch, [file for file in files if file])


def _fitted(file: FileDiff, text: str) -> FileDiff | None:
    runs, done = [], 0
    for run in (run for hunk in file.hunks for run in _runs(hunk)):
        start = _start(run, text, done)
        if start is None:
            return None
        runs.append(replace(run, start=start, above=(), below=()))
        done = _offset(text, start + run.gone)
    return _widened(replace(file, hunks=tuple(_hunk([run], [], [], 0) for run in runs)), text)


def _start(run: _Run, text: str, done: int) -> int | None:
    """The line (0-based) before which a run belongs in a text, behind `done`.

    None where it is nowhere, at several places, or either behind one line or before another.
    """
    above, below = run.above[-CONTEXT:], run.below[:CONTEXT]
    gone = [line.text for line in run.lines if line.kind == "-"]
    sizes = itertools.product(range(len(above), -1, -1), range(len(below), -1, -1))
    for over, under in sorted(sizes, key=sum, reverse=True):
        wanted = "".join([*above[len(above) - over :], *gone, *below[:under]])
        found = list(_find(text, wanted, done))
        unused = "".join(above if not over else below if not under else ())
        if found:
            elsewhere = not gone and bool(list(_find(text, unused, done)))
            return _line(text, found[0]) - 1 + over if len(found) == 1 and not elsewhere else None
    return None


def _offset(text: str, line: int) -> int:
    """Where a line (0-based) begins."""
    return sum(len(each) for each in split_lines(text)[:line])


def split_lines(text: str) -> list[str]:
    """Lines by \\n alone (str.splitlines also cuts at form feeds and carriage returns)."""
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
