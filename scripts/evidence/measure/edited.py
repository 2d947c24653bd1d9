"""An sglang with edits of others, on every pin: patched, verified, upgraded and taken back, killed
in between; and each kind of foreign edit laid, or refused by name.

The tree is the release with 40 files of the next pinned release, and with lines of its own in files
that the queue changes. All of it lies in a temporary folder.
"""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from patchqueue.files.tree import list_package
from patchqueue.install import changes, inplace, installed, journal
from patchqueue.laying.apply import load_queue
from patchqueue.laying.selection import Selection, select
from patchqueue.outcome import Outcome, Refused
from patchqueue.queue.patchfile import CONTEXT
from patchqueue.upstream import pins, source

from .copies import ROOT, Copy

PREFIX = "python/"
FOREIGN = 40  # whole files that are another release's
Edit = Callable[[Path], None]


@dataclass(frozen=True)
class Target:
    """A hunk of the queue, alone in its part of a file. path: below the folder; first, end: the
    lines (0-based) that it covers; alone: one where no other hunk of the file stands above."""

    path: str
    first: int
    end: int


class Site:
    """A release with edits of others, installed, and two contents of the queue to lay on it."""

    def __init__(self, pin: pins.Pin, newer: pins.Pin, older: Copy, space: Path) -> None:
        self.pin, self.path, self.queues = pin, space / "site", (older.root, ROOT)
        self.selection = select(load_queue(ROOT), pin)
        self.pristine = source.fetch(pin, None)
        with zipfile.ZipFile(self.pristine.archive) as wheel:
            wheel.extractall(self.path)
        subprocess.run(
            [sys.executable, "-m", "compileall", "-qq", str(self.path / "sglang/srt/models")],
            check=False,
        )
        self.target = target(self.selection, self.path)
        self.release = list_package(self.path)
        self.newer = source.fetch(newer, None)

    def fork(self) -> None:
        """Edit it as a fork does."""
        for edit in laid(self).values():
            edit(self.path)
        for path in sorted({file.path for patch in self.selection.patches for file in patch.files}):
            name = path.removeprefix(PREFIX)
            _lines(name, lambda lines: ["# theirs\n", *lines, "\n# theirs\n"])(self.path)
        touched, listed = self.selection.touched, sorted(self.newer.listing().items())
        free = (
            path
            for path, digest in listed
            if path.endswith(".py") and path not in touched and self.release.get(path) != digest
        )
        for path in [path for path in free if path in self.release][:FOREIGN]:
            text = self.newer.read(path) or b""
            (self.path / path.removeprefix(PREFIX)).write_bytes(text)


def target(selection: Selection, site: Path) -> Target:
    """The first hunk that is far enough from others: 30 lines above, and 12 to the next one."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for patch in selection.patches:
        for file in patch.files:
            for hunk in file.hunks:
                first = hunk.old_start - 1
                spans.setdefault(file.path, []).append((first, first + len(hunk.old)))
    for path, found in sorted(spans.items()):
        first, end = min(found)
        lines = (site / path.removeprefix(PREFIX)).read_text(encoding="utf-8").splitlines()
        others = [begin for begin, _ in found if (begin, _) != (first, end)]
        if first > 30 and all(begin > end + 12 for begin in others) and len(lines) > end + 12:
            return Target(path.removeprefix(PREFIX), first, end)
    raise RuntimeError(f"{selection.pin.tag}: no hunk is far enough from others")


def _lines(name: str, change: Callable[[list[str]], list[str]]) -> Edit:
    """An edit of a file's lines. The file is a new one: the old one may be linked elsewhere."""

    def make(site: Path) -> None:
        file = site / name
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        file.unlink()
        file.write_text("".join(change(lines)), encoding="utf-8")

    return make


def _beside(at: int) -> Callable[[list[str]], list[str]]:
    """A line of their own in the same function."""

    def make(lines: list[str]) -> list[str]:
        indent = len(lines[at]) - len(lines[at].lstrip())
        return [*lines[:at], f"{' ' * indent}# theirs\n", *lines[at:]]

    return make


