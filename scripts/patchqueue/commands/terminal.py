"""The terminal: a command and its arguments, the parser, what commands print, and exit codes. A
path is relative to the folder in which the user typed the command, which noxfile.py passes in
PATCHQUEUE_CALLED_FROM."""

from __future__ import annotations

import argparse
import difflib
import io
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.logging import RichHandler
from rich.styled import Styled
from rich.table import Table
from rich.text import Text

from ..files import atomic
from ..files.run import Failed
from ..outcome import Outcome, Problem, Refused, disk_step, system_problem, to_type
from ..outcome import program as typed_program
from ..queue.header import PROFILES
from ..upstream.pins import Pin, Pins
from ..upstream.source import cache_folder

LOG = logging.getLogger(__name__)
CALLED_FROM = "PATCHQUEUE_CALLED_FROM"
DIST = Path("dist")
DEFAULT = "the one that upstream/pins.toml calls default"
# a hunk that does not fit: the patch, the place with what is there, what the patch needs
HUNK = re.compile(r"(?s)^(.*?): (\S+: hunk \d+: line .*?); (the queue's patch needs .*) (\[\w+\])")
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


Argument = Callable[[Any], object]  # adds an argument to a parser, or to a group of one


@dataclass(frozen=True)
class Command:
    """One command. arguments: a tuple in it holds arguments that exclude each other; example: what
    a user types behind the name."""

    name: str
    run: Callable[[argparse.Namespace], int]
    help: str
    example: str
    arguments: tuple[Argument | tuple[Argument, ...], ...] = ()
    description: str = ""

    def add_to(self, commands: Any) -> None:
        """Make the command's parser."""
        sentence = f"{self.help[:1].upper()}{self.help[1:]}."
        parser: argparse.ArgumentParser = commands.add_parser(
            self.name,
            help=self.help,
            description=self.description or sentence,
            epilog=f"Example: {to_type(self.name, self.example).strip('`')}",
        )
        parser.set_defaults(run=self.run, parser=parser)
        for each in self.arguments:
            is_group = isinstance(each, tuple)
            group = parser.add_mutually_exclusive_group() if is_group else parser
            for add in each if isinstance(each, tuple) else (each,):
                add(group)


def option(name: str, help: str, **options: Any) -> Argument:
    """An argument that takes a value. name: with what help calls the value, as "--out FILE"."""
    name, _, metavar = name.partition(" ")
    options |= {"metavar": metavar} if metavar else {}
    return lambda group: group.add_argument(name, help=help, **options)


def flag(name: str, help: str, **options: Any) -> Argument:
    """An option without a value."""
    return option(name, help, action="store_true", **options)


def releases(default: str = DEFAULT) -> Argument:
    """The pinned releases that a command is for."""
    text = f"v0.5.9 or 0.5.9 (default: {default})"
    return option("releases RELEASE", text, nargs="*")


def chosen_releases(
    options: argparse.Namespace, pins: Pins, default: Sequence[Pin] = ()
) -> list[Pin]:
    """The releases that are named; else `default`, or the default one. Raises Refused."""
    if options.releases or default:
        return [pins.find(name) for name in options.releases] or list(default)
    LOG.info(f"no release is named: {pins.default.tag}, the default in upstream/pins.toml")
    return [pins.default]


def path(text: str) -> Path:
    """A file or folder."""
    return Path(os.path.expanduser(text))


def file(text: str) -> Path:
    """A file to write; `-` is standard output."""
    return atomic.OUTPUT if text == "-" else path(text)


def program(text: str) -> str:
    """A program by its whole path; else by its name, as a shell finds it."""
    return str(path(text).absolute()) if "/" in text else text


def python(text: str) -> str:
    """A version of Python, as 3.12."""
    if not re.fullmatch(r"3\.\d+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no version of Python such as 3.12")
    return text


def machine(text: str) -> str:
    """A machine, as platform.machine() names it on Linux."""
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(text.lower(), text)


