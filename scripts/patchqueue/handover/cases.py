"""Cases of our own in a test file that upstream has: imports, functions and methods are put where
that file has its own, and nothing of upstream's lines is changed.

Ours is a whole file that runs alone; what makes it one (its docstring, its registration with
upstream's CI, stubs, `unittest.main`) stays behind where upstream's file has it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..outcome import Refused

TAIL = "if __name__"
Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def join(path: str, upstream: bytes, ours: bytes) -> bytes:
    """Upstream's file with our cases. Raises Refused where one of our names is there already."""
    try:
        theirs, mine = ast.parse(upstream), ast.parse(ours)
    except SyntaxError as error:
        raise _refused(path, f"is no Python: {error}", "correct it") from None
    lines, own = upstream.decode().splitlines(), ours.decode().splitlines()
    known = _names(theirs)
    imports, rest = _imports(theirs, mine, own), []
    insert: dict[int, list[str]] = {}
    for node in mine.body:
        if not isinstance(node, (*Definition, ast.Assign, ast.AnnAssign)):
            continue
        there = known.get(_name(node))
        if isinstance(node, ast.ClassDef) and isinstance(there, ast.ClassDef):
            insert[there.end_lineno or 0] = list(_methods(path, there, node, own))
        elif there is None:
            rest += ["", "", *_source(node, own)]
        elif _same(there, node):
            continue
        else:
            step = f"name ours otherwise than upstream's {_name(node)}"
            raise _refused(path, f"has {_name(node)} already, another one", step)
    insert.setdefault(_last_import(theirs), [])[:0] = imports
    insert.setdefault(_before_tail(theirs, lines), []).extend(rest)
    return "".join(f"{line}\n" for line in _with(lines, insert)).encode()


def _with(lines: list[str], insert: dict[int, list[str]]) -> Iterator[str]:
    """The lines, and others behind those of these numbers (1-based; 0: in front)."""
    yield from insert.get(0, [])
    for number, line in enumerate(lines, 1):
        yield line
        yield from insert.get(number, [])


def _imports(theirs: ast.Module, mine: ast.Module, own: list[str]) -> list[str]:
    """Our imports that upstream's file lacks; isort puts them into their order."""
    there = {line for node in theirs.body for line in _each_import(node)}
    here = [line for node in mine.body for line in _each_import(node)]
    return [line for line in dict.fromkeys(here) if line not in there]


def _each_import(node: ast.stmt) -> Iterator[str]:
    """An import, one name on each line."""
    if isinstance(node, ast.Import):
        yield from (ast.unparse(ast.Import([alias])) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield ast.unparse(ast.ImportFrom(node.module, [alias], node.level))


def _methods(path: str, there: ast.ClassDef, node: ast.ClassDef, own: list[str]) -> Iterator[str]:
    """The methods of a class that upstream's class of this name lacks."""
    known = {_name(one): one for one in there.body if isinstance(one, Definition)}
    for one in node.body:
        if not isinstance(one, Definition):
            continue
        if _name(one) not in known:
            yield from ("", *_source(one, own))
        elif not _same(known[_name(one)], one):
            name = f"{there.name}.{_name(one)}"
            step = f"name ours otherwise than upstream's {name}"
            raise _refused(path, f"has {name} already, another one", step)


def _source(node: ast.stmt, own: list[str]) -> list[str]:
    """Its lines, with decorators and the comment right above it."""
    decorators = node.decorator_list if isinstance(node, Definition) else []
    first = min([node.lineno, *(one.lineno for one in decorators)])
    while first > 1 and own[first - 2].lstrip().startswith("#"):
        first -= 1
    return own[first - 1 : node.end_lineno]


def _names(tree: ast.Module) -> dict[str, ast.stmt]:
    return {_name(node): node for node in tree.body if _name(node)}


def _name(node: ast.stmt) -> str:
    if isinstance(node, Definition):
        return node.name
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return next((one.id for one in targets if isinstance(one, ast.Name)), "")


def _same(one: ast.stmt, other: ast.stmt) -> bool:
    return ast.dump(one) == ast.dump(other)


def _last_import(tree: ast.Module) -> int:
    """The last line of the imports at the top, 0 where there are none."""
    found = [
        node.end_lineno or 0 for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    return max(found, default=0)


def _before_tail(tree: ast.Module, lines: list[str]) -> int:
    """The last line that is no part of `if __name__ == ...`, blank lines apart."""
    tails = [
        node.lineno
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test).startswith("__name__")
    ]
    at = (tails[0] if tails else len(lines) + 1) - 1
    while at and not lines[at - 1].strip():
        at -= 1
    return at


def _refused(path: str, what: str, step: str) -> Refused:
    return Refused.of("bad-cases", path, what, f"{step}, below pull-requests/")


def names(before: bytes, after: bytes) -> tuple[str, ...]:
    """The cases that `after` has and `before` lacks: classes and functions, and methods as
    `Class and method`, as pytest's -k takes them."""
    old, new = ast.parse(before), ast.parse(after)
    known = _names(old)
    found = []
    for node in new.body:
        there = known.get(_name(node))
        if isinstance(node, ast.ClassDef) and isinstance(there, ast.ClassDef):
            methods = {_name(one) for one in there.body}
            found += [
                f"({node.name} and {_name(one)})"
                for one in node.body
                if isinstance(one, Definition) and _name(one) not in methods
            ]
        elif isinstance(node, Definition) and there is None:
            found.append(node.name)
    return tuple(found)
