"""The command line: its words, the commands about queue and work trees, and the exit codes. The
other modules here are hooked in."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..environments.environment import SIZE
from ..environments.lock import compile_lock
from ..environments.testing import (
    Result,
    build_environment,
    has_environment,
    is_built,
    lock_file,
    matplotlib_folder,
    prepare,
    share,
    test_revision,
    test_tool,
)
from ..hint import PACKAGED, counted, in_wheel, to_type
from ..laying import pinned
from ..laying import quilt as quilts
from ..laying.apply import Report, apply, no_tree, unapply
from ..laying.check import CheckReport, check
from ..laying.probe import Finding
from ..laying.refresh import new, refresh
from ..laying.worktree import State, WorkTree
from ..outcome import Outcome, Problem, Refused
from ..queue.header import NOT_NEEDED, documentation
from ..upstream import pins as pinning
from ..upstream.pin import add as add_pin
from ..upstream.pin import version_of
from ..upstream.pins import Pin, Pins
from ..upstream.source import cache_folder
from . import entry, handover, install, paths, rebase, wheels
from .entry import show_problems

LOG = logging.getLogger(__name__)

EXAMPLES = {  # by command: what a user types behind it
    "apply": "v0.5.12.post1",
    "backport": "--onto ~/sglang --base v0.5.9 graphs-on-0.5.9",
    "build": "v0.5.12.post1 --python 3.12",
    "bundle": "v0.5.9",
    "check": "v0.5.9",
    "install": "--site-packages /sgl-workspace/sglang/python",
    "lock": "v0.5.9",
    "new": "v0.5.9 nsa/skip-pointer-check",
    "pin": "0.5.24",
    "quilt": "v0.5.9 add python/sglang/srt/server_args.py",
    "rebase": "0.5.24",
    "refresh": "v0.5.9",
    "test": "v0.5.9 -k scan",
    "unapply": "v0.5.9",
    "uninstall": "--site-packages /sgl-workspace/sglang/python",
}
WORDS = {  # by command: what its words are, where they are not releases that are pinned
    "new": (
        "WORD",
        (
            "the patch's name, as nsa/skip-pointer-check; before it a release, where the default is"
            " not meant"
        ),
    ),
    "pin": ("VERSION", "a release that is not pinned yet, as 0.5.24"),
}
TEST = "apply, build the release's environment, run tests/revision in it"
COLOURS = {
    Outcome.APPLIED: "green",
    Outcome.ALREADY_APPLIED: "green",
    Outcome.MERGED_UPSTREAM: "cyan",
    Outcome.NOT_SELECTED: "dim",
    Outcome.EMPTY: "yellow",
}
TOOL_MINUTES, RELEASE_MINUTES = 4, 1.5
# text of the queue may hold [brackets]
OUT = Console(highlight=False, soft_wrap=False, markup=False)


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
    if in_wheel():
        install.add(commands)
    else:
        _add_all(commands)
    entry.finish(commands, EXAMPLES)
    return parser


def _add_all(commands: Any) -> None:
    """Every command of a clone."""
    _add_laying(commands)
    _add_test(commands)
    _add_writing(commands)
    wheels.add(commands)
    handover.add(commands)
    install.add(commands)
    _add_quilt(commands)
    rebase.add(commands)
    text = "print the patch header's fields as a Markdown table"
    commands.add_parser("fields", help=text).set_defaults(run=_fields)


def _command(
    commands: Any, name: str, run: Any, text: str, default: str, takes: str = "", **flags: str
) -> argparse.ArgumentParser:
    """A command about releases. takes: which of --all and --from; flags: name -> help."""
    added: argparse.ArgumentParser = commands.add_parser(name, help=text)
    added.set_defaults(run=run)
    metavar, meant = WORDS.get(name, ("VERSION", "v0.5.9 or 0.5.9"))
    told = f"{meant} (default: {default})" if default else meant
    added.add_argument("words", nargs="*", metavar=metavar, help=told)
    if "--all" in takes:
        added.add_argument("--all", action="store_true", help="every pinned release")
    if "--from" in takes:
        paths.add_origin(added)
    for flag, meaning in flags.items():
        added.add_argument(f"--{flag}", action="store_true", help=meaning)
    return added


def _add_laying(commands: Any) -> None:
    _command(
        commands,
        "apply",
        _apply,
        "lay the queue on a release, in work/TAG/",
        paths.DEFAULT,
        "--all --from",
        discard="throw away edits of the work tree that no patch holds",
        verbose="list all patches of the queue, and say why one is not for the release",
    )
    text = "take every patch off work/TAG/ again, back to the pristine release"
    _command(commands, "unapply", _unapply, text, paths.DEFAULT, "--all")
    meant = "for a change that is meant"
    _command(
        commands,
        "check",
        _check,
        "lint the queue, and replay it in memory on each release",
        "every pinned release",
        "--from",
        write=f"pin the lines and trees that the queue has now, in upstream/placed.toml, {meant}",
        gaps="also list the patches that a release does not need, and why",
    )


def _add_test(commands: Any) -> None:
    tested = _command(
        commands,
        "test",
        _test,
        TEST,
        "the tool, and the releases that upstream/pins.toml calls tested",
        "--all --from",
        tool="test the tool itself: check, and tests/queue; without a release nothing else",
    )
    tested.add_argument("-k", dest="expression", help="only the tests that pytest's -k selects")
    text = "run nothing: say which releases would be tested"
    tested.add_argument("--plan", action="store_true", help=text)


def _add_writing(commands: Any) -> None:
    """The commands that write files of the queue."""
    text = "write the edits of work/TAG/ back to patches/, series and overlay/"
    add = "put edits of files that are in no patch into the top one"
    _command(commands, "refresh", _refresh, text, paths.DEFAULT, "--all", add=add)
    text = "start an empty patch on top of work/TAG/; name it topic/verb-object"
    _command(commands, "new", _new, text, "")
    added = _command(commands, "pin", _pin, "add a release to upstream/pins.toml", "")
    text = "a folder that holds all wheels of the release"
    added.add_argument("--from", dest="origin", type=paths.place, metavar="FOLDER", help=text)
    text = "resolve a release's test environment as of its release day"
    _command(commands, "lock", _lock, text, paths.DEFAULT, "--all")


def _add_quilt(commands: Any) -> None:
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


def _chosen(options: argparse.Namespace, pins: Pins, default: Sequence[Pin]) -> list[Pin]:
    every = getattr(options, "all", False)
    if every and options.words:
        step = f"name {options.words[0]} alone, or --all alone"
        raise Refused.of(
            "bad-words", "--all", f"means every release, {options.words[0]} means one", step
        )
    if every:
        return list(pins.all)
    return [pins.find(name) for name in options.words] or list(default)


def _apply(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    chosen = _chosen(options, pins, [pins.default])
    for pin in chosen:
        started = time.monotonic()
        report = apply(options.root, pin, options.origin, options.discard)
        seconds = time.monotonic() - started
        if options.verbose:
            _show_rows(report)
        elif len(chosen) == 1:
            _show_laid(report)
        if len(chosen) == 1 or options.verbose:
            _show_apply(report, options.root, seconds)
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
    for pin in _chosen(options, pins, [pins.default]):
        report = unapply(options.root, pin)
        done = (
            "was pristine already"
            if report.outcome is Outcome.ALREADY_APPLIED
            else "is pristine again"
        )
        _tell(f"work/{pin.tag} {done}: tree {report.record['tree']['before']}")
        OUT.print(f"next: {to_type('apply', pin.tag)} lays the queue on it again")
    return 0


def _check(options: argparse.Namespace) -> int:
    started = time.monotonic()
    pins = pinning.load(options.root)
    chosen = _chosen(options, pins, pins.all)
    for change in pinned.write(options.root, pins, chosen, options.origin) if options.write else ():
        _tell(f"{change.path}: {change.why}")
    report = check(options.root, chosen, options.origin, pins.all)
    _show_check(report, time.monotonic() - started, options.gaps)
    show_problems(report.all_problems)
    if not report.all_problems:
        _tell(
            f"next: {to_type('test', *(pin.tag for pin in chosen if options.words))} runs the tests"
        )
    return 1 if report.all_problems else 0


def _test(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    narrowed = options.words or options.all or options.expression or options.origin
    tool = options.tool or not narrowed
    chosen = _chosen(
        options, pins, [] if options.tool and not narrowed else pins.tested or [pins.default]
    )
    without = [pin for pin in chosen if not has_environment(options.root, pin)]
    if without and not options.all:
        raise Refused(map(_no_lock, without))
    chosen = [pin for pin in chosen if pin not in without]
    _show_plan(options.root, tool, chosen)
    if options.plan:
        return 0
    if tool and (_check_for_tests(options.root, pins) or _test_tool(options.root, chosen)):
        return 1
    results = _test_releases(options, chosen)
    for result in results:
        failed = f"failed (pytest exit code {result.exit_code})"
        verdict = Text("passed", "green") if result.passed else Text(failed, "red")
        edits = "(the tree has edits of yours)" if result.as_it_stands else ""
        OUT.print(f"{result.pin.tag}:", verdict, edits)
    for pin in without:
        OUT.print(f"{pin.tag}: not tested, it has no environment", style="yellow")
    return 0 if all(result.passed for result in results) else 1


def _no_lock(pin: Pin) -> Problem:
    step = f"{to_type('lock', pin.tag)} makes one"
    return Problem("no-environment", pin.tag, "has no lock in upstream/locks/", step)


def _check_all(root: Path, pins: Pins) -> int:
    started = time.monotonic()
    report = check(root, pins.all, None)
    _show_check(report, time.monotonic() - started, False)
    show_problems(report.all_problems)
    return 1 if report.all_problems else 0


def _check_for_tests(root: Path, pins: Pins) -> int:
    """Check the queue, and meanwhile install what the tests of plots need."""
    with ThreadPoolExecutor(1) as beside:
        beside.submit(matplotlib_folder, root)
        return _check_all(root, pins)


def _test_tool(root: Path, chosen: Sequence[Pin]) -> int:
    """Test the tool, and meanwhile build the environments that are needed next."""
    _begin("the tool")
    with ThreadPoolExecutor(1) as beside:
        built = [beside.submit(build_environment, root, pin) for pin in chosen]
        if code := test_tool(root):
            beside.shutdown(cancel_futures=True)
            return code
        for one in built:
            one.result()  # raises why there is none
    return 0


def _test_releases(options: argparse.Namespace, chosen: Sequence[Pin]) -> list[Result]:
    """Test releases side by side. The first one's output comes as it is written, that of the others
    when they have ended."""
    prepared = [prepare(options.root, pin, options.origin) for pin in chosen]
    narrowed = ["-k", options.expression] if options.expression else []
    words = [*narrowed, *(["--color=yes"] if OUT.is_terminal and not OUT.no_color else [])]
    shared = share(len(chosen), os.cpu_count() or 1)
    workers = 1 if narrowed else shared.workers
    with (
        tempfile.TemporaryDirectory(prefix="patchqueue-tests-") as space,
        ThreadPoolExecutor(shared.revisions) as beside,
    ):
        logs = [None, *(Path(space, pin.tag) for pin in chosen[1:])]
        runs = []
        try:
            for one, log in zip(prepared, logs):
                if not log:
                    _begin(one.pin.tag)
                runs.append(beside.submit(test_revision, options.root, one, words, workers, log))
            return [_shown(run, pin, log) for run, pin, log in zip(runs, chosen, logs)]
        finally:
            beside.shutdown(cancel_futures=True)


def _shown(run: Future[Result], pin: Pin, log: Path | None) -> Result:
    """Wait for a release's tests, and print what they wrote to a log."""
    result = run.result()
    if log:
        _begin(pin.tag)
        OUT.file.write(log.read_text(errors="replace"))
    return result


