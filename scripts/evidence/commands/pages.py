"""The commands that make pages: the support matrix, and what the tool promises."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from patchqueue.commands import idle, paths
from patchqueue.commands.entry import OUT
from patchqueue.hint import counted, to_type
from patchqueue.upstream import pins as pinning
from patchqueue.upstream.pins import Pins

from .. import front, merge, questions
from ..measure import queue
from ..pages import figures, status
from ..plots import front as front_plot


def add(commands: Any) -> None:
    """Add this module's commands to the parser's."""
    shown = commands.add_parser(
        "status",
        help=(
            f"make the support matrix in {status.PAGE}, and the list by release in {status.PATCHES}"
        ),
    )
    shown.set_defaults(run=_status)
    shown.add_argument(
        "--merge",
        type=paths.path,
        metavar="DIR",
        help=(
            f"first check every {merge.RESULT} below DIR, and what {questions.FILE} names, as"
            " --take does; keep the best run of each model and mode"
        ),
    )
    shown.add_argument(
        "--plot",
        action="store_true",
        help="draw the front page's picture too, from evidence/",
    )
    drawn = commands.add_parser("figures", help="measure the tool on this machine")
    drawn.set_defaults(run=_figures)
    queue.add_arguments(drawn)
    drawn.add_argument(
        "--page",
        action="store_true",
        help=f"measure nothing; make {figures.PAGE} and its plots from evidence/",
    )


def _status(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    gathered = _gathered(options.root, pins, options.merge) if options.merge else []
    changed = status.write(options.root, pins)
    if options.plot:
        drawn = front_plot.draw(front.measured(options.root), options.root)
        OUT.print(
            " and ".join(str(file.relative_to(options.root)) for file in drawn) + " drawn"
            if drawn
            else "no picture: matplotlib is not installed"
        )
    OUT.print(status.tables(options.root, pins), end="")
    OUT.print(
        f"{' and '.join(map(str, changed))} rewritten"
        if changed
        else f"{status.PAGE} and {status.PATCHES} said so already"
    )
    for one in gathered:
        taken = one.kept if one.fate is merge.Fate.TAKEN else None
        where = f" into {taken.relative_to(options.root)}" if taken else ""
        OUT.print(f"{one.file}: {one.fate}{where}: {one.why}")
    if gathered:
        fates = [one.fate for one in gathered]
        OUT.print(
            f"{counted(len(fates), 'result')}: "
            + ", ".join(f"{fates.count(fate)} {fate}" for fate in merge.Fate if fate in fates)
        )
    OUT.print(f"next: {to_type('matrix', '--stale')} says what is left to run")
    return 1 if any(one.fate is merge.Fate.REFUSED for one in gathered) else 0


def _gathered(root: Path, pins: Pins, folder: Path) -> list[merge.Gathered]:
    """What became of all results below a folder."""
    answers = questions.gather(root, pins, folder)
    if answers and not any(folder.rglob(merge.RESULT)):
        return answers
    return [*merge.merge(root, pins, folder), *answers]


def _figures(options: argparse.Namespace) -> int:
    if not options.page:
        return queue.measure(options)
    idle.refuse(options, "with --page, which measures nothing", "--pin", "--kills", "--out")
    drawn = figures.write(options.root)
    OUT.print(
        f"{figures.PAGE} written; "
        + (
            ", ".join(str(file.relative_to(options.root)) for file in drawn) + " drawn"
            if drawn
            else "no plot: matplotlib is not installed, or nothing was measured"
        )
    )
    OUT.print(f"next: `git diff {figures.PAGE}` shows what is new on it")
    return 0
