"""The command that checks the queue on every release."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..hint import counted, to_type
from ..laying.check import CheckReport, check, write
from ..laying.selection import Finding
from ..outcome import Outcome
from ..queue.header import NOT_NEEDED
from ..upstream import pins as pinning
from ..upstream.pins import Pin
from . import releases
from .entry import show_problems
from .releases import COLOURS, OUT, tell

SHOWN = 12  # digits of a tree's hash, as many as a server logs


def add(commands: Any) -> None:
    """Add this module's command to the parser's."""
    meant = "for a change that is meant"
    releases.command(
        commands,
        "check",
        _check,
        "lint the queue, and replay it in memory on each release",
        "every pinned release",
        "--from",
        write=f"write the trees that the queue makes now to upstream/pins.toml, {meant}",
        gaps="also list the patches that a release does not need, and why",
    )


def _check(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    chosen = releases.chosen(options, pins, pins.all)
    if options.write:
        for change in write(options.root, chosen, options.origin):
            tell(f"{change.path}: {change.why}")
        pins = pinning.load(options.root)
        chosen = releases.chosen(options, pins, pins.all)
    good = show(options.root, chosen, options.origin, options.gaps)
    if good:
        tell(
            f"next: {to_type('test', *(pin.tag for pin in chosen if options.words))} runs the tests"
        )
    return 0 if good else 1


def show(root: Path, chosen: Sequence[Pin], origin: str | None, gaps: bool) -> bool:
    """Check these releases, and print what was found; whether all is well."""
    started = time.monotonic()
    report = check(root, chosen, origin)
    _show_check(report, time.monotonic() - started, gaps)
    show_problems(report.all_problems)
    return not report.all_problems


def _show_check(report: CheckReport, seconds: float, with_needless: bool) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("revision", "replay"):
        table.add_column(name)
    for name in ("selected", "merged upstream", "not needed", "gaps"):
        table.add_column(name, justify="right")
    table.add_column("tree")
    for pin in report.pins:
        kinds = [finding.outcome for finding in pin.findings]
        gaps = sum(finding.is_gap for finding in pin.findings)
        counts = (
            len(pin.steps),
            kinds.count(Outcome.MERGED_UPSTREAM),
            kinds.count(Outcome.NOT_SELECTED) - gaps,
            gaps,
        )
        table.add_row(
            pin.pin.tag,
            Text(str(pin.outcome), COLOURS.get(pin.outcome, "red")),
            *map(str, counts),
            pin.tree[: len("sha256:") + SHOWN].removeprefix("sha256:"),
        )
    OUT.print(table)
    findings = [finding for pin in report.pins for finding in pin.findings]
    _show_gaps(
        "Gaps: releases that lack a change and do not get the patch",
        [found for found in findings if found.is_gap],
    )
    if with_needless:
        left_out = [
            found
            for found in findings
            if found.outcome is Outcome.NOT_SELECTED and not found.is_gap
        ]
        _show_gaps("Not needed: releases that do without a change", left_out)
    OUT.print(
        f"\n{counted(len(report.pins), 'release')}, {counted(len(report.all_problems), 'problem')},"
        f" {seconds:.1f} s"
    )


def _show_gaps(title: str, findings: Sequence[Finding]) -> None:
    """Each patch's gaps, joined by reason."""
    gaps: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        gaps.setdefault((finding.patch, finding.reason or "no reason given"), []).append(
            finding.pin.tag
        )
    if gaps:
        OUT.print(f"\n{title}", style="bold")
    for (patch, reason), tags in gaps.items():
        OUT.print(
            f"{patch.removesuffix('.patch')}:"
            f" {tags[0]}{f' … {tags[-1]} ({len(tags)})' if len(tags) > 1 else ''}"
        )
        OUT.print(Padding(Text(reason.removeprefix(NOT_NEEDED)), (0, 0, 0, 2), expand=False))
