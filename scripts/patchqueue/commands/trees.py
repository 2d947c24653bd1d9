"""The commands that lay the queue on a release in work/TAG/, and take it off."""

from __future__ import annotations

import argparse
import subprocess
import time
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ..hint import counted, to_type
from ..laying import quilt as quilts
from ..laying.apply import Report, apply, no_tree, unapply
from ..laying.worktree import State, WorkTree
from ..outcome import Outcome
from ..upstream import pins as pinning
from ..upstream.source import cache_folder
from . import idle, paths, releases
from .releases import COLOURS, OUT, relative, tell


def add(commands: Any) -> None:
    """Add this module's commands to the parser's."""
    made = releases.command(
        commands,
        "apply",
        _apply,
        "lay the queue on a release, in work/TAG/",
        paths.DEFAULT,
        "--all --from",
        discard="throw away edits of the work tree that no patch holds",
        verbose="list all patches of the queue, say why one is not for the release, and what the"
        " release hashed to",
    )
    text = "lay it on this tree: a checkout or folder with the release and edits of others"
    made.add_argument("--base", type=paths.path, metavar="PATH", help=text)
    text = "take every patch off work/TAG/ again, back to the pristine release"
    releases.command(commands, "unapply", _unapply, text, paths.DEFAULT, "--all")
    text = "run quilt in work/TAG/, with the quilt that apply uses"
    own = commands.add_parser("quilt", help=text)
    own.set_defaults(run=_quilt)
    own.add_argument("revision", metavar="VERSION", help="v0.5.9 or 0.5.9")
    own.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="QUILT COMMAND …",
        help="what quilt is to do, and its options",
    )


def _apply(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    chosen = releases.chosen(options, pins, [pins.default])
    if options.base:
        idle.refuse(options, "with --base, which is one tree", "--all", "--from")
    for pin in chosen:
        started = time.monotonic()
        report = apply(options.root, pin, options.origin, options.discard, options.base)
        seconds = time.monotonic() - started
        if options.verbose:
            _show_rows(report)
        elif len(chosen) == 1:
            _show_left_out(report)
        if len(chosen) == 1 or options.verbose:
            _show_apply(report, options.root, seconds, options.verbose)
        else:
            _show_summary(report, options.root, seconds)
    if len(chosen) > 1:
        OUT.print(
            f"next: {to_type('build', (chosen[0] if options.words else pins.default).tag)} makes"
            " the wheel of one"
        )
    return 0


def _unapply(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    for pin in releases.chosen(options, pins, [pins.default]):
        report = unapply(options.root, pin)
        done = (
            "was pristine already"
            if report.outcome is Outcome.ALREADY_APPLIED
            else "is pristine again"
        )
        tell(f"work/{pin.tag} {done}: tree {pin.tree}")
        OUT.print(f"next: {to_type('apply', pin.tag)} lays the queue on it again")
    return 0


def _quilt(options: argparse.Namespace) -> int:
    pin = pinning.load(options.root).find(options.revision)
    tree = WorkTree(options.root, pin.tag)
    with tree.locked() as lock:
        if tree.inspect().state is State.ABSENT:
            raise no_tree(pin)
        engine = quilts.find(cache_folder())
        return subprocess.run(
            [engine.command, *(options.arguments or ["--help"])],
            cwd=tree.path,
            env=engine.environment(),
            pass_fds=(*engine.opened, lock),
        ).returncode


def _show_rows(report: Report) -> None:
    """Every patch of the queue, and what became of it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("patch", "outcome", "why"):
        table.add_column(name, no_wrap=name != "why", overflow="fold")
    for row in report.rows:
        table.add_row(
            row.patch.removesuffix(".patch"),
            Text(str(row.outcome), COLOURS.get(row.outcome, "red")),
            row.why,
        )
    OUT.print(table)


def _show_left_out(report: Report) -> None:
    """How many patches are not for the release."""
    applied = (Outcome.APPLIED, Outcome.ALREADY_APPLIED)
    kinds = [row.outcome for row in report.rows if row.outcome not in applied]
    if kinds:
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        OUT.print(f"not for {report.pin.tag}: {counts} (--verbose lists all patches)")


def _show_apply(report: Report, root: Path, seconds: float, whole: bool) -> None:
    """What the tree is made of, and what to type next. whole: the untouched tree's hash too."""
    if report.outcome is Outcome.EMPTY:
        OUT.print(f"No patch is for {report.pin.tag}: {report.pin.no_patches}.", style="yellow")
    _show_summary(report, root, seconds)
    record = report.record
    tell(f"from {record['source']['name']}")
    if whole:
        tell(f"release {report.pin.tree}")
    tell(f"tree {record['tree']['after']}")
    if "edits" in record:
        edited = sum(map(len, record["edits"].values()))
        tell(f"edits of others in {counted(edited, 'file')}")
        for name in record["there"]:
            tell(f"{name.removesuffix('.patch')}: that tree has the change already")
        OUT.print(
            f"next: {to_type('patches', report.pin.tag, '--base PATH')} writes it as one file"
        )
        return
    OUT.print(f"next: {to_type('build', report.pin.tag)} makes its wheel")


def _show_summary(report: Report, root: Path, seconds: float) -> None:
    record = report.record
    again = "already applied, " if report.outcome is Outcome.ALREADY_APPLIED else ""
    counts = (
        f"{len(record['patches']) - bool(record['overlay'])} of {len(report.rows)} patches,"
        f" {counted(len(record['overlay']), 'overlay file')}"
    )
    tell(f"{relative(report.path, root)}: {again}{counts}, {seconds:.1f} s")
