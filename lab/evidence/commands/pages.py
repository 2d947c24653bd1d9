"""The command `status`: the support matrix, the benchmark, and the front page's picture."""

from __future__ import annotations

import argparse

from patchqueue.commands import terminal
from patchqueue.commands.terminal import OUT, Command, flag, option
from patchqueue.hint import to_type
from patchqueue.upstream import pins as pinning

from .. import front, incoming, picture, results
from ..pages import bench, status
from .gpu import report


def _status(options: argparse.Namespace) -> int:
    root, code, given = options.root, 0, options.merge
    pins = pinning.load(root)
    if given:
        files = [given] if given.is_file() else incoming.found(root, given)
        code = report(incoming.take(root, pins, files))
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
    OUT.print(f"next: {to_type('gpu', '--plan --stale')} says what is left to run")
    return code


COMMANDS = (
    Command(
        "status",
        _status,
        f"make the support matrix in {status.PAGE}, and {bench.PAGE}",
        "--merge results",
        (
            option(
                "--merge",
                type=terminal.path,
                metavar="PATH",
                help="first add this result, or every result below this folder, to evidence/;"
                " one about another tree than today's is refused",
            ),
            flag("--plot", "draw the front page's picture too, from evidence/"),
        ),
    ),
)
