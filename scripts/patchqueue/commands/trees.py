"""The commands about releases' trees, and those that check and write files of the queue: apply,
unapply, quilt, check, test, refresh, pin."""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ..applying.apply import Report, apply, no_tree, unapply
from ..applying.check import CheckReport, check, write
from ..applying.refresh import refresh
from ..applying.worktree import State, WorkTree
from ..environments import testing
from ..environments.lock import compile_lock
from ..files.run import find_quilt
from ..outcome import Outcome, Refused, counted, to_type
from ..upstream import pins as pinning
from ..upstream.pins import Pin
from ..upstream.release import add_pin
from ..upstream.source import cache_folder
from . import terminal
from .terminal import (
    COLOURS,
    FROM,
    OUT,
    Command,
    chosen_releases,
    flag,
    option,
    relative,
    show_problems,
)

LOG = logging.getLogger(__name__)
SHOWN = 12  # digits of a tree's hash, as many as a server logs


def _apply(options: argparse.Namespace) -> int:
    chosen = chosen_releases(options, pinning.load(options.root))
    for pin in chosen:
        started = time.monotonic()
        report = apply(options.root, pin, options.origin, options.discard)
        seconds = time.monotonic() - started
        _show(report, options.root, seconds, len(chosen) == 1)
    if len(chosen) > 1:
        OUT.print(f"next: {to_type('build', chosen[0].tag)} makes the wheel of one")
    return 0


def _unapply(options: argparse.Namespace) -> int:
    for pin in chosen_releases(options, pinning.load(options.root)):
        again = unapply(options.root, pin).outcome is not Outcome.ALREADY_APPLIED
        state = "is pristine again" if again else "was pristine already"
        OUT.print(f"work/{pin.tag} {state}: tree {pin.tree}")
        OUT.print(f"next: {to_type('apply', pin.tag)} applies the queue again")
    return 0


def _quilt(options: argparse.Namespace) -> int:
    pin = pinning.load(options.root).find(options.release)
    tree = WorkTree(options.root, pin.tag)
    with tree.locked() as lock:
        if tree.inspect().state is State.ABSENT:
            raise no_tree(pin)
        words = options.arguments or ["--help"]
        return find_quilt(cache_folder()).run(tree.path, *words, lock=lock).returncode


def _show(report: Report, root: Path, seconds: float, whole: bool) -> None:
    """The tree in a line; whole: its contents, and what to type next."""
    record, path = report.record, relative(report.path, root)
    again = "already applied, " if report.outcome is Outcome.ALREADY_APPLIED else ""
    count = len(record["patches"]) - bool(record["overlay"])
    files = counted(len(record["overlay"]), "overlay file")
    OUT.print(f"{path}: {again}{counted(count, 'patch', 'patches')}, {files}, {seconds:.1f} s")
    if whole:
        OUT.print(f"from {record['source']['name']}\ntree {record['tree']['after']}")
        OUT.print(f"next: {to_type('build', report.pin.tag)} makes its wheel")


