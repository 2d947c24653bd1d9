"""The commands that make wheels, and patch an sglang that is installed: build, install,
uninstall."""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
import time
from collections.abc import Callable

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..handover import backport
from ..install import inplace, undo
from ..install.installed import Report, site_packages
from ..install.patched import named_tree
from ..outcome import Outcome, counted, some, to_type
from ..queue.header import SPEED
from ..upstream import pins as pinning
from ..upstream.pins import Pin
from ..wheels import Target, build, local_version
from . import terminal
from .terminal import ERR, ONLY, OUT, WITHOUT, Argument, Command, flag, option

MB = 10**6
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def _build(options: argparse.Namespace) -> int:
    if options.release:
        return _release(options)
    target = Target(options.python or HERE, options.machine or platform.machine())
    for pin in terminal.chosen_releases(options, pinning.load(options.root)):
        started = time.monotonic()
        if not options.python and len(pin.wheels) > 1:
            ERR.print(f"for Python {HERE}, which runs this; --python names another", style="dim")
        built = build(
            options.root, pin, target, options.origin, options.root / terminal.DIST, options.only
        )
        wheel = shlex.quote(terminal.shown(built.path))
        OUT.print(
            f"{terminal.shown(built.path)}: version {built.version},"
            f" {time.monotonic() - started:.1f} s\nfrom {built.origin}\nsha256 {built.sha256}\n"
            f"tree {built.record['tree']['after']}\n"
            f"files: {len(built.changes.added)} added, {len(built.changes.changed)} changed,"
            f" {len(built.changes.removed)} removed"
        )
        if not options.only and pin.patched not in ("", built.record["tree"]["after"]):
            OUT.print("note: this clone has edits: upstream/pins.toml pins another tree")
        _show_install(pin, wheel)
    return 0


def _show_install(pin: Pin, wheel: str) -> None:
    """How the wheel is installed."""
    OUT.print(
        f"into an empty environment: `uv pip install --exclude-newer {pin.resolve_as_of}"
        f" --prerelease=allow {wheel}`"
    )
    # without --force-reinstall pip keeps an earlier wheel of the same version
    OUT.print(
        f"next: `pip install --force-reinstall --no-deps {wheel}`, over an installed sglang"
        f" {pin.version}"
    )


def _release(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    chosen = terminal.chosen_releases(options, pins, pins.all)
    started = time.monotonic()
    folder = backport.make_release(options.root, chosen)
    wheels = counted(sum(len(pin.wheels) for pin in chosen), "wheel")
    size = sum(file.stat().st_size for file in folder.iterdir()) / MB
    OUT.print(
        f"{terminal.shown(folder)}: {wheels}, {counted(len(chosen), 'patch file')}, {size:.1f} MB,"
        f" {time.monotonic() - started:.1f} s"
    )
    version = local_version(chosen[0])
    OUT.print(f"next: `pip install --find-links {terminal.shown(folder)} sglang=={version}`")
    return 0


def _guarded(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run it on the sglang that is meant; say whether an interrupt left it half patched."""
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
    if named := named_tree(report.site):
        OUT.print(f"tree {named}, as the server's first line and --require have it")
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
    for when, names in (("from before", report.before), ("since then", report.others)):
        if names:
            files = f"{counted(len(names), 'file')}: {some(names)}"
            OUT.print(f"edits of others, {when}: {files}")
    for name in report.record.get("there", ()):
        OUT.print(f"  {name.removesuffix('.patch')}: these files have that change already")


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


ARGUMENTS = {  # from 0.5.15 on, the graph is the default
    "<0.5.9": "--enable-piecewise-cuda-graph",
    ">=0.5.9,<0.5.14": "--enable-breakable-cuda-graph",
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
    rows = ARGUMENTS.items()
    return next((what for each, what in rows if SpecifierSet(each).contains(version)), "")


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


BUILD = Command(
    "build",
    _build,
    "write a release's wheel with the queue on it to dist/",
    "v0.5.12.post1 --python 3.12",
    (
        terminal.releases(f"{terminal.DEFAULT}; with --release, every one"),
        terminal.FROM,
        option(
            "--python",
            "for this Python, as 3.12 (default: the one that runs this)",
            type=terminal.python,
        ),
        option(
            "--machine",
            "for this machine, x86_64 or aarch64 (default: this host's)",
            type=terminal.machine,
        ),
        (
            ONLY,
            flag(
                "--release",
                "make the files of a release of the queue instead, in dist/release-N/: wheels,"
                " patch files, sums",
            ),
        ),
    ),
)

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
