"""The command that makes pages: the support matrix, the benchmark, and the front page's picture."""

from __future__ import annotations

import argparse
from typing import Any

from patchqueue.commands import paths
from patchqueue.commands.entry import OUT
from patchqueue.hint import to_type
from patchqueue.upstream import pins as pinning

from .. import front, incoming, picture, results
from ..pages import bench, status
from .gpu import report


def add(commands: Any) -> None:
    """Add this module's command to the parser's."""
    shown = commands.add_parser(
        "status",
        help=(
            f"make the support matrix in {status.PAGE}, the list by release in {status.PATCHES},"
            f" and {bench.PAGE}"
        ),
    )
    shown.set_defaults(run=_status)
    shown.add_argument(
        "--merge",
        type=paths.path,
        metavar="DIR",
        help="first add every result below DIR to evidence/, as --take does",
    )
    shown.add_argument(
        "--plot",
        action="store_true",
        help="draw the front page's picture too, from evidence/",
    )


def _status(options: argparse.Namespace) -> int:
    root, code = options.root, 0
    pins = pinning.load(root)
    if options.merge:
        code = report(incoming.take(root, pins, incoming.found(root, options.merge)))
    changed = [*status.write(root, pins), *bench.write(root)]
    OUT.print(status.tables(root, pins), end="")
    if options.plot:
        drawn = picture.draw(front.measured(results.load(root)), root)
        changed += [file.relative_to(root) for file in drawn]
        if not drawn:
            OUT.print("no picture: matplotlib is not installed")
    OUT.print(
        f"{' and '.join(map(str, changed))} rewritten" if changed else "the pages said so already"
    )
    OUT.print(f"next: {to_type('matrix', '--stale')} says what is left to run")
    return code