def _untouched(site: Site) -> Iterator[str]:
    touched = site.selection.touched
    names = (path for path in sorted(site.release) if path.startswith("python/sglang/srt/models/"))
    return (path.removeprefix(PREFIX) for path in names if path not in touched)


def laid(site: Site) -> dict[str, Edit]:
    """Foreign edits that leave every hunk its place, by kind."""
    at, untouched = site.target, _untouched(site)
    changed, gone = next(untouched), next(untouched)
    return {
        "before ours": _lines(at.path, lambda lines: ["# theirs\n", "\n", *lines]),
        "after ours": _lines(at.path, lambda lines: [*lines, "\n# theirs\n"]),
        "same function": _lines(at.path, _beside(at.end + CONTEXT + 2)),
        "moved lines": _lines(at.path, lambda lines: [*lines[20:], *lines[:20]]),
        "new file": lambda path: _write(path / "sglang/srt/theirs.py", "theirs = 1\n"),
        "file we do not touch": _lines(changed, lambda lines: [*lines, "# theirs\n"]),
        "file we do not touch gone": lambda path: (path / gone).unlink(),
    }


def refused(site: Site) -> dict[str, tuple[Edit, str]]:
    """Foreign edits that take a hunk its place, by kind, and what the refusal says of it."""
    at, own = site.target, f"{PREFIX}{site.target.path}"
    inside = at.first + (at.end - at.first) // 2
    new = next(path for path in site.selection.overlay if path.endswith("/__init__.py"))

    def edited(lines: list[str]) -> list[str]:
        return [*lines[:inside], lines[inside].rstrip("\n") + "  # theirs\n", *lines[inside + 1 :]]

    return {
        "inside ours": (_lines(at.path, edited), f"{own}: hunk "),
        "our file gone": (lambda path: (path / at.path).unlink(), f"{own}: the queue changes"),
        "our lines twice": (_lines(at.path, lambda lines: lines * 2), f"{own}: hunk "),
        "a file with our name": (
            lambda path: _write(path / new.removeprefix(PREFIX), "theirs = 1\n"),
            f"the queue adds {new}",
        ),
    }


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def exactly(folder: Path) -> dict[str, object]:
    """All that a folder holds: bytes, modes and times of its files."""
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        content = (path.read_bytes(), status.st_mtime_ns) if path.is_file() else "folder"
        found[path.relative_to(folder).as_posix()] = (content, stat.S_IMODE(status.st_mode))
    return found


def kinds(site: Site) -> dict[str, str]:
    """What an install would do about each kind alone: "laid", "refused", or what was wrong."""
    found, known = {}, pins.load(ROOT)
    every = {**{name: (edit, "") for name, edit in laid(site).items()}, **refused(site)}
    before = {path: (site.path / path).read_bytes() for path in _names(site.path)}
    for name, (edit, said) in every.items():
        edit(site.path)
        try:
            here = installed.find(site.path)
            told = installed.recognise(here, known, lambda _: site.selection.touched)
            changes.plan(site.selection, here, told)
            found[name] = "laid, and should be refused" if said else "laid"
        except Refused as refusal:
            right = said and said in str(refusal)
            found[name] = "refused" if right else str(refusal.problems[0])
        _restore(site.path, before)
    return found


def _names(site: Path) -> set[str]:
    files = (site / "sglang").rglob("*")
    return {path.relative_to(site).as_posix() for path in files if path.is_file()}


def _restore(site: Path, before: dict[str, bytes]) -> None:
    for name in _names(site) - before.keys():
        (site / name).unlink()
        if not any((site / name).parent.iterdir()):
            (site / name).parent.rmdir()
    for name, content in before.items():
        if not (site / name).is_file() or (site / name).read_bytes() != content:
            (site / name).unlink(missing_ok=True)
            (site / name).write_bytes(content)


