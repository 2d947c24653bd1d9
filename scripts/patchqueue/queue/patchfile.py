"""One patch file: its header, its diffs, and every rule about its form that needs no upstream tree.

What unidiff read is written again and must be the same: it lets text around a diff pass in silence.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet

from ..outcome import Problem, counted, to_type
from . import header as headers

CONTEXT = 3
PLAIN_PATH = re.compile(r"(?:python/sglang|test)/[^ \\\x00-\x1f]+")
SECTION = re.compile(r"(?m)^(@@ -\S+ \+\S+ @@) .*$")  # a hunk's header may name a function
LAST_LINE = f"remove that line, or write the patch with {to_type('refresh')}"
NO_NEWLINE = "\\ No newline at end of file"


@dataclass(frozen=True)
class Hunk:
    """old_start, new_start: 1-based first lines; at_line: in the patch file; lines: each begins
    with " ", "-" or "+", and ends with its newline if it has one."""

    old_start: int
    new_start: int
    lines: tuple[str, ...]
    at_line: int = 0

    @property
    def old(self) -> list[str]:
        return [line[1:] for line in self.lines if line[0] != "+"]

    @property
    def new(self) -> list[str]:
        return [line[1:] for line in self.lines if line[0] != "-"]

    @property
    def changed(self) -> tuple[str, ...]:
        return tuple(line for line in self.lines if line[0] != " ")

    @property
    def leading(self) -> int:
        """How many lines of context come before the first change."""
        return _context_lines(self.lines)

    @property
    def trailing(self) -> int:
        """How many come after the last one."""
        return _context_lines(self.lines[::-1])


def _context_lines(lines: Sequence[str]) -> int:
    return next((n for n, line in enumerate(lines) if line[0] != " "), len(lines))


@dataclass(frozen=True)
class FileDiff:
    """The hunks for one upstream file. path: in git's layout."""

    path: str
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True)
class Patch:
    """A patch as read. name: its path below patches/."""

    name: str
    content: bytes
    header: headers.Header
    files: tuple[FileDiff, ...]

    @property
    def head(self) -> str:
        """The header's text."""
        return split(self.content.decode("utf-8"))[0]

    @property
    def diff(self) -> str:
        """The diffs, without the header."""
        return split(self.content.decode("utf-8"))[1]


def of_files(patch: Patch, files: Iterable[FileDiff]) -> Patch:
    """The patch with these diffs in place of its own."""
    files = tuple(files)
    return replace(patch, content=(patch.head + render(files)).encode(), files=files)


def split(text: str) -> tuple[str, str]:
    """A patch file's text as (header, diff)."""
    match = re.search(
        r"^(?:--- |diff |Index: |index |GIT binary|Binary files|rename |old mode|new file mode)",
        text,
        re.MULTILINE,
    )
    return (text[: match.start()], text[match.start() :]) if match else (text, "")


def read(name: str, content: bytes) -> tuple[Patch | None, list[Problem]]:
    """The patch in `content`, or None, with all that is wrong with its form."""
    where = f"patches/{name}"
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        return None, [Problem("not-utf-8", where, f"byte {error.start} is not UTF-8")]
    if "\r" in text:
        line = text[: text.index("\r")].count("\n") + 1
        return None, [
            Problem("crlf", f"{where}:{line}", "has carriage returns", "save it with LF line ends")
        ]
    head, diff = split(text)
    header, complaints = headers.parse(head)
    problems = [Problem("bad-header", where, complaint) for complaint in complaints]
    problems += headers.problems(where, header)
    if not diff.strip():
        step = f"{to_type('refresh')} writes your edits into it"
        return None, [*problems, Problem("empty-patch", where, "changes nothing", step)]
    form_problems = list(_form(where, diff, first_line=head.count("\n") + 1))
    problems += form_problems
    if form_problems:
        return None, problems
    return Patch(name, content, header, parse_diff(diff, head.count("\n"))), problems


def parse_diff(diff: str | Iterable[str], lines_before: int = 0) -> tuple[FileDiff, ...]:
    """The diffs of a text whose form is known to be good."""
    return tuple(
        FileDiff(file.path, tuple(_hunk(hunk, lines_before) for hunk in file))
        for file in PatchSet(diff)
    )


def render(files: Iterable[FileDiff]) -> str:
    """The diffs as text, in the form that `quilt refresh` writes: what `parse_diff` reads back."""
    parts = []
    for file in files:
        parts.append(f"--- a/{file.path}\n+++ b/{file.path}\n")
        for hunk in file.hunks:
            old = _range(hunk.old_start, len(hunk.old))
            parts.append(f"@@ -{old} +{_range(hunk.new_start, len(hunk.new))} @@\n")
            parts += [
                line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}\n" for line in hunk.lines
            ]
    return "".join(parts)


