"""The command line of the tool: its commands, in the order of the help's list."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..outcome import PACKAGED, in_wheel
from . import handover, install, rebase, terminal, trees
from .terminal import Command

COMMANDS: tuple[Command, ...] = (
    *trees.COMMANDS,
    *handover.COMMANDS,
    *install.COMMANDS,
    *rebase.COMMANDS,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, with the exit codes of terminal.run."""
    return terminal.run(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    packaged = in_wheel()
    parser = terminal.parser(
        "Apply the patch queue to pinned sglang releases.",
        install.COMMANDS if packaged else COMMANDS,
        PACKAGED if packaged else None,
    )
    if packaged:
        parser.epilog = "A clone of the queue has more commands: applying, testing, building."
    return parser
