"""The terminal: the parser of a command line, what commands print, and exit codes."""

from __future__ import annotations

import argparse
import difflib
import io
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.logging import RichHandler
from rich.styled import Styled
from rich.table import Table
from rich.text import Text

from ..files import atomic, disk
from ..files.run import Failed
from ..hint import program, to_type
from ..outcome import Outcome, Problem, Refused
from ..upstream.source import cache_folder
from .arguments import Command

OUTPUTS = ("out", "onto", "site")  # options that name a folder to write to
COLOURS = {
    Outcome.APPLIED: "green",
    Outcome.ALREADY_APPLIED: "green",
    Outcome.MERGED_UPSTREAM: "cyan",
    Outcome.NOT_SELECTED: "dim",
    Outcome.EMPTY: "yellow",
    Outcome.NEEDS_REFRESH: "yellow",
}
# text of the queue may hold [brackets]
OUT = Console(highlight=False, soft_wrap=True, markup=False)
ERR = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)


class _Lines(RichHandler):
    """Progress, one line for each record: rich's table of records would wrap it."""

    def render(self, *, record: logging.LogRecord, **_: object) -> Styled:
        return Styled(Text(record.getMessage()), "dim")


LINES = _Lines(console=ERR)


class Parser(argparse.ArgumentParser):
    """A parser that names a misspelt option before it asks for one that is missing."""

    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        options = [option for action in self._actions for option in action.option_strings]
        words = (word.partition("=")[0] for word in self._words)
        given = [
            word.removeprefix("--") for word in words if word.startswith("--") and word != "--"
        ]
        unknown = next(
            (name for name in given if not any(one.startswith(f"--{name}") for one in options)), ""
        )
        if unknown:
            names = [option.removeprefix("--") for option in options]
            alike = difflib.get_close_matches(unknown, names, 1)
            message = f"there is no option --{unknown}" + (
                f"; did you mean --{alike[0]}?" if alike else ""
            )
        super().error(message)


def parser(description: str, commands: Iterable[Command], root: Path | None = None) -> Parser:
    """The parser of some commands. root: the queue's folder; None to take it from --root."""
    made = Parser(prog=program(), description=description)
    if root:
        made.set_defaults(root=root)
    else:
        text = "the project's folder (default: this one)"
        made.add_argument("--root", type=Path, default=Path.cwd(), help=text)
    added = made.add_subparsers(required=True, metavar="COMMAND")
    for command in commands:
        command.add_to(added)
    return made


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Run one command. Exit codes: 0 done, 1 refused or problems found, 2 wrong words."""
    for package in ("patchqueue", "bundle", "evidence"):
        top = logging.getLogger(package)
        top.setLevel(logging.INFO)
        top.addHandler(LINES)  # one object, so that a second call adds none
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file's name need not be UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return int(options.run(options))
    except Refused as refusal:
        show_problems(refusal.problems)
    except Failed as failure:
        step = (
            disk.said(str(failure))
            or "see what git says of that repository; nothing but the branches named above was made"
        )
        show_problems([Problem("git-failed", "git", str(failure), step)])
    except OSError as error:
        places = _places(options)
        show_problems([disk.problem(error, places) or disk.other(error, places)])
    except KeyboardInterrupt as stop:
        state = "nothing half-done was put in place"
        if (options.root / atomic.JOURNAL).is_dir():
            state = f"the queue's files are written in part; {to_type('check')} writes the rest"
        ERR.print(f"interrupted; {stop.args[0] if stop.args else state}")
        return 130
    return 1


def show_problems(problems: Sequence[Problem]) -> None:
    """Print problems. A next step that several problems in a row share is printed once."""
    problems = _grouped(problems)
    for problem, following in zip(problems, [*problems[1:], None]):
        shared = following is not None and following.hint == problem.hint
        ERR.print(str(Problem(problem.name, problem.where, problem.what) if shared else problem))
        if os.environ.get("GITHUB_ACTIONS") == "true":
            print(problem.as_github())


def _grouped(problems: Iterable[Problem]) -> list[Problem]:
    """The problems; those that differ in the release alone are joined."""
    groups: dict[Problem, list[str]] = {}
    for problem in problems:
        file, _, tag = problem.where.rpartition(" on ")
        is_of_release = re.fullmatch(r"v\d\S*", tag)
        key = replace(problem, where=f"{file} on" if is_of_release else problem.where)
        groups.setdefault(key, []).append(tag)
    joined = []
    for key, tags in groups.items():
        several = f"{len(tags)} releases, {tags[0]} to {tags[-1]}"
        behind = f" {several if len(tags) > 1 else tags[0]}" if key.where.endswith(" on") else ""
        joined.append(replace(key, where=f"{key.where}{behind}"))
    return joined


def show_rows(rows: Iterable[Any]) -> None:
    """Print a table of patches: each row's patch, its outcome, and why."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("patch", "outcome", "why"):
        table.add_column(name, no_wrap=name != "why", overflow="fold")
    for row in rows:
        outcome = Text(str(row.outcome), COLOURS.get(row.outcome, "red"))
        table.add_row(row.patch.removesuffix(".patch"), outcome, row.why)
    OUT.print(table, soft_wrap=False)


def _places(options: argparse.Namespace) -> list[disk.Place]:
    """Where a command writes, and what a user can do where that is impossible."""
    spare = "all in it is fetched again when it is needed"
    places = [
        disk.Place(options.root, "use another clone of the queue"),
        disk.Place(cache_folder(), "name another cache: PATCHQUEUE_CACHE=FOLDER", spare),
    ]
    named = [Path(vars(options)[name]) for name in OUTPUTS if vars(options).get(name)]
    places += [disk.Place(folder, "name another folder") for folder in named]
    try:
        temporary = Path(tempfile.gettempdir())
    except OSError:  # no folder for temporary files can be written
        return places
    return [*places, disk.Place(temporary, "name another folder: TMPDIR=FOLDER")]
