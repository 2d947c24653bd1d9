"""The tool's functions are short."""

from __future__ import annotations

import ast

import pytest
from fakes import ROOT

MOST = 40  # lines, at 100 columns


@pytest.mark.parametrize("package", ["scripts/patchqueue", "lab"])
def test_no_function_has_more_lines_than_a_screen(package):
    trees = {
        file.relative_to(ROOT): ast.parse(file.read_text(encoding="utf-8"))
        for file in (ROOT / package).rglob("*.py")
    }
    assert trees
    assert [
        f"{file}: {node.name}"
        for file, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > MOST
    ] == []
