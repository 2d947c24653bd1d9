"""The command line: the only package that prints and chooses exit codes.

Modules, low to high; none imports from its own floor or a higher one:
terminal · handover install trees
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..outcome import PACKAGED, in_wheel
from . import handover, install, terminal, trees

# in the order of the help's list
COMMANDS = (*trees.COMMANDS, install.BUILD, *handover.COMMANDS, *install.COMMANDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, with the exit codes of terminal.run."""
    return terminal.run(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    commands, root = (install.COMMANDS, PACKAGED) if in_wheel() else (COMMANDS, None)
    parser = terminal.parser("Apply the patch queue to pinned sglang releases.", commands, root)
    if root:
        parser.epilog = "A clone of the queue has more commands: applying, testing, building."
    return parser