def _check(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    if options.write:
        for change in write(options.root, chosen_releases(options, pins, pins.all)):
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
    report = check(root, chosen)
    _show_releases(report)
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


def _test(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    is_tool_tested = options.tool or not (options.releases or options.expression)
    chosen = chosen_releases(options, pins, pins.tested or [pins.default])
    if options.tool and not options.releases:
        chosen = []
    if without := [pin for pin in chosen if not testing.has_environment(options.root, pin)]:
        what = f"no lock in upstream/locks/ is of {' '.join(pin.tag for pin in without)}"
        step = f"{to_type('pin', without[0].tag, '--lock')} makes one"
        raise Refused.of("no-environment", without[0].tag, what, step)
    names = [*(["the tool"] if is_tool_tested else []), *(pin.tag for pin in chosen)]
    OUT.print(f"to be tested: {', '.join(names)}")
    if is_tool_tested and not show_check(options.root, pins.all):
        return 1
    words = ["-k", options.expression] if options.expression else []
    # a second process for a few tests imports torch and sglang once more
    workers = 1 if words else min(os.cpu_count() or 1, testing.WORKERS)
    test, results = partial(testing.test_release, options.root), []
    with ThreadPoolExecutor(1) as meanwhile:  # the tool's tests leave half of two processors idle
        if is_tool_tested:
            runs = [meanwhile.submit(test, pin, words, workers, True).result for pin in chosen]
            _begin("the tool")
            if testing.test_tool(options.root, words):
                meanwhile.shutdown(cancel_futures=True)
                return 1
        else:
            runs = [partial(test, pin, words, workers) for pin in chosen]
        for pin, run in zip(chosen, runs):
            _begin(pin.tag)
            results.append((pin, *run()))
            OUT.file.write(results[-1][-1])
    for pin, code, is_edited, _ in results:
        said = Text(f"failed (pytest exit code {code})", "red") if code else Text("passed", "green")
        OUT.print(f"{pin.tag}:", said, "(the tree has edits of yours)" if is_edited else "")
    return 1 if any(code for _, code, *_ in results) else 0


def _begin(title: str) -> None:
    OUT.rule(title, align="left", style="dim")
    OUT.file.flush()  # pytest writes next


def _refresh(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    for pin in chosen_releases(options, pins):
        written, report = refresh(options.root, pins, pin, options.add)
        for file in written:
            OUT.print(f"{file.path}: {file.why}")
        if not written:
            is_made = report and report.outcome is Outcome.APPLIED
            anew = f"; work/{pin.tag} was made from it" if is_made else ""
            OUT.print(f"{pin.tag}: nothing to write, the queue holds it all{anew}")
        if report is None:
            what = "was written, but is not complete yet (see above)"
            step = f"fill in the header in patches/, then {to_type('refresh', pin.tag)} again"
            raise Refused.of("unfinished", "the queue", what, step)
    OUT.print(f"next: {to_type('check')} replays the queue on every release")
    return 0


def _pin(options: argparse.Namespace) -> int:
    if options.lock:
        pins = pinning.load(options.root)
        for pin in [pins.find(word) for word in options.words]:
            file, day = testing.lock_file(options.root, pin), pin.resolve_as_of
            LOG.info(f"resolving {pin.tag}'s environment as of {day} (about a minute)")
            compile_lock(str(pin.version), day, file)
            OUT.print(f"{relative(file, options.root)}: as of {day}")
            step = f"{to_type('test', pin.tag)} builds the environment and runs the tests in it"
            OUT.print(f"next: {step}")
        return 0
    for word in options.words:
        pinning.version(word)  # all of them before the first is fetched
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
        "apply",
        _apply,
        "apply the queue to a release, in work/RELEASE/",
        "v0.5.12.post1",
        (
            terminal.releases(),
            FROM,
            flag("--discard", "throw away edits of the work tree that no patch holds"),
        ),
    ),
    Command(
        "unapply",
        _unapply,
        "take every patch off work/RELEASE/ again, back to the pristine release",
        "v0.5.9",
        (terminal.releases(),),
    ),
    Command(
        "quilt",
        _quilt,
        "run quilt in work/RELEASE/; where none is installed, apt fetches one into the cache",
        "v0.5.9 add python/sglang/srt/server_args.py",
        (
            option("release RELEASE", "v0.5.9 or 0.5.9"),
            option(
                "arguments QUILT COMMAND …",
                "what quilt is to do, and its options",
                nargs=argparse.REMAINDER,
            ),
        ),
    ),
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
        "test",
        _test,
        "apply, build the release's environment, run tests/revision in it",
        "v0.5.9 -k scan",
        (
            terminal.releases("the tool, and the releases that upstream/pins.toml calls tested"),
            option("-k TEXT", "only the tests that pytest's -k selects", dest="expression"),
            flag(
                "--tool",
                "test the tool itself: check, and tests/queue; without a release nothing else",
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
        "pin",
        _pin,
        "add a release to upstream/pins.toml",
        "0.5.24",
        (
            option("words RELEASE", "a release that is not pinned yet, as 0.5.24", nargs="+"),
            (
                option(
                    "--from FOLDER",
                    "a folder that holds all wheels of the release",
                    dest="origin",
                    type=terminal.path,
                ),
                flag(
                    "--lock",
                    "of a pinned release: resolve its test environment as of its release day, anew",
                ),
            ),
        ),
    ),
)