def _begin(what: str) -> None:
    OUT.rule(what, align="left", style="dim")
    OUT.file.flush()  # pytest writes next


def _show_plan(root: Path, tool: bool, chosen: Sequence[Pin]) -> None:
    """What is tested, and about how long that takes on two processors."""
    names = [*(["the tool"] if tool else []), *(pin.tag for pin in chosen)]
    minutes = TOOL_MINUTES * tool + RELEASE_MINUTES * len(chosen)
    _tell(f"to be tested: {', '.join(names)} (about {minutes:.0f} minutes on two processors)")
    lacking = [pin.tag for pin in chosen if not is_built(root, pin)]
    if lacking:
        _tell(f"to be built first: the environment of {', '.join(lacking)} ({SIZE} each)")
    OUT.file.flush()


def _refresh(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    for pin in _chosen(options, pins, [pins.default]):
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
        what = "takes one name with a slash, and at most one revision"
        raise Refused.of("bad-words", "new", what, to_type("new", "v0.5.9 topic/verb-object"))
    revisions = [pins.find(word) for word in options.words if "/" not in word] or [pins.default]
    file = new(options.root, revisions[0], names[0])
    tree = f"work/{revisions[0].tag}"
    own = shutil.which("quilt")
    OUT.print(
        f"{_relative(file, options.root)} is the top patch now{f'; in {tree}:' if own else ':'}"
    )
    quilt = "quilt" if own else to_type("quilt", revisions[0].tag).strip("`")
    for words, why in (
        ("add python/sglang/…", "before you edit a file"),
        ("header -e", "to fill in its header"),
    ):
        OUT.print(f"  {f'{quilt} {words}':<{len(quilt) + 20}}  {why}")
    OUT.print(f"next: {to_type('refresh', revisions[0].tag)} then writes it to patches/ and series")
    return 0


def _pin(options: argparse.Namespace) -> int:
    if not options.words:
        raise Refused.of("bad-words", "pin", "which release?", to_type("pin", "0.5.24"))
    for word in options.words:
        version_of(word)  # all of them before the first is fetched
    for word in options.words:
        pin = add_pin(options.root, word, options.origin)
        _tell(
            f"{pin.tag}: {counted(len(pin.wheels), 'wheel')} with one tree {pin.tree}, released"
            f" {pin.released}"
        )
        OUT.print(f"next: {to_type('rebase', pin.version)} carries the queue to it")
    return 0


def _lock(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    for pin in _chosen(options, pins, [pins.default]):
        file = lock_file(options.root, pin)
        LOG.info(f"resolving {pin.tag}'s environment as of {pin.resolve_as_of} (about a minute)")
        compile_lock(str(pin.version), pin.resolve_as_of, file)
        OUT.print(f"{_relative(file, options.root)}: as of {pin.resolve_as_of}")
        OUT.print(
            f"next: {to_type('test', pin.tag)} builds the environment and runs the tests in it"
        )
    return 0


def _quilt(options: argparse.Namespace) -> int:
    pin = pinning.load(options.root).find(options.revision)
    tree = WorkTree(options.root, pin.tag)
    if tree.inspect().state is State.ABSENT:
        raise no_tree(pin)
    engine = quilts.find(cache_folder())
    with tree.locked():
        return subprocess.run(
            [engine.command, *(options.arguments or ["--help"])],
            cwd=tree.path,
            env=engine.environment(),
        ).returncode


def _fields(options: argparse.Namespace) -> int:
    print(documentation())
    return 0


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


def _show_laid(report: Report) -> None:
    """The patches that are in the tree, a line each, and how many are not for the release."""
    laid = [row for row in report.rows if row.outcome in (Outcome.APPLIED, Outcome.ALREADY_APPLIED)]
    names = [row.patch.removesuffix(".patch") for row in laid]
    for name, row in zip(names, laid):
        line = Text(f"{name:<{max(map(len, names))}}  {row.why}")
        line.truncate(OUT.width, overflow="ellipsis")
        OUT.print(line)
    kinds = [row.outcome for row in report.rows if row not in laid]
    if kinds:
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        OUT.print(f"not for {report.pin.tag}: {counts} (--verbose lists them)")


def _show_apply(report: Report, root: Path, seconds: float) -> None:
    """What the tree is made of, and what to type next."""
    if report.outcome is Outcome.EMPTY:
        OUT.print(f"No patch is for {report.pin.tag}: {report.pin.no_patches}.", style="yellow")
    _show_summary(report, root, seconds)
    record = report.record
    _tell(f"from {record['source']['name']}")
    _tell(f"tree {record['tree']['before']} before\n     {record['tree']['after']} after")
    OUT.print(f"next: {to_type('build', report.pin.tag)} makes its wheel")


def _show_summary(report: Report, root: Path, seconds: float) -> None:
    record = report.record
    again = "already applied, " if report.outcome is Outcome.ALREADY_APPLIED else ""
    counts = (
        f"{len(record['patches']) - bool(record['overlay'])} of {len(report.rows)} patches,"
        f" {counted(len(record['overlay']), 'overlay file')}"
    )
    _tell(f"{_relative(report.path, root)}: {again}{counts}, {seconds:.1f} s")


def _show_check(report: CheckReport, seconds: float, with_needless: bool) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("revision", "replay"):
        table.add_column(name)
    for name in ("selected", "merged upstream", "not needed", "gaps"):
        table.add_column(name, justify="right")
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
            pin.pin.tag, Text(str(pin.outcome), COLOURS.get(pin.outcome, "red")), *map(str, counts)
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


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _tell(text: str) -> None:
    """Print a line of any length as it is."""
    OUT.print(text, soft_wrap=True)