def measure(pin: pins.Pin, newer: pins.Pin, older: Copy, kills: int, space: Path) -> dict[str, Any]:
    """What came out on one pin; a bool is a claim that must be true."""
    site = Site(pin, newer, older, space)
    each = kinds(site)
    site.fork()
    before, (old, new) = exactly(site.path), site.queues
    known = {"release": list_package(site.path)}
    seconds = {}
    for name, root, verb in (
        ("install", old, inplace.install),
        ("verify", old, inplace.verify),
        ("upgrade", new, inplace.install),
        ("uninstall", new, inplace.uninstall),
    ):
        started = time.monotonic()
        report = verb(root, site.path)
        seconds[name] = round(time.monotonic() - started, 2)
        known[name] = list_package(site.path)
        if name == "upgrade":
            found = {"edited": len(report.before), "moved": report.record["moved"]}
        if name == "verify":
            clean = not report.faults and not report.others
    killed = _killed(site, known, kills, seconds)
    return {
        **found,
        "seconds": seconds,
        "kinds": each,
        "kinds as they should be": {*each.values()} == {"laid", "refused"},
        "verified": clean and known["upgrade"] != known["install"],
        **killed,
        "byte for byte": exactly(site.path) == before,
    }


def _killed(
    site: Site, known: dict[str, dict[str, str]], kills: int, seconds: dict[str, float]
) -> dict[str, Any]:
    """Kill installs, upgrades and uninstalls in turn; `verify` must then find one of the states."""
    dice, (old, new) = random.Random(int(site.pin.version.micro)), site.queues
    turns = (("install", old), ("install", new), ("uninstall", new))
    states = (known["release"], known["install"], known["upgrade"])
    hit = mixed = 0
    wrong = []
    for number in range(kills):
        verb, root = turns[number % 3]
        child = _start(partial(getattr(inplace, verb), root, site.path))
        whole = seconds["upgrade" if number % 3 == 1 else verb]
        _wait(site.path, child, number, whole * dice.random(), dice.random())
        hit += _strike(child)
        mixed += list_package(site.path) not in states
        report = inplace.verify(new, site.path)
        if report.faults or report.others or list_package(site.path) not in states:
            wrong.append(f"{verb}, round {number}: {report.faults[:3]}")
        if report.outcome is Outcome.APPLIED and number % 3 == 2:
            inplace.uninstall(new, site.path)
    inplace.uninstall(new, site.path)
    return {"kills": kills, "hit": hit, "mixed": mixed, "made good": not wrong, "wrong": wrong}


def _start(call: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            call()
        finally:
            os._exit(0)
    return child


def _wait(site: Path, child: int, number: int, moment: float, part: float) -> None:
    """Up to the moment of the kill: every other one while files are renamed, some milliseconds."""
    state, end = site / journal.FOLDER / journal.STATE, time.monotonic() + 60
    if number % 2:
        time.sleep(moment)
        return
    while time.monotonic() < end and not _ended(child):
        try:
            if state.read_text(encoding="utf-8").strip() in ("installing", "removing"):
                time.sleep(part * 0.03)
                return
        except OSError:
            pass


def _ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _strike(child: int) -> bool:
    """Kill it; whether it still ran."""
    running = not _ended(child)
    if running:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return running


HEAD = (
    f"{'release':<14}{'files':>6}{'moved':>6}{'install':>8}{'verify':>7}{'upgrade':>8}{'back':>6}"
    f"{'laid':>6}{'refused':>8}{'hit':>6}{'mixed':>6}  right"
)


def row(pin: pins.Pin, found: dict[str, Any]) -> str:
    """A pin's line of the table: files that others edited, hunks that moved, seconds, kinds of
    edits that were laid and refused, kills that hit, and those that left files of both states."""
    states, seconds = [*found["kinds"].values()], found["seconds"]
    times = f"{seconds['install']:>8}{seconds['verify']:>7}{seconds['upgrade']:>8}"
    right = all(value is not False for value in found.values())
    return (
        f"{pin.tag:<14}{found['edited']:>6}{found['moved']:>6}{times}{seconds['uninstall']:>6}"
        f"{states.count('laid'):>6}{states.count('refused'):>8}"
        f"{found['hit']:>3}/{found['kills']}{found['mixed']:>6}  {'yes' if right else 'NO'}"
    )
