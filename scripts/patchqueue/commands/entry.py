"""What every command line of this project shares: its parser, and what becomes of an error."""

from __future__ import annotations

import argparse
import difflib
import io
import logging
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.logging import RichHandler
from rich.styled import Styled
from rich.text import Text

from ..files import atomic, disk
from ..files.run import Failed
from ..hint import program, to_type
from ..outcome import Problem, Refused
from ..upstream.source import cache_folder

OUTPUTS = ("out", "mails", "onto", "site")  # options that name a folder to write to
# text of the queue may hold [brackets]
OUT = Console(highlight=False, soft_wrap=True, markup=False)
ERR = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)


class _Lines(RichHandler):
    """What is done meanwhile, a line for each record: rich's table of records would wrap it."""

    def render(self, *, record: logging.LogRecord, **_: object) -> Styled:
        return Styled(Text(record.getMessage()), "dim")


LINES = _Lines(console=ERR)


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Run one command. Exit codes: 0 done, 1 refused or problems found, 2 wrong words."""
    for package in ("patchqueue", "bundle", "evidence"):
        top = logging.getLogger(package)
        top.setLevel(logging.INFO)
        top.addHandler(LINES)  # once: it is the same one
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file's name need not be UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return int(options.run(options))
    except Refused as refusal:
        show_problems(refusal.problems)
        return 1
    except Failed as failure:
        step = (
            disk.said(str(failure))
            or "see what git says of that repository; nothing but the branches named above was made"
        )
        show_problems([Problem("git-failed", "git", str(failure), step)])
        return 1
    except OSError as error:
        places = _places(options)
        show_problems([disk.problem(error, places) or disk.other(error, places)])
        return 1
    except KeyboardInterrupt as stop:
        ERR.print(f"interrupted; {stop.args[0] if stop.args else _left(options.root)}")
        return 130


def show_problems(problems: Sequence[Problem]) -> None:
    for problem in problems:
        ERR.print(str(problem))
        if os.environ.get("GITHUB_ACTIONS") == "true":
            print(problem.as_github())


def _left(root: Path) -> str:
    """What an interrupted command leaves behind. One that knows more says it in the exception."""
    if (root / atomic.JOURNAL).is_dir():
        return f"the queue's files are written in part; {to_type('check')} writes the rest"
    return "nothing half-done was put in place"


def _places(options: argparse.Namespace) -> list[disk.Place]:
    """Where a command writes, and what a user can do where that is impossible."""
    cache = disk.Place(
        cache_folder(),
        "name another cache: PATCHQUEUE_CACHE=FOLDER",
        "all in it is fetched again when it is needed",
    )
    root = disk.Place(options.root, "use another clone of the queue")
    named = [
        disk.Place(Path(vars(options)[name]), "name another folder")
        for name in OUTPUTS
        if vars(options).get(name)
    ]
    try:
        return [
            root,
            cache,
            disk.Place(Path(tempfile.gettempdir()), "name another folder: TMPDIR=FOLDER"),
            *named,
        ]
    except OSError:  # there is none that can be written
        return [root, cache, *named]


class Parser(argparse.ArgumentParser):
    """One that names a misspelt option before it asks for one that is missing."""

    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        options = [option for action in self._actions for option in action.option_strings]
        given = [
            word.partition("=")[0] for word in self._words if word.startswith("--") and word != "--"
        ]
        unknown = next(
            (word for word in given if not any(option.startswith(word) for option in options)), ""
        )
        if unknown:
            alike = difflib.get_close_matches(unknown, options, 1)
            message = f"there is no option {unknown}" + (
                f"; did you mean {alike[0]}?" if alike else ""
            )
        super().error(message)


def finish(commands: Any, examples: Mapping[str, str]) -> None:
    """Give each command its description and its example."""
    texts = {action.dest: action.help or "" for action in commands._choices_actions}
    for name, each in commands.choices.items():
        each.set_defaults(parser=each)
        each.description = each.description or sentence(texts[name])
        each.epilog = (
            f"Example: {to_type(name, examples[name]).strip('`')}" if name in examples else None
        )


def parser(description: str) -> Parser:
    return Parser(prog=program(), description=description)


def add_root(made: argparse.ArgumentParser) -> None:
    here = "the project's folder (default: this one)"
    made.add_argument("--root", type=Path, default=Path.cwd(), help=here)


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
