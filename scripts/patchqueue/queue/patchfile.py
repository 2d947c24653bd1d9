"""One patch file: its header, its diffs, and every rule about its form that needs no upstream tree
to check.

unidiff reads the hunks; the form is checked here line by line, since unidiff lets text around a
diff pass in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet

from ..hint import counted, to_type
from ..outcome import Problem
from . import header as headers

CONTEXT = 3
HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: .*)?")
LAST_LINE = f"remove that line, or write the patch with {to_type('refresh')}"
BOM = "\ufeff"  # what some editors write in front of UTF-8
FORBIDDEN = (  # what a diff can say besides changing lines, by how its line begins
    (
        "rename",
        (
            "rename from",
            "rename to",
            "copy from",
            "copy to",
            "similarity index",
            "dissimilarity index",
        ),
    ),
    ("mode-change", ("old mode", "new mode", "new file mode", "deleted file mode")),
    ("binary", ("Binary files", "GIT binary patch")),
)


@dataclass(frozen=True)
class Line:
    """One line of a hunk. kind: " " context, "-" removed, "+" added. text: without the kind,
    newline included if it has one."""

    kind: str
    text: str


@dataclass(frozen=True)
class Hunk:
    """old_start, new_start: 1-based first line in the file before and after this hunk; at_line: in
    the patch file."""

    old_start: int
    new_start: int
    lines: tuple[Line, ...]
    at_line: int

    @property
    def old(self) -> list[str]:
        return [line.text for line in self.lines if line.kind != "+"]

    @property
    def new(self) -> list[str]:
        return [line.text for line in self.lines if line.kind != "-"]

    @property
    def leading(self) -> int:
        return next((n for n, line in enumerate(self.lines) if line.kind != " "), len(self.lines))

    @property
    def trailing(self) -> int:
        return next(
            (n for n, line in enumerate(reversed(self.lines)) if line.kind != " "), len(self.lines)
        )


@dataclass(frozen=True)
class FileDiff:
    """The hunks for one upstream file. path: in git's layout. is_new: the diff makes the file (from
    /dev/null)."""

    path: str
    hunks: tuple[Hunk, ...]
    is_new: bool = False


@dataclass(frozen=True)
class Patch:
    """A patch as read. name: its path below patches/."""

    name: str
    content: bytes
    header: headers.Header
    files: tuple[FileDiff, ...]

    @property
    def diff(self) -> str:
        """What it does, without the header that says so."""
        return split(self.content.decode("utf-8"))[1]

    @property
    def changed_lines(self) -> int:
        return sum(
            line.kind != " " for file in self.files for hunk in file.hunks for line in hunk.lines
        )


def split(text: str) -> tuple[str, str]:
    """A patch file's text as (header, diff); the diff begins at the first line that only a diff can
    have."""
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
    if text.startswith(BOM):
        return None, [
            Problem(
                "byte-order-mark",
                f"{where}:1",
                "begins with a byte order mark",
                "save it as UTF-8 without one",
            )
        ]
    if "\r" in text:
        line = text[: text.index("\r")].count("\n") + 1
        return None, [
            Problem("crlf", f"{where}:{line}", "has carriage returns", "save it with LF line ends")
        ]
    head, diff = split(text)
    header, complaints = headers.parse(head)
    found = [Problem("bad-header", where, complaint) for complaint in complaints]
    found += headers.problems(where, header)
    if not diff.strip():
        return None, [
            *found,
            Problem(
                "empty-patch",
                where,
                "changes nothing",
                f"{to_type('refresh')} writes your edits into it",
            ),
        ]
    form = list(_form(where, diff, first_line=head.count("\n") + 1))
    found += form
    if form:
        return None, found
    return Patch(name, content, header, parse_diff(diff, head.count("\n"))), found


def parse_diff(diff: str, lines_before: int = 0) -> tuple[FileDiff, ...]:
    """The diffs of a text whose form is known to be good (of a patch, or of the overlay written as
    one)."""
    return tuple(
        FileDiff(
            _strip(file.source_file if file.target_file == "/dev/null" else file.target_file),
            tuple(_hunk(hunk, lines_before) for hunk in file),
            file.source_file == "/dev/null",
        )
        for file in PatchSet(diff)
    )


def render(files: Iterable[FileDiff]) -> str:
    """The diffs as text, in the form that `quilt refresh` writes: what `parse_diff` reads back."""
    return "".join(
        f"--- a/{file.path}\n+++ b/{file.path}\n" + "".join(map(_rendered, file.hunks))
        for file in files
    )


def _rendered(hunk: Hunk) -> str:
    body = "".join(
        line.kind
        + (
            line.text
            if line.text.endswith("\n")
            else f"{line.text}\n\\ No newline at end of file\n"
        )
        for line in hunk.lines
    )
    return (
        f"@@ -{_range(hunk.old_start, len(hunk.old))} +{_range(hunk.new_start, len(hunk.new))}"
        f" @@\n{body}"
    )


def _range(start: int, count: int) -> str:
    return str(start) if count == 1 else f"{start},{count}"


def _hunk(hunk: Any, lines_before: int) -> Hunk:
    lines: list[Line] = []
    for line in hunk:
        if line.line_type == "\\":  # "No newline at end of file" speaks of the line before it
            lines[-1] = Line(lines[-1].kind, lines[-1].text.removesuffix("\n"))
        else:
            lines.append(Line(line.line_type, line.value))
    return Hunk(
        hunk.source_start, hunk.target_start, tuple(lines), lines_before + hunk[0].diff_line_no - 1
    )


def _strip(path: str) -> str:
    return path.split("/", 1)[1] if path.startswith(("a/", "b/")) else path


def _form(where: str, diff: str, first_line: int) -> Iterator[Problem]:  # noqa: PLR0911, PLR0912, PLR0915
    """What is wrong with the diff's form, line by line: a small state machine that knows how much
    of a hunk is left."""
    old_left = new_left = 0
    before = " "  # how the line before this one began
    old_path = None
    seen: list[str] = []
    # start | old (--- read) | new (+++ read) | hunk (inside) | after (a whole hunk read)
    state = "start"
    for number, line in enumerate(diff.removesuffix("\n").split("\n"), first_line):
        at = f"{where}:{number}"
        if state == "hunk":
            if line[:1] not in tuple(" -+\\"):
                yield Problem(
                    "wrong-hunk-counts",
                    at,
                    f"the hunk's header promises {old_left} old and {new_left} new lines more",
                    f"write patches with {to_type('refresh')}, not by hand",
                )
                return
            # "No newline": only behind the last line of its side, which then is the file's last
            if (  # noqa: SIM102
                line[0] == "\\"
            ):
                if (
                    (before == "+" and new_left)
                    or (before == "-" and old_left)
                    or before not in "+-"
                ):
                    yield Problem(
                        "no-newline",
                        at,
                        f"{line!r} in the middle of a hunk: only a file's last line may have it",
                        LAST_LINE,
                    )
                    return
            before = line[0]
            old_left -= line[0] in " -"
            new_left -= line[0] in " +"
            if old_left < 0 or new_left < 0:
                yield Problem(
                    "wrong-hunk-counts",
                    at,
                    "the hunk is longer than its header says",
                    f"write patches with {to_type('refresh')}, not by hand",
                )
                return
            state = "after" if old_left == new_left == 0 else "hunk"
            continue
        if state == "after" and line.startswith("\\ "):
            if before == "\\":
                yield Problem("no-newline", at, f"{line!r} a second time", LAST_LINE)
                return
            before = "\\"
            continue
        if before == "\\" and state == "after" and line.startswith("@@"):
            yield Problem(
                "no-newline",
                at,
                "a hunk after the file's last line, which has no newline",
                LAST_LINE,
            )
            return
        for name, beginnings in FORBIDDEN:
            if line.startswith(beginnings):
                yield Problem(
                    name,
                    at,
                    f"{line!r}: a patch only changes lines of files that upstream has",
                    "new files belong into overlay/",
                )
                return
        if line.startswith(("Index:", "diff ", "index ", "=====")):
            yield Problem(
                "trailing-junk",
                at,
                f"{line!r}: a patch holds ---, +++ and hunks only",
                f"{to_type('refresh')} writes it so",
            )
            return
        if line.startswith("--- ") and state in ("start", "after"):
            old_path, state = line[4:], "old"
            yield from _path(at, old_path, "a/")
        elif line.startswith("+++ ") and state == "old":
            state = "new"
            yield from _path(at, line[4:], "b/")
            if old_path == "/dev/null" or line[4:] == "/dev/null":
                yield Problem(
                    "new-or-deleted-file",
                    at,
                    "a patch neither makes nor deletes files",
                    "new files belong into overlay/",
                )
            elif _strip(old_path or "") != _strip(line[4:]):
                yield Problem(
                    "rename", at, f"from {old_path} to {line[4:]}", "a patch never renames"
                )
            if _strip(line[4:]) in seen:
                yield Problem(
                    "file-twice",
                    at,
                    f"{_strip(line[4:])} is changed in two places of the patch",
                    f"{to_type('refresh')} joins them",
                )
            if seen and _strip(line[4:]) < seen[-1]:
                yield Problem(
                    "unsorted-files",
                    at,
                    f"{_strip(line[4:])} comes after {seen[-1]}",
                    f"{to_type('refresh')} sorts them",
                )
            seen.append(_strip(line[4:]))
        elif line.startswith("@@") and state in ("new", "after"):
            match = HUNK.fullmatch(line)
            if not match:
                yield Problem(
                    "bad-hunk-header",
                    at,
                    f"{line!r} is no hunk header",
                    f"write patches with {to_type('refresh')}",
                )
                return
            old_left, new_left = (
                int(count) if count is not None else 1 for count in match.group(2, 4)
            )
            state, before = "hunk" if old_left or new_left else "after", " "
        else:
            yield Problem(
                "trailing-junk",
                at,
                f"{line!r} belongs to no hunk",
                "a patch ends with its last hunk",
            )
            return
    if state == "hunk":
        yield Problem(
            "wrong-hunk-counts",
            f"{where}:{number}",
            f"the last hunk ends {old_left} old and {new_left} new lines early",
            f"write patches with {to_type('refresh')}, not by hand",
        )
    elif state in ("old", "new"):
        yield Problem("wrong-hunk-counts", f"{where}:{number}", "a file has no hunk")
    elif not diff.endswith("\n"):
        yield Problem(
            "wrong-hunk-counts", f"{where}:{number}", "the last line is cut off: it has no line end"
        )
    else:
        yield from _context(where, diff, first_line)


def _context(where: str, diff: str, first_line: int) -> Iterator[Problem]:
    """Three lines of context on both sides at most. Where they are fewer, the releases that share
    the text must agree on no more, which needs their trees: see laying/check.py."""
    try:
        files = parse_diff(diff, first_line - 1)
    except UnidiffParseError as error:
        yield Problem("wrong-hunk-counts", where, str(error))
        return
    for file in files:
        for hunk in file.hunks:
            at = f"{where}:{hunk.at_line}"
            if (not hunk.old and hunk.old_start == 0) or (not hunk.new and hunk.new_start == 0):
                yield Problem(
                    "new-or-deleted-file",
                    at,
                    (
                        "fills an empty file, and `quilt pop` then deletes it"
                        if hunk.new
                        else "empties the file, and quilt then deletes it"
                    ),
                )
            elif all(line.kind == " " for line in hunk.lines):
                yield Problem("empty-hunk", at, "a hunk that changes nothing")
            elif not hunk.old or max(hunk.leading, hunk.trailing) > CONTEXT:
                yield Problem(
                    "unequal-context",
                    at,
                    f"{counted(hunk.leading, 'line')} of context before and {hunk.trailing} after;"
                    f" they are {CONTEXT}",
                    f"{to_type('refresh')} writes it so",
                )


def _path(at: str, path: str, prefix: str) -> Iterator[Problem]:
    if path == "/dev/null":
        return
    parts = path.split("/")
    reason = None
    if path.startswith('"') or "\\" in path or any(ord(character) < 32 for character in path):
        reason = "is quoted, or has a backslash, a tab (a timestamp?) or a control character"
    elif path.startswith("/"):
        reason = "is absolute"
    elif " " in path:
        reason = "has a space, where GNU patch ends a name"
    elif ".." in parts or "." in parts or "" in parts:
        reason = "has .., . or an empty part"
    elif not path.startswith((f"{prefix}python/sglang/", f"{prefix}test/")):
        reason = f"lies outside {prefix}python/sglang/ and {prefix}test/"
    if reason:
        yield Problem("bad-path", at, f"{path!r} {reason}")
