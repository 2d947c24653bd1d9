"""What the commands about releases share: their words, which ones are meant, and how they tell."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ..outcome import Outcome, Refused
from ..upstream.pins import Pin, Pins
from . import paths

WORDS = {  # by command: what its words are, where they are not releases that are pinned
    "new": (
        "WORD",
        (
            "the patch's name, as nsa/skip-pointer-check; before it a release, where the default is"
            " not meant"
        ),
    ),
    "pin": ("VERSION", "a release that is not pinned yet, as 0.5.24"),
}
COLOURS = {
    Outcome.APPLIED: "green",
    Outcome.ALREADY_APPLIED: "green",
    Outcome.MERGED_UPSTREAM: "cyan",
    Outcome.NOT_SELECTED: "dim",
    Outcome.EMPTY: "yellow",
}
# text of the queue may hold [brackets]
OUT = Console(highlight=False, soft_wrap=False, markup=False)


def command(
    commands: Any, name: str, run: Any, text: str, default: str, takes: str = "", **flags: str
) -> argparse.ArgumentParser:
    """A command about releases. takes: which of --all and --from; flags: name -> help."""
    added: argparse.ArgumentParser = commands.add_parser(name, help=text)
    added.set_defaults(run=run)
    metavar, meant = WORDS.get(name, ("VERSION", "v0.5.9 or 0.5.9"))
    told = f"{meant} (default: {default})" if default else meant
    added.add_argument("words", nargs="*", metavar=metavar, help=told)
    if "--all" in takes:
        added.add_argument("--all", action="store_true", help="every pinned release")
    if "--from" in takes:
        paths.add_origin(added)
    for flag, meaning in flags.items():
        added.add_argument(f"--{flag}", action="store_true", help=meaning)
    return added


def chosen(options: argparse.Namespace, pins: Pins, default: Sequence[Pin]) -> list[Pin]:
    every = getattr(options, "all", False)
    if every and options.words:
        step = f"name {options.words[0]} alone, or --all alone"
        raise Refused.of(
            "bad-words", "--all", f"means every release, {options.words[0]} means one", step
        )
    if every:
        return list(pins.all)
    return [pins.find(name) for name in options.words] or list(default)


def python(text: str) -> str:
    """A version of Python, as an argparse type."""
    if not re.fullmatch(r"3\.\d+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no version of Python such as 3.12")
    return text


def machine(text: str) -> str:
    """As platform.machine() names it on Linux, whatever others call it."""
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(text.lower(), text)


def relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def tell(text: str) -> None:
    """Print a line of any length as it is."""
    OUT.print(text, soft_wrap=True)
