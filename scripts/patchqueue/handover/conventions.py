"""Upstream's written rules, as far as a program can check them, on the lines that a pull request
adds.

Upstream keeps them in .claude/rules of its repository (0.5.18 and later) and reviewers hold people
to them. What has no exception there is a refusal; where the rule leaves room for judgement it is a
warning, which names the line.
"""

from __future__ import annotations

import ast
import difflib
import re
import tokenize
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

COLUMNS = 88  # the formatters' own, which leave comments and docstrings as they are
COMMENT_LINES = 2
SRT = "python/sglang/srt/"
BLOCKS = re.compile(r"(?m)^\s*(?:Args|Arguments|Returns|Raises):\s*$")
TAG = re.compile(r"#\s*(?:(FIXME|XXX|HACK)\b|(TODO)(?!\())")
Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Finding:
    """A line that breaks a rule. refused: whether upstream's rule has no exception."""

    rule: str
    where: str
    what: str
    refused: bool

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def findings(
    before: Mapping[str, bytes], after: Mapping[str, bytes], packages: Collection[str]
) -> list[Finding]:
    """What upstream's rules have against the lines that `after` has and the same files in `before`
    lack.

    packages: the names of the base's folders below srt/.
    """
    found = list(_new_packages(packages, after))
    for path, content in sorted(after.items()):
        if path.endswith(".py"):
            found += _of_file(path, before.get(path, b""), content)
    return found


def added_lines(before: bytes, after: bytes) -> frozenset[int]:
    """The lines (1-based) of `after` that `before` has not."""
    old, new = (text.decode("utf-8", "surrogateescape").splitlines() for text in (before, after))
    codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return frozenset(
        line + 1
        for kind, _, _, first, end in codes
        if kind in ("insert", "replace")
        for line in range(first, end)
    )


def _new_packages(packages: Collection[str], after: Collection[str]) -> Iterator[Finding]:
    """Folders of srt/ that the base does not have."""
    inside = (path.removeprefix(SRT) for path in after if path.startswith(SRT))
    for name in sorted({path.partition("/")[0] for path in inside if "/" in path} - {*packages}):
        what = "is a new top-level package of srt: put the code where upstream keeps such code"
        yield Finding("new-package", f"{SRT}{name}", what, True)


def _of_file(path: str, before: bytes, after: bytes) -> Iterator[Finding]:
    added = added_lines(before, after)
    lines = after.decode("utf-8", "surrogateescape").splitlines()
    try:
        tree = ast.parse(after)
    except SyntaxError as error:
        yield Finding("no-python", f"{path}:{error.lineno}", f"is no Python: {error.msg}", True)
        return
    rows = (*_of_text(lines, added), *_of_lengths(lines, tree), *_of_code(path, tree))
    for line, rule, what, refused in rows:
        if line in added:
            yield Finding(rule, f"{path}:{line}", what, refused)


Row = tuple[int, str, str, bool]


def _of_text(lines: list[str], added: Collection[int]) -> Iterator[Row]:
    comments = 0
    for number, line in enumerate(lines, 1):
        if odd := re.search(r"[^\x00-\x7f]", line):
            yield number, "ascii", f"has {odd[0]!r}: upstream's lines are ASCII", True
        if tag := TAG.search(line):
            what = f"{tag[1] or 'TODO without an owner'}: upstream takes NOTE and TODO(owner)"
            yield number, "tag", what, True
        comments = comments + 1 if line.lstrip().startswith("#") and number in added else 0
        if comments == COMMENT_LINES + 1:
            yield number, "long-comment", "is the third line of a comment: one or two do", False


def _of_lengths(lines: list[str], tree: ast.Module) -> Iterator[Row]:
    """Comments and docstrings: what upstream's formatter leaves as it is."""
    text = iter(line + "\n" for line in lines)
    tokens = tokenize.generate_tokens(lambda: next(text, ""))
    numbers = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, *Function, ast.ClassDef)) and ast.get_docstring(node):
            first = node.body[0]
            numbers |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    for number in sorted(numbers):
        if len(line := lines[number - 1]) > COLUMNS:
            what = f"has {len(line)} columns, and upstream's files have {COLUMNS}"
            yield number, "long-line", what, True


def _of_code(path: str, tree: ast.Module) -> Iterator[Row]:
    test = path.startswith("test/")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from _of_class(node)
        if isinstance(node, (*Function, ast.ClassDef)):
            yield from _of_docstring(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not test:
            name, count = node.func.id, len(node.args)
            if name == "hasattr" or (name == "getattr" and count == 3):
                what = f"{name}() hides a field that is gone: narrow the type, or set the field"
                yield node.lineno, "defensive-access", what, False
    if path.startswith("test/registered/"):
        yield from _of_test(tree)
    elif path.startswith("python/") and (found := _registered(tree)):
        what = "registers a test for CI: upstream keeps such tests in test/registered/"
        yield found[0].lineno, "test-in-package", what, True


def _of_class(node: ast.ClassDef) -> Iterator[Row]:
    for one in node.decorator_list:
        called = one.func if isinstance(one, ast.Call) else one
        name = ast.unparse(called)
        if name.rpartition(".")[2] == "dataclass" or name in ("attr.s", "attrs.define", "define"):
            what = f"@{name} on {node.name}: upstream takes msgspec.Struct"
            yield one.lineno, "dataclass", what, True


def _of_docstring(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Iterator[Row]:
    first = node.body[0] if node.body else None
    text = ast.get_docstring(node, clean=False)
    if text is None or first is None:
        return
    if BLOCKS.search(text):
        what = f"the docstring of {node.name} has an Args or Returns block: the signature says it"
        yield first.lineno, "docstring-block", what, True
    elif node.name.startswith("_") and not node.name.startswith("__") and "\n" in text.strip():
        what = f"{node.name} is internal, and its docstring has several lines"
        yield first.lineno, "long-docstring", what, False


def _registered(tree: ast.Module) -> list[ast.Call]:
    """The calls that register a file's tests for CI, as register_cpu_ci(…)."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [node for node in calls if re.fullmatch(r"register_\w+_ci", ast.unparse(node.func))]


def _of_test(tree: ast.Module) -> Iterator[Row]:
    """Upstream's local hooks for test files."""
    if not _registered(tree):
        yield 1, "unregistered-test", "is registered for no CI suite: register_cpu_ci(...)", True
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test).startswith("__name__"):
            for one in node.body:
                if isinstance(one, ast.Expr) and ast.unparse(one).startswith("pytest.main("):
                    what = "pytest.main() without sys.exit() ends well whatever failed"
                    yield one.lineno, "bare-pytest-main", what, True