FROM = option(
    "--from PATH", "take the release from this wheel, or folder of wheels", dest="origin", type=path
)


ONLY = option(
    "--only PROFILE",
    "apply the patches of one profile alone: `fixes` (no new graph), `rl`"
    " (sleep, weight updates, routed experts) or `speed` (graphs, kernels, and their fixes)",
    choices=PROFILES,
    default="",
)


WITHOUT = option(
    "--without PATCH",
    "leave this patch out, as prefill-graph/log-tree, with the files that it alone needs",
    action="append",
    default=[],
)


def shown(path: Path) -> str:
    """A path as the user can type it."""
    return relative(path.absolute(), Path.cwd())


def relative(path: Path, root: Path) -> str:
    """The path below `root`; a path elsewhere is unchanged."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


class _Lines(RichHandler):
    """Progress, one line for each record: rich's table of records would wrap it."""

    def render(self, *, record: logging.LogRecord, **_: object) -> Styled:
        return Styled(Text(record.getMessage()), "dim")


LINES = _Lines(console=ERR)


def parser(
    description: str, commands: Iterable[Command], root: Path | None = None
) -> argparse.ArgumentParser:
    """The parser of some commands. root: the queue's folder; None to take it from --root."""
    made = argparse.ArgumentParser(prog=typed_program(), description=description)
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
    os.chdir(os.environ.pop(CALLED_FROM, "."))
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        _refuse_unknown(options.parser, unknown)
    try:
        return int(options.run(options))
    except Refused as refusal:
        show_problems(refusal.problems)
    except Failed as failure:
        step = (
            disk_step(str(failure))
            or "see what git says of that repository; nothing but the branches named above was made"
        )
        show_problems([Problem("git-failed", "git", str(failure), step)])
    except OSError as error:
        named = [Path(vars(options)[name]) for name in OUTPUTS if vars(options).get(name)]
        show_problems([system_problem(error, [options.root, cache_folder(), *named])])
    except KeyboardInterrupt as stop:
        state = "nothing half-done was put in place"
        if (options.root / atomic.JOURNAL).is_dir():
            state = f"the queue's files are written in part; {to_type('check')} writes the rest"
        ERR.print(f"interrupted; {stop.args[0] if stop.args else state}")
        return 130
    return 1


def _refuse_unknown(parser: argparse.ArgumentParser, words: Sequence[str]) -> NoReturn:
    """Name the first unknown option, with a known one that is alike."""
    options = (word.partition("=")[0] for word in words if word.startswith("--"))
    if not (name := next(options, "").removeprefix("--")):
        parser.error(f"unrecognized arguments: {' '.join(words)}")
    known = [one.removeprefix("--") for action in parser._actions for one in action.option_strings]
    alike = [f"; did you mean --{each}?" for each in difflib.get_close_matches(name, known, 1)]
    parser.error(f"there is no option --{name}{''.join(alike)}")


def show_problems(problems: Sequence[Problem]) -> None:
    """Print problems; a next step that several in a row share, once."""
    problems = _grouped(problems)
    for problem, following in zip(problems, [*problems[1:], None]):
        shared = following is not None and following.hint == problem.hint
        said = str(replace(problem, hint="") if shared else problem)
        ERR.print(HUNK.sub(r"\1 \4\n    \2\n    \3", said))


def _grouped(problems: Iterable[Problem]) -> list[Problem]:
    """The problems; those that differ in the release alone are joined."""
    groups: dict[Problem, list[str]] = {}
    for problem in problems:
        file, on, tag = problem.where.rpartition(" on ")
        is_of_release = re.fullmatch(r"v\d\S*", tag)
        key = replace(problem, where=f"{file}{on}") if is_of_release else problem
        groups.setdefault(key, []).append(tag if is_of_release else "")
    joined = []
    for key, tags in groups.items():
        several = f"{len(tags)} releases, {tags[0]} to {tags[-1]}"
        behind = several if len(tags) > 1 and tags[0] else tags[0]
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
