"""Which overlay files a Python text imports: what a patch calls of the overlay brings the files
that these import."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from ..files.tree import PREFIX

_IMPORT = re.compile(
    r"(?m)^[ \t]*(?:from\s+(\.*)([\w.]*)\s+import\s+(?:\(([^)]*)|(.*))|import\s+(.*))"
)


def closure(named: Iterable[str], overlay: Mapping[str, bytes]) -> frozenset[str]:
    """The overlay files `named`, those that they import, wherever in them, and the packages of all
    these."""
    reached: set[str] = set()
    waiting = set(named) & overlay.keys()
    while waiting:
        reached |= waiting
        folders = {
            f"{folder}/__init__.py" for path in waiting for folder in PurePosixPath(path).parents
        }
        imported = folders.union(*(of_file(path, overlay[path]) for path in waiting))
        waiting = (imported & overlay.keys()) - reached
    return frozenset(reached)


@functools.cache  # every selection of patches asks for the same files
def of_file(path: str, content: bytes) -> frozenset[str]:
    """The files that the module `path` may import, as paths in the tree, whether or not they are
    there."""
    return frozenset(file for _, file in by_line(path, content))


def by_line(path: str, content: bytes) -> Iterator[tuple[int, str]]:
    """(line, file) of each import in the module `path`, as `of_file` has the files."""
    text = content.decode("utf-8", "replace") if path.endswith(".py") else ""
    package = path.removeprefix(PREFIX).split("/")[:-1]
    for match in _IMPORT.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield from ((line, file) for file in _imported(match, package))


def of_lines(lines: Iterable[str]) -> frozenset[str]:
    """The same of some lines of a module, which need not be a whole statement each: absolute
    imports alone."""
    matches = _IMPORT.finditer("".join(lines))
    return frozenset(file for match in matches if not match[1] for file in _imported(match, []))


def _imported(match: re.Match[str], package: list[str]) -> Iterator[str]:
    """The files that one import may mean. package: the folders of the module that has it."""
    dots, module, parenthesised, listed, plain = match.groups()
    if plain is not None:
        for name in re.findall(r"(?:^|,)\s*([\w.]+)", plain):
            yield from _files(name.split("."), [])
        return
    above = package[: len(package) + 1 - len(dots)] if dots else []
    yield from _files([*above, *module.split(".")], re.findall(r"\w+", parenthesised or listed))


def _files(module: list[str], names: Collection[str]) -> set[str]:
    """Where a module, and those of `names` that are modules in it, would lie."""
    stem = PREFIX + "/".join(filter(None, module))
    return {
        f"{path}{end}"
        for path in (stem, *(f"{stem}/{name}" for name in names))
        for end in (".py", "/__init__.py")
    }
