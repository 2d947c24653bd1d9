"""Which rules a result was judged by: standard library only. harness.json names the files that hold
them. The tool that keeps evidence runs this file too."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
WHOLE = {"show_empty": True} if sys.version_info >= (3, 13) else {}  # as earlier Pythons dump


def identity(folder: Path = HERE) -> str:
    """A hash over the files that settle what is asked, of which models, and what counts as
    agreement. Python files count without comments and docstrings."""
    named = ""
    for name in json.loads((folder / "harness.json").read_text(encoding="utf-8"))["files"]:
        content = (folder / name).read_bytes()
        content = code(content).encode() if name.endswith(".py") else content
        named += f"{hashlib.sha256(content).hexdigest()}  {name}\n"
    return f"sha256:{hashlib.sha256(named.encode()).hexdigest()}"


def code(content: bytes) -> str:
    """A module's syntax tree without comments and docstrings, the same from Python 3.10 on."""
    module = ast.parse(content)
    for node in ast.walk(module):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
        if not getattr(node, "type_params", True):
            del node.type_params  # a field since Python 3.12
    return ast.dump(module, **WHOLE)
