"""The command that makes wheels, and what commands of other packages share with it."""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..upstream import pins as pinning
from ..wheels import build
from . import paths, releases
from .entry import OUT


def add(commands: Any) -> None:
    """Add this module's commands to the parser's."""
    made = command(
        commands, "build", _build, "write a release's wheel with the queue on it to dist/"
    )
    made.add_argument(
        "--python",
        type=releases.python,
        default=f"{sys.version_info.major}.{sys.version_info.minor}",
        help="for this Python, as 3.12 (default: the one that runs this)",
    )
    made.add_argument(
        "--machine",
        type=releases.machine,
        default=platform.machine(),
        help="for this machine, x86_64 or aarch64 (default: this host's)",
    )
    made.add_argument(
        "--verbose", action="store_true", help="list the files that were added, changed and removed"
    )


def command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=text)
    made.set_defaults(run=run)
    made.add_argument(
        "revisions",
        nargs="*",
        metavar="VERSION",
        help=f"v0.5.9 or 0.5.9 (default: {paths.DEFAULT})",
    )
    made.add_argument(
        "--from",
        dest="origin",
        type=paths.place,
        metavar="PATH",
        help="take the release from this wheel or folder of wheels",
    )
    return made


def chosen_of(options: argparse.Namespace) -> tuple[pinning.Pins, list[pinning.Pin]]:
    pins = pinning.load(options.root)
    return pins, [pins.find(name) for name in options.revisions] or [pins.default]


def shown(options: argparse.Namespace, path: Path) -> str:
    return paths.shown(path.relative_to(options.root))


def _build(options: argparse.Namespace) -> int:
    for pin in chosen_of(options)[1]:
        started = time.monotonic()
        made = build.build(
            options.root,
            pin,
            build.Target(options.python, options.machine),
            options.origin,
            options.root / "dist",
        )
        OUT.print(
            f"{shown(options, made.path)}: version {made.version},"
            f" {time.monotonic() - started:.1f} s\nfrom {made.origin}\nsha256 {made.sha256}\n"
            f"tree {made.record['tree']['after']}"
        )
        kinds = (("added", made.added), ("changed", made.changed), ("removed", made.removed))
        for name in (
            f"{what}: {name}" for what, names in kinds if options.verbose for name in names
        ):
            OUT.print(f"  {name}")
        OUT.print(
            "files:"
            f" {', '.join(f'{len(names)} {what}' for what, names in kinds)}"
            f"{'' if options.verbose else ' (--verbose lists them)'}"
        )
        wheel = shlex.quote(shown(options, made.path))
        OUT.print(
            f"into an empty environment: `uv pip install --exclude-newer {pin.resolve_as_of}"
            f" --prerelease=allow {wheel}`"
        )
        OUT.print(f"next: `pip install --no-deps {wheel}`, over an installed sglang {pin.version}")
    return 0
