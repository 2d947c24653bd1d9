"""The command line: its words and the exit codes. The other modules here are hooked in."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bundle import command as bundle
from patchqueue.commands import entry

from . import gpu, matrix, pages

EXAMPLES = {  # by command: what a user types behind it
    "bench": "v0.5.9",
    "bundle": "v0.5.9",
    "gpu": "v0.5.9 --model llama",
    "matrix": "--stale --gpu H200",
    "status": "--merge results",
    "sweep": "v0.5.9",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, with the exit codes of entry.run."""
    return entry.run(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    parser = entry.parser("Prove pinned sglang releases on GPUs, and tell what was found.")
    entry.add_root(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    gpu.add(commands)
    matrix.add(commands)
    pages.add(commands)
    bundle.add(commands)
    entry.finish(commands, EXAMPLES)
    return parser
