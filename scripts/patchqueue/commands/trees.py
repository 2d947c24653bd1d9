"""The commands about trees in work/RELEASE/: apply, unapply, quilt."""

from __future__ import annotations

import argparse
import subprocess
import time
from pathlib import Path

from ..applying import quilt as quilts
from ..applying.apply import Report, apply, no_tree, unapply
from ..applying.worktree import State, WorkTree
from ..hint import counted, to_type
from ..outcome import Outcome
from ..upstream import pins as pinning
from ..upstream.source import cache_folder
from . import terminal
from .terminal import FROM, OUT, Command, chosen_releases, flag, option, show_rows


def _apply(options: argparse.Namespace) -> int:
    if options.base:
        terminal.refuse_ineffective(options, "with --base, which is the tree", "--from")
    chosen = chosen_releases(options, pinning.load(options.root))
    for pin in chosen:
        started = time.monotonic()
        report = apply(options.root, pin, options.origin, options.discard, options.base)
        seconds = time.monotonic() - started
        if options.verbose:
            show_rows(report.rows)
        elif len(chosen) == 1:
            applied = (Outcome.APPLIED, Outcome.ALREADY_APPLIED)
            kinds = [row.outcome for row in report.rows if row.outcome not in applied]
            counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
            if kinds:
                OUT.print(f"not for {pin.tag}: {counts} (--verbose lists all patches)")
        is_whole = len(chosen) == 1 or options.verbose
        _show(report, options.root, seconds, is_whole, options.verbose)
    if len(chosen) > 1:
        OUT.print(f"next: {to_type('build', chosen[0].tag)} makes the wheel of one")
    return 0


def _unapply(options: argparse.Namespace) -> int:
    for pin in chosen_releases(options, pinning.load(options.root)):
        report = unapply(options.root, pin)
        already = report.outcome is Outcome.ALREADY_APPLIED
        state = "was pristine already" if already else "is pristine again"
        OUT.print(f"work/{pin.tag} {state}: tree {pin.tree}")
        OUT.print(f"next: {to_type('apply', pin.tag)} applies the queue again")
    return 0


def _quilt(options: argparse.Namespace) -> int:
    pin = pinning.load(options.root).find(options.release)
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


def _show(report: Report, root: Path, seconds: float, whole: bool, verbose: bool) -> None:
    """The tree in a line; whole: its contents, and what to type next; verbose: also the pristine
    tree's hash."""
    record, tag = report.record, report.pin.tag
    again = "already applied, " if report.outcome is Outcome.ALREADY_APPLIED else ""
    counts = f"{len(record['patches']) - bool(record['overlay'])} of {len(report.rows)} patches"
    files = counted(len(record["overlay"]), "overlay file")
    path = terminal.relative(report.path, root)
    OUT.print(f"{path}: {again}{counts}, {files}, {seconds:.1f} s")
    if not whole:
        return
    OUT.print(f"from {record['source']['name']}")
    if verbose:
        OUT.print(f"release {report.pin.tree}")
    OUT.print(f"tree {record['tree']['after']}")
    if "edits" not in record:
        OUT.print(f"next: {to_type('build', tag)} makes its wheel")
        return
    OUT.print(f"edits of others in {counted(sum(map(len, record['edits'].values())), 'file')}")
    for name in record["there"]:
        OUT.print(f"{name.removesuffix('.patch')}: that tree has the change already")
    OUT.print(f"next: {to_type('patches', tag, '--base PATH')} writes it as one file")


COMMANDS = (
    Command(
        "apply",
        _apply,
        "apply the queue to a release, in work/RELEASE/",
        "v0.5.12.post1",
        (
            terminal.releases(),
            FROM,
            option(
                "--base PATH",
                "apply it to this tree: a checkout or folder with the release and edits of others",
                type=terminal.path,
            ),
            flag("--discard", "throw away edits of the work tree that no patch holds"),
            flag(
                "--verbose",
                "list all patches of the queue, say why one is not for the release, and what the"
                " release hashed to",
            ),
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
        "run quilt in work/RELEASE/, with the quilt that apply uses",
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
)
