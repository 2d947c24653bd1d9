"""The commands about an sglang that is installed."""

from __future__ import annotations

import argparse
import time
from typing import Any

from rich.console import Console

from ..hint import counted, to_type
from ..install import inplace
from ..install.inplace import Report
from ..outcome import Outcome
from . import idle, paths

OUT = Console(highlight=False, soft_wrap=True, markup=False)


def add(commands: Any) -> None:
    """Add this module's commands to the parser's."""
    made = _command(
        commands,
        "install",
        _install,
        "patch an installed sglang in place; it must be a pinned release, unchanged",
    )
    made.add_argument(
        "--verify",
        action="store_true",
        help="install nothing; finish what a killed call began, then compare every file",
    )
    _command(commands, "uninstall", _uninstall, "take the patches off again: every file as it was")


def _command(commands: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=text)
    made.set_defaults(run=run)
    made.add_argument(
        "--site-packages",
        dest="site",
        type=paths.path,
        required=True,
        metavar="DIR",
        help="the folder that holds sglang/: site-packages, or python/ of an editable checkout",
    )
    made.add_argument(
        "--discard",
        action="store_true",
        help="throw away edits of the files that install made or changed",
    )
    return made


def _install(options: argparse.Namespace) -> int:
    started = time.monotonic()
    if options.verify:
        idle.refuse(options, "with --verify, which writes no file of yours", "--discard")
        return _verify(options)
    report = inplace.install(options.root, options.site, options.discard)
    for note in report.notes:
        OUT.print(f"note: {note}")
    record = report.record
    if report.outcome is Outcome.ALREADY_APPLIED:
        OUT.print(f"already applied: sglang {record['version']} in {report.site} has this queue")
    else:
        OUT.print(
            f"sglang {record['version']} in {report.site}:"
            f" {counted(len(record['patches']) - bool(record['overlay']), 'patch', 'patches')},"
            f" {counted(report.changed, 'file')} changed, {report.added} added,"
            f" {time.monotonic() - started:.1f} s"
        )
    _show_trees(record)
    OUT.print(
        "next: start the server anew;"
        f" {to_type('install', '--site-packages', report.site, '--verify')} compares every file"
    )
    return 0


def _uninstall(options: argparse.Namespace) -> int:
    started = time.monotonic()
    report = inplace.uninstall(options.root, options.site, options.discard)
    if report.outcome is Outcome.ALREADY_APPLIED:
        OUT.print(f"{report.site}: {' '.join(report.notes)}")
        _show_next_install(report)
        return 0
    state = "has its own files again, but not all" if report.faults else "is as it was"
    OUT.print(
        f"sglang {report.record['version']} in {report.site} {state}:"
        f" {counted(report.changed, 'file')} restored, {report.added} removed,"
        f" {time.monotonic() - started:.1f} s"
    )
    _show_faults(report)
    if report.faults:
        release = f"sglang=={report.record['version']}"
        OUT.print(
            f"next: `pip install --force-reinstall --no-deps {release}`, where the release's own"
            " are wanted"
        )
        return 0
    OUT.print(f"tree {report.record['tree']['before']}")
    _show_next_install(report)
    return 0


def _show_next_install(report: Report) -> None:
    OUT.print(
        f"next: start the server anew; {to_type('install', '--site-packages', report.site)} patches"
        " it again"
    )


def _verify(options: argparse.Namespace) -> int:
    report = inplace.verify(options.root, options.site)
    state = {
        Outcome.EMPTY: "is the pristine release",
        Outcome.APPLIED: "is patched, every file as the queue made it",
    }.get(report.outcome, "is patched, but not as the queue left it")
    OUT.print(f"sglang {report.record['version']} in {report.site} {state}")
    _show_faults(report)
    if report.faults:
        OUT.print(f"next: {report.next_step}")
        return 1
    pristine = report.outcome is Outcome.EMPTY
    OUT.print(f"tree {report.record['tree']['before' if pristine else 'after']}")
    patch = f"{to_type('install', '--site-packages', report.site)} patches it"
    OUT.print(f"next: {patch if pristine else 'start the server; its first lines name the queue'}")
    return 0


def _show_trees(record: dict[str, Any]) -> None:
    OUT.print(f"tree {record['tree']['before']} before\n     {record['tree']['after']} after")


def _show_faults(report: Report) -> None:
    for note in report.notes if report.faults else ():
        OUT.print(f"note: {note}:")
    for name in report.faults:
        OUT.print(f"  {name}")
