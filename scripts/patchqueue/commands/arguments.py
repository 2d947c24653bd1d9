"""The arguments of commands: the row of a command in the table, and the types of its arguments.

A path is relative to the folder in which the user typed the command. nox changes into the queue's
folder before it runs the tool, and noxfile.py passes the user's folder in PATCHQUEUE_CALLED_FROM.
Without that variable the process's own folder counts.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..hint import to_type
from ..outcome import Refused
from ..queue.header import PROFILES
from ..upstream.pins import Pin, Pins

LOG = logging.getLogger(__name__)
CALLED_FROM = "PATCHQUEUE_CALLED_FROM"
DEFAULT = "the one that upstream/pins.toml calls default"
# git's rule: a colon before the first slash makes an address, https://… or host:path
ADDRESS = re.compile(r"[^/]*:")


@dataclass(frozen=True)
class Argument:
    """Names and options of one argument, as argparse takes them."""

    names: tuple[str, ...]
    options: dict[str, Any]


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
            group = parser if isinstance(each, Argument) else parser.add_mutually_exclusive_group()
            for argument in (each,) if isinstance(each, Argument) else each:
                group.add_argument(*argument.names, **argument.options)


def option(*names: str, help: str, **options: Any) -> Argument:
    """An argument that takes a value."""
    return Argument(names, {"help": help, **options})


def flag(name: str, help: str, **options: Any) -> Argument:
    """An option without a value."""
    return Argument((name,), {"help": help, "action": "store_true", **options})


def releases(default: str = DEFAULT) -> Argument:
    """The pinned releases that a command is for."""
    text = f"v0.5.9 or 0.5.9 (default: {default})"
    return option("releases", nargs="*", metavar="RELEASE", help=text)


def chosen_releases(
    options: argparse.Namespace, pins: Pins, default: Sequence[Pin] = ()
) -> list[Pin]:
    """The releases that are named; else `default`, or the default release, which is then logged.
    Raises Refused for a release that is not pinned."""
    if options.releases or default:
        return [pins.find(name) for name in options.releases] or list(default)
    LOG.info(f"no release is named: {pins.default.tag}, the default in upstream/pins.toml")
    return [pins.default]


def refuse_ineffective(options: argparse.Namespace, beside: str, *names: str) -> None:
    """Raise Refused for each of the options `names` that is given. beside: the reason why they have
    no effect, as `with --take, which runs nothing`."""
    command = options.parser.prog.rpartition(" ")[2]
    for name in names:
        dest = options.parser._option_string_actions[name].dest
        if getattr(options, dest) != options.parser.get_default(dest):
            step = f"leave {name} out; {to_type(command, '--help')} says what each option does"
            raise Refused.of("bad-words", name, f"does nothing {beside}", step)


def path(text: str) -> Path:
    """A file or folder."""
    folder, typed = os.environ.get(CALLED_FROM) or ".", Path(os.path.expanduser(text))
    return typed if _is_here(folder) else Path(_without_dots(os.path.join(folder, typed)))


def file(text: str) -> Path:
    """A file to write; `-` is standard output."""
    return Path("/dev/stdout") if text == "-" else path(text)


def place(text: str) -> str:
    """A file or folder, or the unchanged address of a git repository."""
    typed = path(text)
    return text if not text or (ADDRESS.match(text) and not typed.exists()) else str(typed)


def release(text: str) -> str:
    """A wheel or a checkout; else a version, unchanged."""
    typed = path(text)
    return str(typed) if "/" in text or text.endswith(".whl") or typed.is_dir() else text


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
    "--from",
    dest="origin",
    type=place,
    metavar="PATH|URL",
    help="take the release from this wheel, folder of wheels, or git repository with its tag",
)


ONLY = option(
    "--only",
    choices=PROFILES,
    default="",
    metavar="PROFILE",
    help="apply the patches of one profile alone: `fixes` (no new graph), `rl`"
    " (sleep, weight updates, routed experts) or `speed` (graphs, kernels, and their fixes)",
)


WITHOUT = option(
    "--without",
    action="append",
    default=[],
    metavar="PATCH",
    help="leave this patch out, as prefill-graph/log-tree, with the files that it alone needs",
)


def shown(written: Path) -> str:
    """A path below the tool's own folder, as the user can type it."""
    return str(written if _is_here(os.environ.get(CALLED_FROM) or ".") else Path.cwd() / written)


def relative(path: Path, root: Path) -> str:
    """The path below `root`; a path elsewhere is unchanged."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _is_here(folder: str) -> bool:
    return os.path.realpath(folder) == os.path.realpath(".")


def _without_dots(name: str) -> str:
    """The shorter name of the same file: behind a link, `..` is not the folder before it."""
    plain = os.path.normpath(name)
    return plain if os.path.realpath(plain) == os.path.realpath(name) else name
