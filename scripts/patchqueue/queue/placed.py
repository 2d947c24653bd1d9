"""Where a patch's text stands in each release, and what tree the queue makes there:
upstream/placed.toml, written by the tool.

The line numbers in a patch file are those of the oldest pinned release that it is for. For every
other release whose lines are others, they are pinned here: one number for each hunk, in the patch's
own order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

from ..hint import to_type
from ..outcome import Problem
from . import patchfile
from .patchfile import Hunk, Patch

FILE = Path("upstream/placed.toml")
TREE = "tree"
HASH = re.compile(r"sha256:[0-9a-f]{64}")
WRITE = f"{to_type('check', '--write')} writes it anew"
HEAD = f"""\
# Written by {to_type("refresh")}, {to_type("rebase")} and {to_type("check", "--write")}; not by hand.
# tree: the hash of the files that the queue lays on the release (sha256sum's output, sorted by
# path), provenance.json aside. Below it: at which line each hunk of a patch stands there, where
# that is not the line in the patch file.
"""  # noqa: E501


@dataclass(frozen=True)
class Placed:
    """What is pinned of the queue on one release. tree: a hash, "" where none is pinned; lines:
    patch -> a line for each hunk.
    """

    tree: str = ""
    lines: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def read(root: Path) -> tuple[dict[Version, Placed], list[Problem]]:
    """What is pinned below `root`, by release, and what cannot be read of it. No file: nothing is
    pinned.
    """
    try:
        return parse((root / FILE).read_bytes())
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        return {}, [Problem("bad-placement", str(FILE), f"cannot be read: {error}", WRITE)]


def parse(content: bytes) -> tuple[dict[Version, Placed], list[Problem]]:
    """The same of the file's content."""
    try:
        data = msgspec.toml.decode(content.decode("utf-8"))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return {}, [Problem("bad-placement", str(FILE), f"cannot be read: {error}", WRITE)]
    found: dict[Version, Placed] = {}
    problems = []
    for name, table in data.items():
        try:
            found[Version(name)] = _release(table)
        except (InvalidVersion, ValueError) as error:
            problems.append(Problem("bad-placement", f"{FILE}: {name}", str(error), WRITE))
    return found, problems


def _release(table: object) -> Placed:
    if not isinstance(table, dict):
        raise ValueError("is no table of a release")
    lines = {name: value for name, value in table.items() if name != TREE}
    if not isinstance(table.get(TREE, ""), str) or not HASH.fullmatch(
        table.get(TREE, f"sha256:{'0' * 64}")
    ):
        raise ValueError(f"its tree is {table[TREE]!r}, not sha256: and 64 hex digits")
    for name, value in lines.items():
        if not isinstance(value, list) or not all(type(line) is int and line > 0 for line in value):
            raise ValueError(f"{name} has {value!r}, not a line for each hunk")
    return Placed(table.get(TREE, ""), {name: tuple(value) for name, value in lines.items()})


def text(placed: Mapping[Version, Placed]) -> bytes:
    """The file that says this: releases and patches sorted, so that a change is a change of its own
    lines alone.
    """
    blocks = [HEAD]
    for version, each in sorted(placed.items()):
        rows = [f'{TREE} = "{each.tree}"\n'] if each.tree else []
        rows += [f'"{name}" = {list(lines)}\n' for name, lines in sorted(each.lines.items())]
        blocks.append(f'["{version}"]\n' + "".join(rows))
    return "\n".join(blocks).encode()


def own_lines(patch: Patch) -> tuple[int, ...]:
    """The lines that the text itself names, one for each hunk."""
    return tuple(hunk.old_start for file in patch.files for hunk in file.hunks)


def at(patch: Patch, lines: tuple[int, ...]) -> Patch:
    """The same text with its hunks at these lines: the patch as one release gets it."""
    if lines == own_lines(patch):
        return patch
    wanted = iter(lines)
    return of_files(
        patch,
        (
            replace(file, hunks=tuple(_moved(hunk, next(wanted)) for hunk in file.hunks))
            for file in patch.files
        ),
    )


def of_files(patch: Patch, files: Iterable[patchfile.FileDiff]) -> Patch:
    """The patch with these diffs in place of its own."""
    files = tuple(files)
    head, _ = patchfile.split(patch.content.decode("utf-8"))
    return replace(patch, content=(head + patchfile.render(files)).encode(), files=files)


def _moved(hunk: Hunk, line: int) -> Hunk:
    return replace(hunk, old_start=line, new_start=hunk.new_start + line - hunk.old_start)