def _range(start: int, count: int) -> str:
    return str(start) if count == 1 else f"{start},{count}"


def _hunk(hunk: Any, lines_before: int) -> Hunk:
    lines: list[str] = []
    for line in hunk:
        if line.line_type == "\\":  # "No newline at end of file" speaks of the line before it
            lines[-1] = lines[-1].removesuffix("\n")
        else:
            lines.append(f"{line.line_type}{line.value}")
    at_line = lines_before + hunk[0].diff_line_no - 1
    return Hunk(hunk.source_start, hunk.target_start, tuple(lines), at_line)


def _form(where: str, diff: str, first_line: int) -> Iterator[Problem]:
    """Problems of the diff's form: it must be just what `render` makes of it."""
    at, line = first_line, ""

    def lines() -> Iterator[str]:
        nonlocal at, line
        for at, line in enumerate(io.StringIO(diff), first_line):  # noqa: B007
            yield line

    try:
        files = parse_diff(lines(), first_line - 1)
    except UnidiffParseError as error:
        yield _misshapen(f"{where}:{at}", line, str(error))
        return
    written, canonical = SECTION.sub(r"\1", diff), render(files)
    if written == canonical:
        yield from _files(where, files)
        return
    pairs = zip_longest(written.split("\n"), canonical.split("\n"))
    number, (line, right) = next((n, pair) for n, pair in enumerate(pairs) if pair[0] != pair[1])
    at = first_line + min(number, written.count("\n"))
    why = f"a patch has {right!r} there" if right else "belongs to no hunk"
    yield _misshapen(f"{where}:{at}", line or "", why)


def _misshapen(at: str, line: str, why: str) -> Problem:
    what = f"{line!r}: {why}; a patch only changes lines of files that upstream has"
    step = f"write patches with {to_type('refresh')}; new files belong into overlay/"
    return Problem("bad-form", at, what, step)


def _files(where: str, files: Sequence[FileDiff]) -> Iterator[Problem]:
    """Problems of the files that a patch names, and of their hunks."""
    for before, file in zip([None, *files], files):
        if not file.hunks:
            yield Problem("empty-patch", where, f"has no hunk of {file.path}")
            continue
        at = f"{where}:{file.hunks[0].at_line - 2}"
        yield from _path(at, file.path)
        if before and before.path == file.path:
            what, step = "is changed in two places of the patch", f"{to_type('refresh')} joins them"
            yield Problem("file-twice", at, f"{file.path} {what}", step)
        elif before and before.path > file.path:
            step = f"{to_type('refresh')} sorts them"
            yield Problem("unsorted-files", at, f"{file.path} comes after {before.path}", step)
        yield from _ends(where, file)
        for hunk in file.hunks:
            yield from _context(f"{where}:{hunk.at_line}", hunk)


def _ends(where: str, file: FileDiff) -> Iterator[Problem]:
    """Only the last line of a file may lack its newline, before the patch and after it."""
    for side in (" -", " +"):
        lines = [(hunk, line) for hunk in file.hunks for line in hunk.lines if line[0] in side]
        for hunk, line in lines[:-1]:
            if not line.endswith("\n"):
                what = f"{line[1:]!r} has no newline, and is not the file's last line"
                yield Problem("no-newline", f"{where}:{hunk.at_line}", what, LAST_LINE)
                return


def _context(at: str, hunk: Hunk) -> Iterator[Problem]:
    """Three lines of context on both sides at most; fewer where releases agree on no more."""
    if (not hunk.old and hunk.old_start == 0) or (not hunk.new and hunk.new_start == 0):
        what = "fills an empty file, and `quilt pop`" if hunk.new else "empties the file, and quilt"
        yield Problem("new-or-deleted-file", at, f"{what} then deletes it")
    elif not hunk.changed:
        yield Problem("empty-hunk", at, "a hunk that changes nothing")
    elif not hunk.old or max(hunk.leading, hunk.trailing) > CONTEXT:
        what = f"{counted(hunk.leading, 'line')} of context before and {hunk.trailing} after"
        step = f"{to_type('refresh')} writes it so"
        yield Problem("unequal-context", at, f"{what}; they are {CONTEXT}", step)


def _path(at: str, path: str) -> Iterator[Problem]:
    parts = path.split("/")
    if not PLAIN_PATH.fullmatch(path) or {"..", ".", ""} & set(parts):
        what = "is no plain path below python/sglang/ or test/"
        yield Problem("bad-path", at, f"{path!r} {what}")
