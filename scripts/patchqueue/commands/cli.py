"""The command line: which commands there are, and what a user types behind each."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .. import RELEASE
from ..hint import PACKAGED, in_wheel
from . import (
    checking,
    entry,
    handover,
    install,
    publishing,
    rebase,
    testing,
    trees,
    upstream,
    wheels,
    writing,
)

EXAMPLES = {  # by command: what a user types behind it
    "apply": "v0.5.12.post1",
    "backport": "--onto ~/sglang --base v0.5.9 graphs-on-0.5.9",
    "build": "v0.5.12.post1 --python 3.12",
    "bundle": "v0.5.9",
    "check": "v0.5.9",
    "export": "--onto ~/sglang --base origin/main breakable",
    "index": f"dist/release-{RELEASE}",
    "install": "--site-packages /sgl-workspace/sglang/python",
    "new": "v0.5.9 nsa/skip-pointer-check",
    "patches": "v0.5.15.post1 --out sglang-0.5.15.post1.patch",
    "pin": "0.5.24",
    "quilt": "v0.5.9 add python/sglang/srt/server_args.py",
    "rebase": "0.5.24",
    "refresh": "v0.5.9",
    "release": "v0.5.9 v0.5.10.post1",
    "test": "v0.5.9 -k scan",
    "unapply": "v0.5.9",
    "uninstall": "--site-packages /sgl-workspace/sglang/python",
    "upstream-tests": "v0.5.16 --checkout ~/sglang",
}

# in the order of the help's list
MODULES = (
    *(trees, checking, testing, upstream, writing),
    *(wheels, publishing, handover, install, rebase),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, with the exit codes of entry.run."""
    return entry.run(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    parser = entry.parser("Lay the patch queue on pinned sglang releases.")
    if in_wheel():
        parser.set_defaults(root=PACKAGED)
        parser.epilog = "A clone of the queue has more commands: applying, testing, building."
    else:
        entry.add_root(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (install,) if in_wheel() else MODULES:
        module.add(commands)
    entry.finish(commands, EXAMPLES)
    return parser
