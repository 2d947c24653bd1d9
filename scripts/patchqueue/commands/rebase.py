"""The command `rebase`: the queue on another release."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from ..applying.apply import load_queue
from ..environments.testing import has_environment
from ..files import atomic
from ..hint import counted, to_type
from ..outcome import Outcome, Refused
from ..rebasing import forecast as report
from ..rebasing import rebase
from ..rebasing.conflictrepo import Repository
from ..rebasing.forecast import Forecast, forecast
from ..rebasing.rebase import Progress
from ..upstream import pins as pinning
from ..upstream.pins import Pins
from ..upstream.release import Release, find, newer, version_of
from . import terminal
from .terminal import FROM, OUT, Command, flag, option, show_rows, shown

DESCRIPTION = """Say what the queue does on a release: each patch applies, needs a refresh, is merged upstream, or conflicts.
The first conflict is laid out in work/rebase-RELEASE/, a git repository. Nothing is written to the queue yet. Solve the conflict
there; then --continue writes the variants and guards, and lays out the next one."""  # noqa: E501


def _rebase(options: argparse.Namespace) -> int:
    started = time.monotonic()
    root, pins = options.root, pinning.load(options.root)
    if options.newer is not None:
        terminal.refuse_ineffective(options, "with --newer, which names no release", "--from")
        return _show_newer(root, pins, options.newer or None)
    if not (options.proceed or options.abort or options.skip is not None):
        if not options.release:
            raise Refused.of("bad-words", "rebase", "which release?", to_type("rebase", "0.5.24"))
        with find(pins, options.release, options.origin) as release:
            progress = rebase.begin(
                root,
                pins,
                release,
                lambda found: _show_forecast(pins, found, time.monotonic() - started),
            )
        _show_next(root, pins, progress, _named(options))
        return 0
    version = _version(root, pins, options.release)
    if options.abort:
        terminal.refuse_ineffective(options, "with --abort, which reads no release", "--from")
        rebase.abort(root, version)
        OUT.print(
            f"work/rebase-{version} is gone; what was written to the queue stays (`git diff`"
            " shows it)"
        )
        return 0
    with _release(root, pins, options, version) as release:
        progress = rebase.proceed(root, pins, version, release, options.skip)
    for change in progress.changes:
        OUT.print(f"{change.path}: {change.why}")
    if not progress.changes:
        OUT.print("nothing to write, the queue holds it all")
    _show_next(root, pins, progress)
    return 0


def _named(options: argparse.Namespace) -> list[object]:
    """The words that name the release, to be typed again: what is begun without a conflict is kept
    nowhere."""
    typed = Path(options.release) if os.sep in options.release else options.release
    origin = (
        []
        if options.origin is None
        else ["--from", Path(options.origin) if Path(options.origin).exists() else options.origin]
    )
    return [typed, *origin]


def _version(root: Path, pins: Pins, word: str | None) -> Version:
    """The release that --continue, --skip or --abort is about."""
    under_way = rebase.under_way(root)
    if word and (Path(word).is_dir() or word.endswith(".whl")):
        return version_of(Path(word), pins)
    if word:
        return pinning.version(word)
    if len(under_way) == 1:
        return under_way[0]
    which = (
        f"several rebases are under way: {' '.join(map(str, under_way))}"
        if under_way
        else "no rebase is under way"
    )
    hint = (
        f"name the release: {to_type('rebase', under_way[0], '--continue')}"
        if under_way
        else f"{to_type('rebase', '0.5.24')} begins one"
    )
    raise Refused.of("nothing-to-continue", "work/", which, hint)


@contextmanager
def _release(
    root: Path, pins: Pins, options: argparse.Namespace, version: Version
) -> Iterator[Release | None]:
    """The release, where no repository holds it."""
    if Repository(root, version).state is not None:
        terminal.refuse_ineffective(
            options, f"here: work/rebase-{version} holds the release that was begun with", "--from"
        )
        yield None
        return
    with find(pins, options.release or str(version), options.origin) as release:
        yield release


def _show_newer(root: Path, pins: Pins, folder: Path | None) -> int:
    """Say what the queue does on each release that is newer than the newest pin."""
    found = newer(pins)
    if folder and folder.exists() and not folder.is_dir():
        step = "name a folder; it is made where it is missing"
        raise Refused.of("not-a-folder", str(folder), "is a file", step)
    if not found:
        OUT.print(f"no release is newer than {pins.all[-1].tag}, the newest pin")
    refusals = [_forecast(root, pins, version, folder) for version in found]
    if found:
        step = "carries it there, up to a first conflict"
        OUT.print(f"next: {to_type('rebase', found[0])} {step}")
    problems = [problem for each in refusals if each for problem in each.problems]
    if problems:
        raise Refused(problems)
    return 0


def _forecast(root: Path, pins: Pins, version: Version, folder: Path | None) -> Refused | None:
    """Show what the queue does on one release, and write its report to a folder. Returns why the
    release could not be tried, so that the others are shown all the same."""
    started, refused = time.monotonic(), None
    try:
        with find(pins, str(version), None) as release:
            found = forecast(load_queue(root), pins, release)
        _show_forecast(pins, found, time.monotonic() - started)
        text = report.markdown(pins, found)
    except Refused as error:
        refused, text = error, report.markdown_of_refusal(version, error)
    if folder:
        written = folder / f"{version}.md"
        atomic.write(written, text.encode())
        OUT.print(f"{shown(written)}: the report on {version}")
    return refused


def _show_forecast(pins: Pins, found: Forecast, seconds: float) -> None:
    show_rows(
        replace(row, why="see below") if row.outcome is Outcome.CONFLICT else row
        for row in found.rows
    )
    for line in report.to_read(found):
        OUT.print(line)
    OUT.print(f"{report.summary(pins, found)}; {seconds:.1f} s")


def _show_next(root: Path, pins: Pins, progress: Progress, named: Sequence[object] = ()) -> None:
    """What is to be done now, and the command to type. named: what named the release that is begun
    now, empty for one under way."""
    begun = bool(named)
    version, row = progress.found.version, progress.found.conflict
    if row is not None:
        _show_conflict(root, progress, row.patch, begun)
        return
    if begun and progress.to_write:
        write = to_type("rebase", *named, "--continue")
        text = f"No patch conflicts: {write} writes the variants and guards."
    else:
        done = "No patch conflicts, and the queue holds it all."
        text = f"{done if begun else 'No conflict is left.'} Next: {_after(root, pins, version)}."
    OUT.print(text)


def _show_conflict(root: Path, progress: Progress, patch: str, begun: bool) -> None:
    tag, version = progress.found.nearest.tag, progress.found.version
    name = patch.removesuffix(".patch")
    folder = os.path.relpath(progress.folder or root, root)
    first, following = f"{folder} shows the first conflict", f"Next conflict in {folder}"
    lines = [f"\n{first if begun else following}, {name}:"]
    for region in progress.regions:
        marked = f"{counted(region.count, 'region')} between markers"
        what = marked if region.count else "changed by the patch, and gone in the release"
        lines.append(f"  {region.path}:{region.line}: {what}")
    if not progress.regions:
        made = "`git diff HEAD` there shows what it made of"
        lines.append(f"  git left no markers; {made} patches/{patch}")
    lines += [
        f"There `git diff {tag} v{version} -- FILE` is what upstream did, `git log -p"
        f" {tag}..queue-on-{tag}` what the queue does.",
        f'Edit, then {to_type("rebase", f"{version} --continue")}; --skip "REASON" leaves the'
        " patch out, --abort drops all this.",
    ]
    OUT.print("\n".join(lines))


def _after(root: Path, pins: Pins, version: Version) -> str:
    """The commands that a finished rebase leaves to be typed."""
    pin = next((pin for pin in pins.all if pin.version == version), None)
    steps = [] if pin else [to_type("pin", version)]
    steps += [to_type("check", *([] if pin else ["--write"]), f"v{version}")]
    steps += [] if pin and has_environment(root, pin) else [to_type("pin", f"v{version}", "--lock")]
    return ", ".join(steps)


COMMANDS = (
    Command(
        "rebase",
        _rebase,
        "say what the queue does on another release, and carry it there",
        "0.5.24",
        (
            option(
                "release RELEASE|PATH",
                "a version as 0.5.24, or a wheel or checkout of sglang as it stands; not"
                " needed while one rebase is under way",
                nargs="?",
                type=terminal.release,
            ),
            FROM,
            (
                flag(
                    "--continue",
                    "write what is solved, and go on to the next conflict",
                    dest="proceed",
                ),
                option(
                    "--skip REASON",
                    "leave this patch out of the release; REASON goes into its header, as a Gap",
                ),
                flag("--abort", "delete work/rebase-RELEASE/; what was written to the queue stays"),
                option(
                    "--newer DIR",
                    "say what the queue does on each release that is newer than the newest"
                    " pin, and write a report on each to DIR/RELEASE.md, in Markdown; no more",
                    nargs="?",
                    type=terminal.path,
                    const=False,
                ),
            ),
        ),
        DESCRIPTION,
    ),
)
