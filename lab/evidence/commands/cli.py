"""The command line of the lab."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bundle import command as bundle
from patchqueue.commands import terminal

from . import gpu, pages

COMMANDS = (*gpu.COMMANDS, *pages.COMMANDS, *bundle.COMMANDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, with the exit codes of terminal.run."""
    return terminal.run(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    return terminal.parser(
        "Prove pinned sglang releases on GPUs, and report the results.", COMMANDS
    )
