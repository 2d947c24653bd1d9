"""The command `rebase`: the queue on another release."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from packaging.version import Version

from ..applying.apply import load_queue
from ..environments.testing import has_environment
from ..handover import rebase
from ..handover.forecast import MERGED_BY_GIT, Forecast, forecast
from ..handover.rebase import Progress
from ..outcome import Outcome, Refused, counted, to_type
from ..upstream import pins as pinning
from ..upstream.pins import Pins
from ..upstream.release import find, newer
from .terminal import OUT, Command, flag, option, path, show_rows

KINDS = (
    (Outcome.APPLIED, "as they are"),
    (Outcome.NEEDS_REFRESH, "to refresh"),
    (Outcome.MERGED_UPSTREAM, "merged upstream"),
    (Outcome.CONFLICT, "in conflict"),
    (Outcome.NOT_SELECTED, "left out"),  # only where there are such
)

DESCRIPTION = """Say what the queue does on a release: each patch applies, needs a refresh, is
merged upstream, or conflicts. The first conflict is laid out in work/rebase-RELEASE/, a git
repository. Nothing is written to the queue yet. Solve the conflict there; then --continue writes
the variants and guards, and lays out the next one."""


def _rebase(options: argparse.Namespace) -> int:
    root, pins = options.root, pinning.load(options.root)
    if options.newer:
        return _show_newer(root, pins)
    if not options.release:
        raise Refused.of("bad-words", "rebase", "which release?", to_type("rebase", "0.5.24"))
    version = pinning.version(options.release)
    if not options.proceed:
        release = find(pins, version, options.origin)
        progress = rebase.begin(root, pins, release, partial(_show_forecast, pins))
        _show_next(root, pins, progress, begun=True)
        return 0
    progress = rebase.proceed(root, pins, version)
    for change in progress.changes:
        OUT.print(f"{change.path}: {change.why}")
    if not progress.changes:
        OUT.print("nothing to write, the queue holds it all")
    _show_next(root, pins, progress)
    return 0


def _show_newer(root: Path, pins: Pins) -> int:
    """Say what the queue does on each release that is newer than the newest pin."""
    versions = newer(pins)
    if not versions:
        OUT.print(f"no release is newer than {pins.all[-1].tag}, the newest pin")
        return 0
    queue = load_queue(root)
    for version in versions:
        _show_forecast(pins, forecast(queue, pins, find(pins, version, None)))
    OUT.print(f"next: {to_type('rebase', versions[0])} carries it there, up to a first conflict")
    return 0


def _show_forecast(pins: Pins, outlook: Forecast) -> None:
    show_rows(
        replace(row, why="see below") if row.outcome is Outcome.CONFLICT else row
        for row in outlook.rows
    )
    names = {row.patch: row.patch.removesuffix(".patch") for row in outlook.rows}
    for row in outlook.rows:
        if row.outcome is Outcome.CONFLICT:
            OUT.print(f"{names[row.patch]}: {row.why}")
    for row in outlook.rows:
        if row.why == MERGED_BY_GIT:
            what = "merged without markers, which is no proof of meaning: read it"
            OUT.print(f"{names[row.patch]}: {what}")
    OUT.print(_summary(pins, outlook))


def _summary(pins: Pins, outlook: Forecast) -> str:
    """Which patches were tried, and how many of them do what."""
    outcomes = [row.outcome for row in outlook.rows]
    kinds = KINDS if Outcome.NOT_SELECTED in outcomes else KINDS[:-1]
    counts = ", ".join(f"{outcomes.count(outcome)} {what}" for outcome, what in kinds)
    own = "which is pinned, with its own patches and those" if pins.of(outlook.version) else ""
    tried = f"{own or 'with the patches'} of {outlook.nearest.tag}"
    return f"sglang {outlook.version}, {tried}: {counts}"


def _show_next(root: Path, pins: Pins, progress: Progress, begun: bool = False) -> None:
    """What is to be done now, and the command to type. begun: a release is begun now."""
    version, row = progress.found.version, progress.found.conflict
    if row is not None:
        _show_conflict(root, progress, row.patch, begun)
        return
    if begun:
        write = to_type("rebase", version, "--continue")
        OUT.print(f"No patch conflicts: {write} writes the variants and guards.")
    else:
        OUT.print(f"No conflict is left on {version}. Next: {_after(root, pins, version)}.")


def _show_conflict(root: Path, progress: Progress, patch: str, begun: bool) -> None:
    tag, version = progress.found.nearest.tag, progress.found.version
    name = patch.removesuffix(".patch")
    folder = os.path.relpath(progress.folder or root, root)
    first, following = f"{folder} shows the first conflict", f"Next conflict in {folder}"
    lines = [f"\n{first if begun else following}, {name}:"]
    for region in progress.regions:
        marked = f"{counted(region.regions, 'region')} between markers"
        what = marked if region.regions else "changed by the patch, and gone in the release"
        lines.append(f"  {region.path}:{region.line}: {what}")
    if not progress.regions:
        made = "`git diff HEAD` there shows what it made of"
        lines.append(f"  git left no markers; {made} patches/{patch}")
    lines += [
        f"There `git diff {tag} v{version} -- FILE` is what upstream did, `git log -p"
        f" {tag}..queue-on-{tag}` what the queue does.",
        f"Edit, then {to_type('rebase', f'{version} --continue')}. A Gap in the patch's header, and"
        " a guard without the release, leave the patch out. To drop all this, delete the folder.",
    ]
    OUT.print("\n".join(lines))


def _after(root: Path, pins: Pins, version: Version) -> str:
    """The commands that a finished rebase leaves to be typed."""
    pin = pins.of(version)
    steps = [] if pin else [to_type("pin", version)]
    # of a pinned one, every release: a text that changed may conflict on others, too
    steps += [to_type("check", *([] if pin else ["--write", f"v{version}"]))]
    steps += [] if pin and has_environment(root, pin) else [to_type("pin", f"v{version}", "--lock")]
    return ", ".join(steps)


COMMANDS = (
    Command(
        "rebase",
        _rebase,
        "say what the queue does on another release, and carry it there",
        "0.5.24",
        (
            option("release RELEASE", "a version, as 0.5.24", nargs="?"),
            option(
                "--from PATH",
                "take the release from this wheel, folder of wheels, checkout or unpacked wheel",
                dest="origin",
                type=path,
            ),
            (
                flag(
                    "--continue",
                    "write what is solved, and go on to the next conflict",
                    dest="proceed",
                ),
                flag(
                    "--newer",
                    "say what the queue does on each release that is newer than the newest pin",
                ),
            ),
        ),
        DESCRIPTION,
    ),
)
