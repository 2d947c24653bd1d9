"""Pages, help and messages: one way of writing a command, short sentences, no private nouns."""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from pathlib import Path

import fakes
import pytest

from evidence.commands import cli as proving
from patchqueue.commands import cli
from patchqueue.hint import counted, to_type

ROOT = Path(__file__).resolve().parents[2]
TOOL = sorted(
    path for name in ("patchqueue", "evidence") for path in (ROOT / "scripts" / name).rglob("*.py")
)
EXAMPLES = cli.EXAMPLES | proving.EXAMPLES
LONG = re.compile(r"nox -s [a-z]+\b(?: --)?(?! [a-z]+ --)")
MEANT = {"CONTRIBUTING.md": {"nox -s apply --"}}  # where the form itself is explained


def texts() -> list[Path]:
    """What git has of pages, code and workflows; tests/revision and tests/gpu name commands for
    their own readers."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    kinds = {".md", ".py", ".toml", ".txt", ".yml", ".sbatch", ""}
    left_out = ("overlay/", "patches/", "evidence/", "tests/")
    return [
        Path(name)
        for name in listed.stdout.splitlines()
        if Path(name).suffix in kinds and not name.startswith(left_out)
    ]


@pytest.mark.parametrize("path", texts(), ids=str)
def test_a_command_is_written_in_the_short_form(path):
    found = set(LONG.findall((ROOT / path).read_text(encoding="utf-8", errors="replace")))
    assert found <= MEANT.get(str(path), set()), f"write `scripts/nox WORD …`: {found}"


def literals(path: Path) -> list[str]:
    """The strings of a module without its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = (
        node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs
    )
    return [node.value for node in strings if isinstance(node.value, str)]


@pytest.mark.parametrize("path", TOOL, ids=lambda path: str(path.relative_to(ROOT / "scripts")))
def test_one_place_writes_commands(path):
    written = [text for text in literals(path) if "scripts/nox " in text]
    # what measures the tool types them, as a user does
    types = path.name == "hint.py" or path.parent.name == "measure"
    assert not written or types, f"use to_type: {written}"


def test_a_path_in_a_command_can_be_typed():
    said = to_type("install", "--site-packages", Path("/a folder/x"), "--verify")
    assert said == "`scripts/nox install --site-packages '/a folder/x' --verify`"


@pytest.mark.parametrize("path", TOOL, ids=lambda path: str(path.relative_to(ROOT / "scripts")))
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


def test_one_thing_is_no_plural():
    said = [counted(number, "patch", "patches") for number in (0, 1, 2)]
    assert said == ["0 patches", "1 patch", "2 patches"] and counted(2, "file") == "2 files"


@pytest.mark.parametrize("path", TOOL, ids=lambda path: str(path.relative_to(ROOT / "scripts")))
def test_one_place_makes_plurals(path):
    """No `1 files`: a number before a noun in the plural is counted."""
    nouns = (
        "files|patches|packages|parts|mails|releases|problems|wheels|hunks|regions|lines|results"
        "|threads"
    )
    found = re.findall(
        rf"(?<!of )\{{[^{{}}]*\b(?:len|count|number)\b[^{{}}]*\}} (?:{nouns})\b",
        path.read_text(encoding="utf-8"),
    )
    assert not found, f"use counted: {found}"


# Help: an example that is right, short sentences, lines that fit.


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Every command's, of both command lines."""
    return {
        name: parser
        for line in (cli, proving)
        for action in line._parser()._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, parser in action.choices.items()
    }


@pytest.mark.parametrize("name", [*EXAMPLES])
def test_the_example_of_a_command_is_one(name):
    words = EXAMPLES[name].split()
    options, unknown = fakes.parser(name).parse_known_args([name, *words])
    assert (
        not unknown
        and options.run
        and to_type(name, *words).strip("`") in parsers()[name].format_help()
    )


