"""The command line: the only module that prints and chooses exit codes."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import pins as pinning
from .apply import Report, apply, unapply
from .check import CheckReport, check
from .outcome import Outcome, Problem, Refused
from .pins import Pin, Pins

COLOURS = {Outcome.APPLIED: "green", Outcome.ALREADY_APPLIED: "green", Outcome.MERGED_UPSTREAM: "cyan", Outcome.NOT_SELECTED: "dim", Outcome.EMPTY: "yellow"}
OUT = Console(highlight=False, soft_wrap=False)
ERR = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 refused or problems found, 2 wrong words."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except Refused as refusal:
        _show_problems(refusal.problems)
        return 1
    except KeyboardInterrupt:
        ERR.print("interrupted; nothing half-done was put in place")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="patchqueue", description="Lay the patch queue on pinned sglang releases.")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the project's folder (default: this one)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run, text: str, revisions: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        added.add_argument("revisions", nargs="*", metavar="REVISION", help=f"v0.5.9 or 0.5.9 (default: {revisions})")
        added.add_argument("--all", action="store_true", help="every pinned revision")
        added.add_argument("--from", dest="origin", metavar="PATH|URL", help="take the release from this wheel, folder of wheels, or git repository")
        added.add_argument("--discard", action="store_true", help="throw away edits in the work tree that no patch holds")
        return added

    command("apply", _apply, "make work/TAG/: the release with its patches and overlay files", "the default pin")
    command("unapply", _unapply, "take every patch off work/TAG/ again, back to the pristine release", "the default pin")
    command("check", _check, "lint the queue and replay it in memory on each revision", "every pin")
    return parser


def _chosen(options: argparse.Namespace, pins: Pins, default: Sequence[Pin]) -> list[Pin]:
    if options.all:
        return list(pins.all)
    return [pins.find(name) for name in options.revisions] or list(default)


def _apply(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    for pin in _chosen(options, pins, [pins.default]):
        started = time.monotonic()
        report = apply(options.root, pin, options.origin, _say, options.discard)
        _show_apply(report, options.root, time.monotonic() - started)
    return 0


def _unapply(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    for pin in _chosen(options, pins, [pins.default]):
        report = unapply(options.root, pin, _say)
        done = "was pristine already" if report.outcome is Outcome.ALREADY_APPLIED else "is pristine again"
        OUT.print(f"work/{pin.tag} {done}: tree {report.record['tree']['before']}")
    return 0


def _check(options: argparse.Namespace) -> int:
    started = time.monotonic()
    pins = pinning.load(options.root)
    report = check(options.root, _chosen(options, pins, pins.all), options.origin, _say)
    _show_check(report, time.monotonic() - started)
    _show_problems(report.all_problems)
    return 1 if report.all_problems else 0


def _show_apply(report: Report, root: Path, seconds: float) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("patch", "outcome", "why"):
        table.add_column(name, no_wrap=name == "outcome", overflow="fold")
    for step in report.steps:
        table.add_row(step.patch.removesuffix(".patch"), Text(str(step.outcome), COLOURS.get(step.outcome, "red")), report.reasons[step.patch])
    OUT.print(table)
    if report.outcome is Outcome.EMPTY:
        OUT.print(f"[yellow]No patch is for {report.pin.tag}[/]: {report.pin.no_patches}.")
    count = sum(step.outcome is not Outcome.NOT_SELECTED for step in report.steps)
    record = report.record
    OUT.print(f"{_relative(report.path, root)}: {record['version']} from {record['source']['name']}, {count} of {len(report.steps)} patches {report.outcome}, {len(record['overlay'])} overlay files, {seconds:.1f} s")
    OUT.print(f"tree {record['tree']['before']} before\n     {record['tree']['after']} after", soft_wrap=True)


def _show_check(report: CheckReport, seconds: float) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("revision", "replay", "selected", "merged upstream", "gaps"):
        table.add_column(name, justify="right" if name in ("selected", "merged upstream", "gaps") else "left")
    for pin in report.pins:
        kinds = [finding.outcome for finding in pin.findings]
        counts = [str(len(pin.steps)), str(kinds.count(Outcome.MERGED_UPSTREAM)), str(kinds.count(Outcome.NOT_SELECTED))]
        table.add_row(pin.pin.tag, Text(str(pin.outcome), COLOURS.get(pin.outcome, "red")), *counts)
    OUT.print(table)
    _show_gaps(report)
    OUT.print(f"{len(report.pins)} revisions, {len(report.all_problems)} problems, {seconds:.1f} s")


def _show_gaps(report: CheckReport) -> None:
    """Each patch's gaps, joined by reason: where the change is missing and the queue does not bring it."""
    gaps: dict[tuple[str, str], list[str]] = {}
    for pin in report.pins:
        for finding in pin.findings:
            if finding.outcome is Outcome.NOT_SELECTED:
                gaps.setdefault((finding.patch, finding.reason or "no reason given"), []).append(pin.pin.tag)
    if gaps:
        OUT.print("\nGaps: releases that lack a change and do not get the patch", style="bold")
    for (patch, reason), tags in gaps.items():
        OUT.print(f"{patch.removesuffix('.patch')}: {tags[0]}{f' … {tags[-1]} ({len(tags)})' if len(tags) > 1 else ''}")
        OUT.print(Text(f"  {reason}"))
    if gaps:
        OUT.print()


def _show_problems(problems: Sequence[Problem]) -> None:
    for problem in problems:
        ERR.print(str(problem))
        if os.environ.get("GITHUB_ACTIONS") == "true":
            print(problem.as_github())


def _say(text: str) -> None:
    ERR.print(text, style="dim")


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
