"""Which overlay files a Python text imports: what a patch calls of the overlay brings the files
that these import."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from ..files.tree import PREFIX

_IMPORT = re.compile(r"(?m)^\s*(?:from\s+([\w.]+)\s+import\s+(?:\(([^)]*)|(.*))|import\s+([\w.]+))")


def closure(named: Iterable[str], overlay: Mapping[str, bytes]) -> frozenset[str]:
    """The overlay files `named`, those that they import, wherever in them, and the packages of all
    these."""
    reached: set[str] = set()
    waiting = set(named) & overlay.keys()
    while waiting:
        reached |= waiting
        imported = {
            file for path in waiting for file in (*_packages(path), *of_file(path, overlay[path]))
        }
        waiting = (imported & overlay.keys()) - reached
    return frozenset(reached)


@functools.cache  # every selection of patches asks for the same files
def of_file(path: str, content: bytes) -> frozenset[str]:
    """The files that the module `path` may import, as paths in the tree, whether or not they are
    there."""
    return frozenset(file for _, file in by_line(path, content))


def by_line(path: str, content: bytes) -> Iterator[tuple[int, str]]:
    """(line, file) of each import in the module `path`, as `of_file` has the files."""
    try:
        tree = ast.parse(content) if path.endswith(".py") else ast.Module([], [])
    except (SyntaxError, ValueError):
        return  # said elsewhere, or by Python
    package = path.removeprefix(PREFIX).split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            module = [*above, *(node.module or "").split(".")]
            for file in _files(module, [alias.name for alias in node.names]):
                yield node.lineno, file
        elif isinstance(node, ast.Import):
            for alias in node.names:
                for file in _files(alias.name.split("."), []):
                    yield node.lineno, file


def of_lines(lines: Iterable[str]) -> frozenset[str]:
    """The same of some lines of a module, which need not be a whole statement each: absolute
    imports alone."""
    files: set[str] = set()
    for module, parenthesised, listed, plain in _IMPORT.findall("".join(lines)):
        files |= _files((module or plain).split("."), re.findall(r"\w+", parenthesised or listed))
    return frozenset(files)


def _files(module: list[str], names: Collection[str]) -> set[str]:
    """Where a module, and those of `names` that are modules in it, would lie."""
    stem = PREFIX + "/".join(filter(None, module))
    return {
        f"{path}{end}"
        for path in (stem, *(f"{stem}/{name}" for name in names))
        for end in (".py", "/__init__.py")
    }


def _packages(path: str) -> Iterator[str]:
    """The `__init__.py` of every folder above `path`."""
    folders = path.split("/")[:-1]
    yield from ("/".join([*folders[:n], "__init__.py"]) for n in range(1, len(folders) + 1))
