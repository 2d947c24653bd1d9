"""Measure the queue's promises on this machine: how fast it is, and that neither a kill nor a
second run harms a tree or an installed sglang.

It works on a copy of the project in a temporary folder, with the real cache; the project's own
work/ is not touched.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec import to_builtins
from msgspec.structs import replace

from patchqueue.commands import paths
from patchqueue.laying import quilt
from patchqueue.laying.apply import load_queue
from patchqueue.upstream import pins, source

from ..figures import load_tool
from ..records import Figure, Figures, Machine
from ..store import put
from . import edited, handover, kills, newcomer, wheels
from .copies import REPEATS, ROOT, Copy, counted_right

FIRST_MINUTES = 300  # seconds that a new user may need, with everything fetched and made anew
UNPINNED = "0.5.15"  # a release between two pins


def seconds(name: str, limit: float, measure: Callable[[], float]) -> Figure:
    """The median of a few runs. The processor's time is noted beside it: on a busy machine it tells
    waiting from work."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    times = [round(measure(), 2) for _ in range(REPEATS)]
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    middle = statistics.median(times)
    cpu = (now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime) / REPEATS
    details = {
        "seconds": times,
        "median": middle,
        "cpu seconds of one": round(cpu, 2),
        "load": round(os.getloadavg()[0], 1),
    }
    return Figure(name, f"{middle:.2f} s", f"< {limit:g} s", middle < limit, details)


def apply_time(copy: Copy, options: argparse.Namespace) -> Figure:
    copy.run("apply", copy.tag)  # warms the cache
    return seconds(f"apply {copy.tag}, warm cache", 5, copy.rebuild)


