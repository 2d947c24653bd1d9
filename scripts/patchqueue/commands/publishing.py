"""The commands that release the queue: its files, its tag, and the package index of its wheels."""

from __future__ import annotations

import argparse
import datetime
import time
from pathlib import Path
from typing import Any

from .. import RELEASE
from ..hint import counted, to_type
from ..laying.apply import finish_writing
from ..outcome import Refused
from ..publishing import cutting, index
from ..publishing.assets import Choice, Made
from ..queue import released
from ..upstream import pins as pinning
from ..upstream.pins import Pins
from . import idle, paths, releases
from .releases import tell

MB = 10**6
DOWNLOADS = "releases/download"  # below a repository on GitHub: where a release's files are


def add(commands: Any) -> None:
    """Add this module's commands to the parser's."""
    made = releases.command(
        commands,
        "release",
        _release,
        "make the files of a release of the queue in dist/release-N/: wheels, patch files, sums",
        "every pinned release",
        cut="also write releases/N.toml and the heading in CHANGELOG.md, commit them, and tag it",
        next="begin the next release instead, where this one was cut: its number and its heading",
    )
    for name, kind, what in (
        ("python", releases.python, "Python, as 3.12"),
        ("machine", releases.machine, "machine, x86_64 or aarch64"),
    ):
        made.add_argument(
            f"--{name}",
            type=kind,
            action="append",
            default=[],
            help=f"only wheels for this {what}; more than once for several (default: all)",
        )
    made.add_argument("--tag", default="", help="refuse unless this is the tag of a cut release")
    _add_index(commands)


def _add_index(commands: Any) -> None:
    made = commands.add_parser("index", help="write a package index, for pip and uv, of wheels")
    made.set_defaults(run=_index)
    made.add_argument(
        "folder",
        nargs="?",
        metavar="FOLDER",
        type=paths.path,
        help="of the wheels in this folder (default: of all that releases/*.toml name)",
    )
    made.add_argument(
        "--out",
        metavar="DIR",
        type=paths.path,
        help="write simple/ there (default: in FOLDER, or dist/index)",
    )
    made.add_argument(
        "--url",
        default="",
        help="where the wheels are served (default: beside the index, or the release's assets)",
    )


def _release(options: argparse.Namespace) -> int:
    if options.next:
        beside = "beside --next, which builds nothing"
        idle.refuse(options, beside, "--cut", "--tag", "--python", "--machine")
        return _begin(options)
    pins = pinning.load(options.root)
    chosen = releases.chosen(options, pins, pins.all)
    choice = Choice(chosen, options.python, options.machine)
    started = time.monotonic()
    if options.cut:
        idle.refuse(options, "beside --cut, which makes the tag", "--tag")
        return _cut(options.root, pins, choice, started)
    if options.tag:
        cutting.refuse_tag(options.root, options.tag)
    made, found = cutting.rebuild(options.root, choice)
    _show(made, options.root, started)
    if found:
        tagged = f" as {options.tag}" if options.tag else ""
        tell(f"every file is that of release {RELEASE}, cut on {found.day}{tagged}")
    else:
        tell(f"release {RELEASE} is not cut: keep these files to yourself")
    folder = releases.relative(made.folder, options.root)
    step = to_type("index", folder) if found else to_type("release", "--cut")
    what = "makes a package index of them" if found else "cuts it, from a repository without edits"
    tell(f"next: {step} {what}")
    return 0


def _show(made: Made, root: Path, started: float) -> None:
    wheels = sum(len(each.wheels) for each in made.revisions)
    tell(
        f"{releases.relative(made.folder, root)}: {counted(wheels, 'wheel')},"
        f" {counted(len(made.revisions), 'patch file')}, {made.bytes / MB:.1f} MB,"
        f" {time.monotonic() - started:.1f} s"
    )


def _cut(root: Path, pins: Pins, choice: Choice, started: float) -> int:
    done = cutting.cut(root, pins, choice, datetime.datetime.now(datetime.timezone.utc).date())
    _show(done.made, root, started)
    tell(f"commit {done.commit[:12]}, tag {done.tag}: release {RELEASE} of the queue")
    tell(f"next: `git push origin HEAD {done.tag}`; the workflow release.yml publishes it")
    return 0


def _begin(options: argparse.Namespace) -> int:
    if options.words:
        step = f"type {to_type('release', '--next')} alone"
        raise Refused.of("bad-words", options.words[0], "does nothing beside --next", step)
    for name in cutting.begin(options.root, RELEASE):
        tell(f"{name}: release {RELEASE + 1}")
    tell(f"next: {to_type('check')}, and commit it with the first change")
    return 0


def _index(options: argparse.Namespace) -> int:
    out = options.out or options.folder or options.root / "dist/index"
    if options.folder:
        linked = index.of_folder(options.folder, options.url, out)
    else:
        linked = index.of_releases(*_released(options))
    made = index.write(linked, out)
    tell(
        f"{releases.relative(made.folder / index.FOLDER, options.root)}: links to"
        f" {counted(made.wheels, 'wheel')}: {' '.join(made.versions)}"
    )
    step = f"`pip install --extra-index-url URL/simple sglang=={made.versions[0]}`"
    tell(f"next: serve it, then {step}")
    return 0


def _released(options: argparse.Namespace) -> tuple[list[released.Release], str]:
    """The releases that were cut, and where their files are."""
    finish_writing(options.root)
    cut = released.every(options.root)
    if not cut:
        step = f"name a folder with wheels, or cut one: {to_type('release', '--cut')}"
        raise Refused.of("not-cut", str(released.FOLDER), "names no release of the queue", step)
    address = released.repository(options.root)
    if not options.url and not address:
        what, step = (
            "has no repository, so that nobody knows where the wheels are",
            "name it: --url",
        )
        raise Refused.of("no-address", str(released.ABOUT), what, step)
    return cut, options.url or f"{address}/{DOWNLOADS}"