def test_every_command_has_an_example():
    assert parsers().keys() - {"fields", "watch"} == EXAMPLES.keys()


@pytest.mark.parametrize("name", [*parsers()])
def test_help_is_short_sentences_that_fit(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    made = parsers()[name]
    assert (
        re.fullmatch(r"[A-Z].*\.", made.description, re.DOTALL)
        and max(map(len, made.format_help().splitlines())) <= 80
    )
    texts = [made.description, *(action.help for action in made._actions)]
    assert [text for text in texts if too_long(text) or banned(text)] == []


# Pages: short sentences, no private nouns.


LONGEST = 24  # words in a sentence
GENERATED = re.compile(r"<!-- (status|releases|fields|packages) -->.*?<!-- /\1 -->", re.DOTALL)
PRIVATE = re.compile(
    r"\b(house|rooms?|shelf|shelves|strangers?|riddles?|personas?|the watch)\b", re.IGNORECASE
)
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def blocks(page: str) -> list[str]:
    """The paragraphs and list items of a page, each in a line: no code, no tables, no headings,
    nothing that is generated as a list."""
    text = GENERATED.sub("\n\n", re.sub(r"(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$", "\n\n", page))
    found: list[list[str]] = [[]]
    for line in map(str.strip, text.splitlines()):
        item = re.match(r"(?:[-*]|\d+\.) +(.*)", line)
        if not line or line.startswith(("|", "#", "<!--", "![")):
            found.append([])
        elif item:
            found.append([item[1]])
        else:
            found[-1].append(line)
    return [" ".join(lines) for lines in found if lines]


def sentences(text: str) -> list[str]:
    """A link counts with its text, code as one word; a colon before a capital ends a sentence."""
    plain = re.sub(
        r"`[^`]*`", "Code", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(text.split()))
    )
    return re.split(r"(?<=[.!?])[*)\"]* +|(?<=:) +(?=[A-Z])", plain)


def too_long(text: str) -> list[str]:
    return [one for one in sentences(text) if len(re.findall(r"\S*\w\S*", one)) > LONGEST]


def banned(text: str) -> list[str]:
    return [found[0] for found in PRIVATE.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_short_sentences(page):
    assert [
        one for block in blocks(page.read_text(encoding="utf-8")) for one in too_long(block)
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_private_nouns(page):
    assert banned(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_comment_pushes_no_command_over_80_columns(page):
    commands = re.findall(r"(?ms)^ *```sh\n(.*?)^ *```$", page.read_text(encoding="utf-8"))
    assert [
        line for block in commands for line in block.splitlines() if "# " in line and len(line) > 80
    ] == []


def test_a_long_sentence_is_found_and_a_table_is_none():
    long = " ".join(["word"] * 25)
    page = (
        f"# {long}\n\nShort. {long}\nend.\n\n- {long}.\n\n| {long} |\n\n```\n{long}\n```\n\nSo"
        f" {' '.join(['`a b c`'] * 24)}.\n"
    )
    assert [len(one.split()) for block in blocks(page) for one in too_long(block)] == [26, 25, 25]
    assert banned("The house and the rooms, but no household.") == ["house", "rooms"]


# Messages: the same.


def messages(path: Path) -> list[str]:
    """The strings of a module without docstrings and code; what is put into an f-string counts as
    one word."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = {
        id(value)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for value in node.values
    }
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append(
                "".join(
                    str(value.value) if isinstance(value, ast.Constant) else "X"
                    for value in node.values
                )
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in parts | docs
        ):
            found.append(node.value)
    return [text for text in found if "\ndef " not in text]


@pytest.mark.parametrize("path", TOOL, ids=lambda path: str(path.relative_to(ROOT / "scripts")))
def test_messages_are_short_sentences_without_private_nouns(path):
    assert [
        one
        for text in messages(path)
        for block in blocks(text)
        for one in too_long(block) + banned(block)
    ] == []
