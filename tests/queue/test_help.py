"""Help and hints: the commands that they name exist, and help fits a terminal."""

from __future__ import annotations

import argparse
import ast
import re

import fakes
import pytest
from fakes import ROOT

from evidence import commands as proving
from patchqueue.commands import cli
from patchqueue.outcome import to_type

TOOL = sorted(
    path for name in ("scripts/patchqueue", "lab") for path in (ROOT / name).rglob("*.py")
)
EXAMPLES = {command.name: command.example for command in cli.COMMANDS + proving.COMMANDS}


@pytest.mark.parametrize("path", TOOL, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_in_a_hint_exists(path):
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    ]
    names = {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id == "to_type"
        and isinstance(call.args[0], ast.Constant)
    }
    assert names <= fakes.sessions()


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Every command's, of both command lines."""
    return {
        name: parser
        for line in (cli, proving)
        for action in line._parser()._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, parser in action.choices.items()
    }


def test_every_session_of_a_tool_is_a_command_of_one_line():
    """Each of two command lines lists its own, and no other has it."""
    names = [command.name for command in cli.COMMANDS + proving.COMMANDS]
    assert sorted(names) == sorted(parsers())
    assert {*names} == fakes.sessions() - {"lint", "linted"}


@pytest.mark.parametrize("name", [*EXAMPLES])
def test_the_example_of_a_command_is_one(name):
    words = EXAMPLES[name].split()
    options, unknown = fakes.parser(name).parse_known_args([name, *words])
    assert (
        not unknown
        and options.run
        and to_type(name, *words).strip("`") in parsers()[name].format_help()
    )


@pytest.mark.parametrize("name", [*parsers()])
def test_help_fits_80_columns(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    made = parsers()[name]
    assert (
        re.fullmatch(r"[A-Z].*\.", made.description, re.DOTALL)
        and max(map(len, made.format_help().splitlines())) <= 80
    )
    assert "VERSION" not in {action.metavar for action in made._actions}, "it is a RELEASE"
