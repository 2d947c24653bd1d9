"""The commands that check and write files of the queue: check, refresh, new, pin."""

from __future__ import annotations

import argparse
import logging
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..applying.check import CheckReport, check, write
from ..applying.refresh import new, refresh
from ..applying.selection import Finding
from ..environments.lock import compile_lock
from ..environments.testing import lock_file
from ..hint import counted, to_type
from ..outcome import Outcome, Refused
from ..upstream import pins as pinning
from ..upstream.pins import Pin
from ..upstream.release import add_pin, named_version
from . import terminal
from .terminal import COLOURS, OUT, Command, chosen_releases, flag, option, relative, show_problems

LOG = logging.getLogger(__name__)
SHOWN = 12  # digits of a tree's hash, as many as a server logs


def _check(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    if options.write:
        for change in write(options.root, chosen_releases(options, pins, pins.all), None):
            OUT.print(f"{change.path}: {change.why}")
        pins = pinning.load(options.root)
    chosen = chosen_releases(options, pins, pins.all)
    good = show_check(options.root, chosen)
    if good:
        tags = (pin.tag for pin in chosen if options.releases)
        OUT.print(f"next: {to_type('test', *tags)} runs the tests")
    return 0 if good else 1


def show_check(root: Path, chosen: Sequence[Pin]) -> bool:
    """Check these releases, and print the report; whether there is no problem."""
    started = time.monotonic()
    report = check(root, chosen, None)
    _show_releases(report)
    _show_gaps([each for pin in report.pins for each in pin.findings if each.is_gap])
    OUT.print(
        f"\n{counted(len(report.pins), 'release')}, {counted(len(report.all_problems), 'problem')},"
        f" {time.monotonic() - started:.1f} s"
    )
    show_problems(report.all_problems)
    return not report.all_problems


def _show_releases(report: CheckReport) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("release", "replay"):
        table.add_column(name)
    for name in ("selected", "merged upstream", "not needed", "gaps"):
        table.add_column(name, justify="right")
    table.add_column("tree")
    for pin in report.pins:
        kinds = [finding.outcome for finding in pin.findings]
        gaps = sum(finding.is_gap for finding in pin.findings)
        not_needed = kinds.count(Outcome.NOT_SELECTED) - gaps
        table.add_row(
            pin.pin.tag,
            Text(str(pin.outcome), COLOURS.get(pin.outcome, "red")),
            *map(str, (len(pin.steps), kinds.count(Outcome.MERGED_UPSTREAM), not_needed, gaps)),
            pin.tree.removeprefix("sha256:")[:SHOWN],
        )
    OUT.print(table, soft_wrap=False)


def _show_gaps(findings: Sequence[Finding]) -> None:
    """The gaps of each patch, one entry for each reason."""
    gaps: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        gaps.setdefault((finding.patch, finding.why), []).append(finding.pin.tag)
    if gaps:
        title = "Gaps: releases that lack a change and do not get the patch"
        OUT.print(f"\n{title}", style="bold")
    for (patch, reason), tags in gaps.items():
        more = f" … {tags[-1]} ({len(tags)})" if len(tags) > 1 else ""
        OUT.print(f"{patch.removesuffix('.patch')}: {tags[0]}{more}")
        OUT.print(Padding(Text(reason), (0, 0, 0, 2), expand=False), soft_wrap=False)


def _refresh(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    for pin in chosen_releases(options, pins):
        written, report = refresh(options.root, pins, pin, options.add)
        for file in written:
            OUT.print(f"{file.path}: {file.why}")
        if not written:
            OUT.print(f"{pin.tag}: nothing to write, the queue holds it all")
        if report is None:
            what = "was written, but is not complete yet (see above)"
            step = f"fill in the header in patches/, then {to_type('refresh', pin.tag)} again"
            raise Refused.of("unfinished", "the queue", what, step)
    OUT.print(f"next: {to_type('check')} replays the queue on every release")
    return 0


def _new(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    names = [word for word in options.words if "/" in word]
    if len(names) != 1 or len(options.words) > 2:
        what = "takes one name with a slash, and at most one release"
        raise Refused.of("bad-words", "new", what, to_type("new", "v0.5.9 topic/verb-object"))
    options.releases = [word for word in options.words if "/" not in word]
    (pin,) = chosen_releases(options, pins)
    file = new(options.root, pin, names[0])
    OUT.print(f"{relative(file, options.root)} is the top patch now")
    quilt = "`quilt" if shutil.which("quilt") else to_type("quilt", pin.tag)[:-1]
    OUT.print(f"In work/{pin.tag}: {quilt} add python/sglang/…` before you edit a file.")
    OUT.print(f"next: {to_type('refresh', pin.tag)} then writes it to patches/ and series")
    return 0


def _pin(options: argparse.Namespace) -> int:
    if not options.words:
        raise Refused.of("bad-words", "pin", "which release?", to_type("pin", "0.5.24"))
    if options.lock:
        terminal.refuse_ineffective(options, "with --lock, which reads no wheel", "--from")
        pins = pinning.load(options.root)
        for pin in [pins.find(word) for word in options.words]:
            file, day = lock_file(options.root, pin), pin.resolve_as_of
            LOG.info(f"resolving {pin.tag}'s environment as of {day} (about a minute)")
            compile_lock(str(pin.version), day, file)
            OUT.print(f"{relative(file, options.root)}: as of {day}")
            step = f"{to_type('test', pin.tag)} builds the environment and runs the tests in it"
            OUT.print(f"next: {step}")
        return 0
    for word in options.words:
        named_version(word)  # all of them before the first is fetched
    for word in options.words:
        pin = add_pin(options.root, word, options.origin)
        OUT.print(
            f"{pin.tag}: {counted(len(pin.wheels), 'wheel')} with one tree {pin.tree}, released"
            f" {pin.released}"
        )
        OUT.print(f"next: {to_type('rebase', pin.version)} carries the queue to it")
    return 0


COMMANDS = (
    Command(
        "check",
        _check,
        "lint the queue, and replay it in memory on each release",
        "v0.5.9",
        (
            terminal.releases("every pinned release"),
            flag(
                "--write",
                "write the trees that the queue makes now to upstream/pins.toml, for a change that"
                " is meant",
            ),
        ),
    ),
    Command(
        "refresh",
        _refresh,
        "write the edits of work/RELEASE/ back to patches/, series and overlay/",
        "v0.5.9",
        (
            terminal.releases(),
            flag("--add", "put edits of files that are in no patch into the top one"),
        ),
    ),
    Command(
        "new",
        _new,
        "start an empty patch on top of work/RELEASE/; name it topic/verb-object",
        "v0.5.9 nsa/skip-pointer-check",
        (
            option(
                "words WORD",
                "the patch's name, as nsa/skip-pointer-check; before it a release, where the"
                " default is not meant",
                nargs="*",
            ),
        ),
    ),
    Command(
        "pin",
        _pin,
        "add a release to upstream/pins.toml",
        "0.5.24",
        (
            option("words RELEASE", "a release that is not pinned yet, as 0.5.24", nargs="*"),
            option(
                "--from FOLDER",
                "a folder that holds all wheels of the release",
                dest="origin",
                type=terminal.place,
            ),
            flag(
                "--lock",
                "of a pinned release: resolve its test environment as of its release day, anew",
            ),
        ),
    ),
)
