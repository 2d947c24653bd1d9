"""Play a new user on a fresh machine: from `git clone` to an installed sglang that is patched,
verified, and taken back.

An empty home, so no cache and no environment of the tool. The sglang to be patched is the release's
own wheel, unpacked without what it requires, before the clock starts. Each command gets an open
standard input: what it reads from there is an answer that it asked for. It works on what is
committed, in a temporary folder; nothing of this clone is written.
"""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from patchqueue.files.run import find_uv
from patchqueue.upstream import pins

from .copies import ROOT

WIDTH = 80
ANSWERS = 500  # lines that wait on standard input
OWN = ("PYTHON", "PATCHQUEUE", "XDG_", "GIT_", "NOX", "VIRTUAL_ENV", "UV_CACHE", "PIP_CACHE")


@dataclass(frozen=True)
class Walked:
    """One command. lines: printed, folded at 80 columns; answers: lines that it read from standard
    input.

    chosen: the words that a page leaves to the user.
    """

    command: str
    seconds: float
    lines: int
    answers: int
    chosen: tuple[str, ...]


class Failed(RuntimeError):
    """A command of the walk ended with an error; what it printed."""


def walk(pin: pins.Pin, space: Path) -> list[Walked]:
    """Every step of the new user, in `space`. Raises Failed at the first that fails."""
    home, queue = space / "home", space / "home/queue"
    home.mkdir()
    site = installed(pin, space)
    shown = shlex.quote(str(site))
    steps = (
        (f"git clone {ROOT.as_uri()} queue", home, ()),
        (f"scripts/nox apply {pin.tag}", queue, (pin.tag,)),
        (f"scripts/nox install --site-packages {shown}", queue, ("DIR",)),
        (f"scripts/nox install --site-packages {shown} --verify", queue, ()),
        (f"{listed(site)} | sha256sum --check --quiet", site, ()),
        (f"scripts/nox uninstall --site-packages {shown}", queue, ()),
    )
    walked = []
    for command, folder, chosen in steps:
        name = command.replace(shown, "DIR").replace(ROOT.as_uri(), "REPOSITORY")
        walked.append(typed(name, command, folder, home, chosen))
    return walked


def installed(pin: pins.Pin, space: Path) -> Path:
    """The release's wheel alone, installed: what the queue patches are its files."""
    site = space / "site-packages"
    words = [find_uv(), "pip", "install", "--quiet", "--no-deps", "--python-version", "3.12"]
    words += ["--python-platform", "x86_64-manylinux_2_34", "--target", str(site)]
    subprocess.run([*words, f"sglang=={pin.version}"], check=True)
    return site


def listed(site: Path) -> str:
    """docs/install.md's way to verify without Python."""
    listing = site / "sglang/srt/prefill_graph/tree.sha256"
    return f"sed 's|  python/|  |' {shlex.quote(str(listing))}"


def typed(name: str, command: str, folder: Path, home: Path, chosen: Sequence[str] = ()) -> Walked:
    """Run one command as if typed into a terminal of 80 columns, in `folder`, with `home`. name:
    how it is shown."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(OWN)}
    reading, writing = os.pipe()
    os.write(writing, b"\n" * ANSWERS)
    os.close(writing)
    started = time.monotonic()
    with os.fdopen(reading, "rb", buffering=0) as answers:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=folder,
            env=kept | {"HOME": str(home), "COLUMNS": str(WIDTH)},
            stdin=answers,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        seconds = time.monotonic() - started
        left = len(answers.read(ANSWERS))
    if done.returncode:
        raise Failed(f"{command} ended with {done.returncode}:\n{done.stdout}")
    lines = folded(done.stdout)
    return Walked(name, round(seconds, 2), lines, ANSWERS - left, tuple(chosen))


def folded(text: str) -> int:
    """How many lines of a terminal of 80 columns a text takes."""
    return sum(max(1, math.ceil(len(line) / WIDTH)) for line in text.splitlines())


def told(walked: Sequence[Walked]) -> dict[str, Any]:
    """The walk as a figure's details."""
    return {
        "whole": round(sum(one.seconds for one in walked), 2),
        "answers": sum(one.answers for one in walked),
        "decisions": [word for one in walked for word in one.chosen],
        "steps": [asdict(one) for one in walked],
        "load": round(os.getloadavg()[0], 1),
    }
