"""The commands about an sglang that is installed: install, uninstall."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..install import inplace, undo
from ..install.installed import Report, site_packages
from ..install.patched import named_tree
from ..outcome import Outcome, counted, some, to_type
from ..queue.header import SPEED
from . import terminal
from .terminal import ONLY, OUT, WITHOUT, Argument, Command, flag, option


def _guarded(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run the command on the sglang that is meant; an interrupt says whether it is patched in
    part."""
    if options.site is None:
        options.site, python = site_packages(options.python)
        OUT.print(f"sglang of {python}: {options.site}")
    try:
        return run(options)
    except KeyboardInterrupt:
        half = undo.State.INSTALLING, undo.State.REMOVING
        if undo.state_of(options.site) not in half:
            raise
        again = to_type("install", "--site-packages", options.site)
        what = f"{options.site} is patched in part; {again} or `uninstall` finishes what was begun"
        raise KeyboardInterrupt(what) from None


def _install(options: argparse.Namespace) -> int:
    started = time.monotonic()
    report = inplace.install(
        options.root,
        options.site,
        options.discard,
        options.release,
        options.only,
        options.without,
        options.check,
    )
    _show_notes(report)
    record, already = report.record, report.outcome is Outcome.ALREADY_APPLIED
    release, version = f"sglang {record['version']} in {report.site}", Version(record["version"])
    if options.check and already:
        OUT.print(f"{release} is patched already")
        return 0
    count = len(record["patches"]) - bool(record["overlay"])
    patches, changed = counted(count, "patch", "patches"), counted(report.changed, "file")
    if already:
        OUT.print(f"already applied: {release} has this queue")
    elif options.check:
        would = f"install would apply {patches}, change {changed} and add {report.added}"
        OUT.print(f"{release}: {would}; nothing was written")
    else:
        made = f"{patches}, {changed} changed, {report.added} added"
        OUT.print(f"{release}: {made}, {time.monotonic() - started:.1f} s")
    _show_edits(report)
    if options.check:
        given = [("--only", options.only), ("--release", options.release)]
        given += [("--without", patch) for patch in options.without]
        words = [word for each in given if each[1] for word in each]
        OUT.print(f"next: {_install_in(report, *words)} does that")
        return 0
    _show_tree(report)
    again = "`python -m sglang.srt.prefill_graph --verify` compares every file again"
    OUT.print(f"next: {launch_advice(version, options.only)}; {again}")
    OUT.print(*(f"  {line}\n" for line in launch_exceptions(version, options.only)), sep="", end="")
    return 0


def _install_in(report: Report, *words: str) -> str:
    return to_type("install", "--site-packages", report.site, *words)


def _show_notes(report: Report) -> None:
    for note in report.notes:
        OUT.print(f"note: {note}")


def _show_edits(report: Report) -> None:
    """What others edited, before the install and since; and what the queue did about it."""
    record = report.record
    if report.before:
        OUT.print(f"edits of others, from before: {_shown(report.before)}; they stay")
    for name in record.get("there", ()):
        OUT.print(f"  {name.removesuffix('.patch')}: these files have that change already")
    if report.others:
        OUT.print(f"edits of others, since then: {_shown(report.others)}")


def _shown(names: Sequence[str]) -> str:
    return f"{counted(len(names), 'file')}: {some(names)}"


def _uninstall(options: argparse.Namespace) -> int:
    started = time.monotonic()
    report = inplace.uninstall(options.root, options.site, options.discard)
    if report.outcome is Outcome.ALREADY_APPLIED:
        OUT.print(f"{report.site}: {' '.join(report.notes)}")
        OUT.print(f"next: {_install_in(report)} patches it")
        return 0
    found = "as it was found" if report.record.get("edits") else "as it was"
    state = "has its own files again" if report.others else f"is {found}"
    OUT.print(
        f"sglang {report.record['version']} in {report.site} {state}:"
        f" {counted(report.changed, 'file')} restored, {report.added} removed,"
        f" {time.monotonic() - started:.1f} s"
    )
    if report.others:
        kept = (f"  {name}" for name in report.others)
        OUT.print("edits of others, made since the install, were kept:", *kept, sep="\n")
    _show_notes(report)
    OUT.print(f"next: start the server anew; {_install_in(report)} patches it again")
    return 0


def _show_tree(report: Report) -> None:
    if named := named_tree(report.site):
        OUT.print(f"tree {named}, as the server's first line and --require have it")


BREAKABLE = "--enable-breakable-cuda-graph"
ARGUMENTS = {  # from 0.5.15 on, the graph is the default
    "<0.5.9": "--enable-piecewise-cuda-graph",
    ">=0.5.9,<0.5.10": BREAKABLE,
    ">=0.5.10,<0.5.14": BREAKABLE,
    ">=0.5.14,<0.5.15": "--cuda-graph-backend-prefill breakable",
}
SPARSE = "DeepSeek-V3.2, GLM-5"
KINDS = (  # releases, models that need something else, and what; the page has the same
    (">=0.5.10,<0.5.14", "Qwen3-Next", "add --enforce-piecewise-cuda-graph"),
    (">=0.5.9,<0.5.10", SPARSE, "--enable-piecewise-cuda-graph instead"),
    (">=0.5.10,<0.5.14", SPARSE, "no flag, the piecewise graph is the default"),
    (">=0.5.16,<0.5.22", SPARSE, "--cuda-graph-backend-prefill tc_piecewise"),
)


def launch_argument(version: Version) -> str:
    """What to add to the launch command; empty where the graph is the default."""
    of_release = (each for each in ARGUMENTS if SpecifierSet(each).contains(version))
    return ARGUMENTS.get(next(of_release, ""), "")


def launch_advice(version: Version, only: str = "") -> str:
    """One sentence for a user who starts a server with a profile of the queue, "" for all of it."""
    if only not in ("", SPEED):
        return f"start the server as before: the profile {only} brings no graph"
    wanted = launch_argument(version)
    return f"start the server with {wanted}" if wanted else "start the server: the graph is on"


def launch_exceptions(version: Version, only: str = "") -> list[str]:
    """A line for each kind of model that needs another argument, or one more."""
    of_release = [each for each in KINDS if SpecifierSet(each[0]).contains(version)]
    return [f"{models}: {what}" for _, models, what in of_release] if only in ("", SPEED) else []


def _command(
    name: str,
    run: Callable[[argparse.Namespace], int],
    help: str,
    *more: Argument | tuple[Argument, ...],
) -> Command:
    """A command on one installed sglang."""
    which = (
        option(
            "--python PATH",
            "the Python whose sglang is meant (default: the activated environment's, else the"
            " one on PATH that has an sglang)",
            type=terminal.program,
            default="",
        ),
        option(
            "--site-packages DIR",
            "the folder that holds sglang/: site-packages, or python/ of an editable checkout",
            dest="site",
            type=terminal.path,
        ),
    )
    example = "--site-packages /sgl-workspace/sglang/python"
    return Command(name, lambda options: _guarded(run, options), help, example, (which, *more))


DISCARD = flag("--discard", "throw away edits of the files that install made or changed")


COMMANDS = (
    _command(
        "install",
        _install,
        "patch an installed sglang in place: a pinned release, with or without edits of others",
        (
            DISCARD,
            flag(
                "--check",
                "write nothing; say what install would do, and what would keep it from that",
            ),
        ),
        ONLY,
        WITHOUT,
        option(
            "--release RELEASE",
            "the release that it is made of, where its files do not say",
            default="",
        ),
    ),
    _command("uninstall", _uninstall, "take the patches off again: every file as it was", DISCARD),
)