def nox_time(copy: Copy, options: argparse.Namespace) -> Figure:
    made = (copy.root / ".nox/tools").exists()
    command = [str(copy.root / "scripts/nox")] if made else [sys.executable, "-m", "nox"]

    def once() -> float:
        copy.remove_tree()
        started = time.monotonic()
        done = subprocess.run(
            [*command, "-s", "apply", "--", copy.tag], cwd=copy.root, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        return time.monotonic() - started

    return seconds(f"scripts/nox apply {copy.tag}", 5, once)


def check_time(copy: Copy, options: argparse.Namespace) -> Figure:
    count = len(pins.load(copy.root).all)
    copy.run("check")
    return seconds(f"check on all {count} pins, warm cache", 3, lambda: copy.run("check"))


def install_time(copy: Copy, options: argparse.Namespace) -> Figure:
    site, back = kills.Site(copy), []

    def once() -> float:
        took = site.run("install")
        back.append(round(site.run("uninstall"), 2))
        return took

    figure = seconds(f"install {copy.tag} in place", 5, once)
    figure.details["uninstall seconds"] = back
    return figure


def bad_input(copy: Copy, options: argparse.Namespace) -> Figure:
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    command = [*collect, "tests/queue/test_broken_input.py"]
    done = subprocess.run(command, cwd=copy.root, capture_output=True, text=True)
    found = re.findall(r"::test_refused\[(.+)\]$", done.stdout, re.MULTILINE)
    name, count = "kinds of broken input tested", len(found)
    return Figure(name, str(count), ">= 30", count >= 30, {"kinds": found})


def rebase_time(copy: Copy, options: argparse.Namespace) -> Figure:
    """The report of the whole queue on a release that is not pinned. Where a patch conflicts the
    first one is laid out too, and the rebase is given up."""

    def once() -> float:
        took = copy.run("rebase", UNPINNED)
        if (copy.root / f"work/rebase-{UNPINNED}").exists():
            copy.run("rebase", UNPINNED, "--abort")
        return took

    once()  # fetches its wheel
    return seconds(f"rebase onto {UNPINNED}, every patch told", 30, once)


def branches(copy: Copy, options: argparse.Namespace) -> Figure:
    """Release branches and pull requests on every pin, and `git am` of their mails."""
    known = pins.load(ROOT)
    measure = partial(handover.measure, load_queue(ROOT), known)
    return _each("git am of branches and pull requests", known.all, measure)


def installed_wheels(copy: Copy, options: argparse.Namespace) -> Figure:
    """Built wheels of the releases with GPU proofs, installed in their locked environments."""
    chosen = wheels.proven(pins.load(ROOT))
    return _each("installed wheels verify themselves", chosen, wheels.measure)


def _each(
    name: str, chosen: Sequence[pins.Pin], measure: Callable[[pins.Pin, Path], dict[str, object]]
) -> Figure:
    """What holds on each pin; every bool of a measurement is a claim."""
    found = {}
    for pin in chosen:
        with tempfile.TemporaryDirectory(prefix="queue-figures-pin-") as space:
            found[pin.tag] = measure(pin, Path(space))
    harm = [
        f"{tag}: {claim}"
        for tag, facts in found.items()
        for claim, value in facts.items()
        if value is False
    ]
    return counted_right(name, len(found), harm, {"pins": found}, "pins")


def newcomer_time(copy: Copy, options: argparse.Namespace) -> Figure:
    """A new user on a fresh machine, once: from the clone to an installed sglang that is patched
    and verified."""
    with tempfile.TemporaryDirectory(prefix="queue-figures-newcomer-") as space:
        found = newcomer.told(newcomer.walk(pins.load(ROOT).find(copy.tag), Path(space)))
    met = found["whole"] < FIRST_MINUTES and not found["answers"]
    shown, limit = f"{found['whole']:.2f} s", f"< {FIRST_MINUTES} s"
    return Figure("new user: clone to a verified install", shown, limit, met, found)


def edited_trees(copy: Copy, options: argparse.Namespace) -> Figure:
    """A tree with edits of others on every pin: patched, verified, upgraded, killed, given back."""
    known = pins.load(ROOT).all
    copy.change_queue("An older content of the queue.")
    with (copy.root / "overlay/python/sglang/srt/prefill_graph/__init__.py").open("a") as file:
        file.write("# An older content of the queue.\n")
    newer = dict(zip(known, [*known[1:], known[-2]]))

    def measured(pin: pins.Pin, space: Path) -> dict[str, object]:
        found = edited.measure(pin, newer[pin], copy, options.kills, space)
        print(edited.row(pin, found), flush=True)
        return found

    print(edited.HEAD, flush=True)
    return _each("edited trees given back", known, measured)


FIGURES: dict[str, Callable[[Copy, argparse.Namespace], Figure]] = {
    "apply": apply_time,
    "nox": nox_time,
    "check": check_time,
    "kills": kills.of_apply,
    "parent-kills": kills.of_parent,
    "refresh-kills": kills.of_refresh,
    "two-at-once": kills.two_at_once,
    "install": install_time,
    "install-kills": kills.of_install,
    "edited": edited_trees,
    "bad-input": bad_input,
    "rebase": rebase_time,
    "branches": branches,
    "wheels": installed_wheels,
    "newcomer": newcomer_time,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The words and options of `measure`."""
    add = parser.add_argument
    which = f"which to measure: {', '.join(FIGURES)} (default: all)"
    add("figures", nargs="*", metavar="FIGURE", help=which)
    applied = "the release to apply (default: the default pin)"
    add("--pin", default="", metavar="REVISION", help=applied)
    moments = "how many moments to kill an apply at (default: 25)"
    add("--kills", type=int, default=25, metavar="N", help=moments)
    kept = "figures that it has and that were not measured now stay"
    written = f"write every number to this file, as JSON; {kept}"
    add("--out", type=paths.file, metavar="FILE", help=written)


def measure(options: argparse.Namespace) -> int:
    """Measure, print a table, write the JSON. Exit code 1 when a figure misses its limit."""
    unknown = [name for name in options.figures if name not in FIGURES]
    if unknown:
        options.parser.error(f"no such figure: {', '.join(unknown)}")
    known = pins.load(ROOT)
    tag = (known.find(options.pin) if options.pin else known.default).tag
    quilt.find(source.cache_folder())
    measured = []
    with tempfile.TemporaryDirectory(prefix="queue-figures-") as folder:
        copy = Copy(Path(folder), tag)
        print(f"{'figure':<40}{'measured':>16}{'limit':>10}  met", flush=True)
        for name in options.figures or FIGURES:
            measured.append(FIGURES[name](copy, options))
            _show(measured[-1])
    if options.out:
        now = beside(load_tool(options.out), Figures(tag, _machine(), tuple(measured)))
        put(options.out, json.dumps(to_builtins(now), indent=1) + "\n")
    return 0 if all(figure.met for figure in measured) else 1


def _show(figure: Figure) -> None:
    met = "yes" if figure.met else "NO"
    print(f"{figure.name:<40}{figure.shown:>16}{figure.limit:>10}  {met}", flush=True)
    for what in figure.details.get("harm", [])[:5]:
        print(f"  {what}")


def _machine() -> Machine:
    load = tuple(round(load, 1) for load in os.getloadavg())
    return Machine(os.cpu_count() or 1, load, platform.python_version(), platform.system())


def beside(before: Figures | None, now: Figures) -> Figures:
    """The new figures in the places of the old ones of the same name; old ones of another release
    or machine go."""
    if before is None or _where(before) != _where(now):
        return now
    figures = {one.name: one for one in (*before.figures, *now.figures)}
    return replace(now, figures=tuple(figures.values()))


def _where(found: Figures) -> tuple[str, Machine]:
    return found.revision, replace(found.machine, load=())
