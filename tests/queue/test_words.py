"""Pages, help and messages: one way of writing a command."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
from patchqueue.hint import counted, to_type

ROOT = Path(__file__).resolve().parents[2]
TOOL = sorted((ROOT / "scripts/patchqueue").rglob("*.py"))
LONG = re.compile(r"nox -s [a-z]+\b(?: --)?(?! [a-z]+ --)")
MEANT = {"CONTRIBUTING.md": {"nox -s apply --"}}  # where the form itself is explained


def texts() -> list[Path]:
    """What git has of pages, code and workflows; tests/revision and tests/gpu name commands for their own readers."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    kinds = {".md", ".py", ".toml", ".txt", ".yml", ".sbatch", ""}
    left_out = ("overlay/", "patches/", "evidence/", "tests/")
    return [Path(name) for name in listed.stdout.splitlines() if Path(name).suffix in kinds and not name.startswith(left_out)]


@pytest.mark.parametrize("path", texts(), ids=str)
def test_a_command_is_written_in_the_short_form(path):
    found = set(LONG.findall((ROOT / path).read_text(encoding="utf-8", errors="replace")))
    assert found <= MEANT.get(str(path), set()), f"write `scripts/nox WORD …`: {found}"


def literals(path: Path) -> list[str]:
    """The strings of a module without its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs)
    return [node.value for node in strings if isinstance(node.value, str)]


@pytest.mark.parametrize("path", TOOL, ids=lambda path: str(path.relative_to(ROOT / "scripts")))
def test_one_place_writes_commands(path):
    written = [text for text in literals(path) if "scripts/nox " in text]
    assert not written or path.name == "hint.py", f"use to_type: {written}"


def test_a_path_in_a_command_can_be_typed():
    said = to_type("install", "--site-packages", Path("/a folder/x"), "--verify")
    assert said == "`scripts/nox install --site-packages '/a folder/x' --verify`"


def sessions() -> set[str]:
    return set(re.findall(r"^def (\w+)\(session: nox.Session\)", (ROOT / "noxfile.py").read_text(), re.M))


@pytest.mark.parametrize("path", TOOL, ids=lambda path: str(path.relative_to(ROOT / "scripts")))
def test_every_command_in_a_hint_exists(path):
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    names = {call.args[0].value for call in calls if isinstance(call.func, ast.Name) and call.func.id == "to_type" and isinstance(call.args[0], ast.Constant)}
    assert names <= sessions()


def test_one_thing_is_no_plural():
    said = [counted(number, "patch", "patches") for number in (0, 1, 2)]
    assert said == ["0 patches", "1 patch", "2 patches"] and counted(2, "file") == "2 files"


@pytest.mark.parametrize("path", TOOL, ids=lambda path: str(path.relative_to(ROOT / "scripts")))
def test_one_place_makes_plurals(path):
    """No `1 files`: a number before a noun in the plural is counted."""
    nouns = "files|patches|packages|parts|mails|releases|problems|wheels|hunks|regions|lines|results|threads"
    found = re.findall(rf"(?<!of )\{{[^{{}}]*\b(?:len|count|number)\b[^{{}}]*\}} (?:{nouns})\b", path.read_text(encoding="utf-8"))
    assert not found, f"use counted: {found}"
