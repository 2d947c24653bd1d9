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
import random
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import to_builtins

from patchqueue.commands import paths
from patchqueue.files.tree import hash_listing, list_folder, list_package
from patchqueue.install import inplace, journal
from patchqueue.laying import quilt
from patchqueue.laying.apply import load_queue
from patchqueue.laying.selection import select
from patchqueue.laying.worktree import State, WorkTree, read_record
from patchqueue.queue import placed, series
from patchqueue.upstream import pins, source

from ..records import Figure
from ..store import put
from . import handover, newcomer, wheels

ROOT = Path(__file__).resolve().parents[3]

COPIED = ("series", "patches", "overlay", "upstream", "tests", "scripts", "noxfile.py")
REPEATS = 5
FIRST_MINUTES = 300  # seconds that a new user may need, with everything fetched and made anew
UNPINNED = "0.5.22"  # a release between two pins
OWN_FILES = {
    "work/notes.txt": b"mine\n",
    "work/mine/model.bin": bytes(range(256)) * 64,
    "work/.mine": b"",
    "notes.txt": b"mine too\n",
}


class Copy:
    """A copy of the project to be hard on."""

    def __init__(self, folder: Path, tag: str) -> None:
        self.root, self.tag = folder / "project", tag
        self.root.mkdir()
        for name in COPIED:
            original = ROOT / name
            (shutil.copytree if original.is_dir() else shutil.copy2)(original, self.root / name)
        if (ROOT / ".nox/tools").is_dir():
            (self.root / ".nox").mkdir()
            (self.root / ".nox/tools").symlink_to(ROOT / ".nox/tools")
        self.tree = self.root / "work" / tag
        for name, content in OWN_FILES.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_bytes(content)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start one command of the tool, as the leader of its own process group."""
        command = [sys.executable, "-m", "patchqueue", "--root", str(self.root), *words]
        environment = os.environ | {"PYTHONPATH": str(self.root / "scripts")}
        return subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str) -> float:
        """Run one command to its end: the seconds it took. Raises RuntimeError with its words when
        it fails."""
        started = time.monotonic()
        running = self.start(*words)
        said = running.communicate()[0]
        if running.returncode:
            raise RuntimeError(said)
        return time.monotonic() - started

    def remove_tree(self) -> None:
        shutil.rmtree(self.tree, ignore_errors=True)

    def change_queue(self, text: str) -> None:
        """Make the tree out of date: one more line in the header of a patch that is selected."""
        queue, _ = series.read(self.root)
        name = queue.select(pins.load(self.root).find(self.tag).version)[0].name
        path = self.root / "patches" / name
        head, mark, diff = path.read_text(encoding="utf-8").partition("\n--- ")
        longer = re.sub(
            r"(?m)^Description:.*\n(?: .*\n)*", lambda found: f"{found[0]} {text}\n", head, count=1
        )
        path.write_text(
            (longer if longer != head else f"{head}Description: {text} Nothing else.\n")
            + mark
            + diff,
            encoding="utf-8",
        )

    def queue_files(self) -> dict[str, bytes]:
        """Every file that a refresh may write."""
        files = (
            file
            for name in ("patches", "overlay")
            for file in (self.root / name).rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        )
        return {
            str(file.relative_to(self.root)): file.read_bytes()
            for file in (*files, self.root / "series", self.root / placed.FILE)
        }

    def set_queue(self, files: dict[str, bytes]) -> None:
        """Put these files there, and take away those that are not among them."""
        for name in self.queue_files().keys() - files.keys():
            (self.root / name).unlink()
        for name, content in files.items():
            (self.root / name).write_bytes(content)

    def edit_tree(self) -> None:
        """Edit a line that a patch for several releases adds, and an overlay file, in the work
        tree."""
        queue, _ = series.read(self.root)
        known = [pin.version for pin in pins.load(self.root).all]
        shared = {entry.name for entry in queue.entries if sum(map(entry.is_for, known)) > 1}
        patch = next(
            each
            for each in queue.select(pins.load(self.root).find(self.tag).version)
            if each.name in shared
        )
        added = next(
            line.text
            for hunk in patch.files[0].hunks
            for line in hunk.lines
            if line.kind == "+" and line.text.strip()
        )
        for path, line in (
            (patch.files[0].path, added.rstrip("\n")),
            (next(iter(queue.overlay)), ""),
        ):
            file = self.tree / path
            text = file.read_text(encoding="utf-8")
            file.write_text(
                text.replace(line, f"{line}  # edited", 1) if line else f"{text}# edited\n",
                encoding="utf-8",
            )

    def expected(self) -> str:
        """The hash of the tree that the queue makes now, from the replay alone: no tool that was
        killed had a part in it."""
        queue, _ = series.read(self.root)
        pin = pins.load(self.root).find(self.tag)
        return select(queue, pin).tree_after(source.fetch(pin, None))

    def tree_hash(self) -> str:
        return hash_listing(list_folder(self.tree))

    def state(self) -> State:
        return WorkTree(self.root, self.tag).inspect().state

    def harm(self, expected: str) -> list[str]:
        """What is not as it should be after a run that ended well."""
        found = [
            f"{name} was changed"
            for name, content in OWN_FILES.items()
            if (self.root / name).read_bytes() != content
        ]
        if self.tree_hash() != expected:
            found.append(f"tree hash is {self.tree_hash()}")
        record = read_record(self.tree)
        if not record or quilt.applied(self.tree) != [patch["name"] for patch in record["patches"]]:
            found.append("quilt's record is not the tree's")
        left = {path.name for path in (self.root / "work/.patchqueue").iterdir()} - {
            f"{self.tag}.lock",
            f"{self.tag}.sha256sum",
        }
        return found + [f"{name} was left" for name in sorted(left)]


def seconds(name: str, limit: float, measure: Callable[[], float]) -> Figure:
    """The median of a few runs. The processor's time is noted beside it: on a busy machine it tells
    waiting from work."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    times = [round(measure(), 2) for _ in range(REPEATS)]
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    middle, cpu = (
        statistics.median(times),
        (now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime) / REPEATS,
    )
    details = {
        "seconds": times,
        "median": middle,
        "cpu seconds of one": round(cpu, 2),
        "load": round(os.getloadavg()[0], 1),
    }
    return Figure(name, f"{middle:.2f} s", f"< {limit:g} s", middle < limit, details)


def apply_time(copy: Copy, options: argparse.Namespace) -> Figure:
    def once() -> float:
        copy.remove_tree()
        return copy.run("apply", copy.tag)

    copy.run("apply", copy.tag)  # warms the cache
    return seconds(f"apply {copy.tag}, warm cache", 5, once)


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


def kills(copy: Copy, options: argparse.Namespace) -> Figure:
    return _kills(
        copy,
        options.kills,
        "apply killed, then run again",
        lambda run: os.killpg(run.pid, signal.SIGKILL),
    )


def parent_kills(copy: Copy, options: argparse.Namespace) -> Figure:
    return _kills(
        copy,
        max(3, options.kills // 5),
        "only its parent killed",
        lambda run: os.kill(run.pid, signal.SIGKILL),
    )


def _kills(
    copy: Copy, rounds: int, name: str, kill: Callable[[subprocess.Popen[str]], None]
) -> Figure:
    """Kill an apply at moments spread over its whole running time; the next apply must make the
    very same tree.

    In turn there is no tree before, and one that is out of date, which is replaced in the end.
    Which tree is right the replay says.
    """
    copy.remove_tree()
    whole = statistics.median(
        [copy.run("apply", copy.tag, "--discard"), _timed_rebuild(copy), _timed_rebuild(copy)]
    )
    harm: list[str] = []
    moments: list[dict] = []
    for number in range(rounds):
        moment = whole * (number + random.random()) / rounds
        if number % 2:
            copy.change_queue(f"Round {number}.")
        else:
            copy.remove_tree()
        running = copy.start("apply", copy.tag)
        time.sleep(moment)
        in_time = running.poll() is None
        if in_time:
            kill(running)
        running.wait()
        state = copy.state()
        copy.run("apply", copy.tag)
        running.stdout.close()
        found = copy.harm(copy.expected()) + (
            []
            if state in (State.ABSENT, State.APPLIED)
            else [f"the kill left a tree that is {state}"]
        )
        harm += [f"at {moment:.2f} s: {what}" for what in found]
        moments.append(
            {"second": round(moment, 3), "was running": in_time, "tree then": str(state)}
        )
    hit = sum(moment["was running"] for moment in moments)
    return Figure(
        name,
        f"{rounds - len({what.split(':')[0] for what in harm})} of {rounds} right",
        f"{rounds}",
        not harm,
        {"whole": round(whole, 2), "hit": hit, "moments": moments, "harm": harm},
    )


def refresh_kills(copy: Copy, options: argparse.Namespace) -> Figure:
    """Kill a refresh at moments spread over its whole running time: the queue must be whole, the
    old or the new one.

    The edit is of a patch that several releases share, and of an overlay file. The next refresh
    must end with the new queue.
    """

    def prepare() -> None:
        copy.set_queue(before)
        copy.run("apply", copy.tag, "--discard")
        copy.edit_tree()

    before = copy.queue_files()
    prepare()
    whole = copy.run("refresh", copy.tag)
    after = copy.queue_files()
    harm: list[str] = [] if after != before else ["the edit did not change the queue"]
    moments: list[dict] = []
    for number in range(options.kills):
        prepare()
        moment = whole * (number + random.random()) / options.kills
        running = copy.start("refresh", copy.tag)
        time.sleep(moment)
        in_time = running.poll() is None
        if in_time:
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        copy.run("check")
        found = copy.queue_files()
        then = "old" if found == before else "new" if found == after else "broken"
        copy.run("refresh", copy.tag)
        if then == "broken" or copy.queue_files() != after:
            harm.append(
                f"at {moment:.2f} s: the queue was {then} and is"
                f" {'the new one' if copy.queue_files() == after else 'another'}"
            )
        moments.append({"second": round(moment, 3), "was running": in_time, "queue then": then})
    copy.set_queue(before)
    copy.remove_tree()
    hit = sum(moment["was running"] for moment in moments)
    return Figure(
        "refresh killed",
        f"{options.kills - len(harm)} of {options.kills} whole",
        f"{options.kills}",
        not harm,
        {"whole": round(whole, 2), "hit": hit, "moments": moments, "harm": harm},
    )


def _timed_rebuild(copy: Copy) -> float:
    copy.remove_tree()
    return copy.run("apply", copy.tag)


UNDERWAY = {"install": journal.State.INSTALLING, "uninstall": journal.State.REMOVING}


class Site:
    """The release of a copy's pin, installed as pip would leave it, byte code included: to be
    patched in place and killed."""

    def __init__(self, copy: Copy) -> None:
        self.copy, self.path = copy, copy.root.parent / "site-packages"
        shutil.rmtree(self.path, ignore_errors=True)
        self.pin = pins.load(copy.root).find(copy.tag)
        with zipfile.ZipFile(source.fetch(self.pin, None).archive) as wheel:
            wheel.extractall(self.path)
        subprocess.run(
            [sys.executable, "-m", "compileall", "-qq", str(self.path / "sglang")], check=False
        )
        self.words = ("--site-packages", str(self.path))
        self.before = self.files()
        self.run("install")
        self.after = self.files()
        self.run("uninstall")

    def start(self, verb: str) -> subprocess.Popen[str]:
        return self.copy.start(*verb.split(), *self.words)

    def run(self, verb: str) -> float:
        return self.copy.run(verb, *self.words)

    def files(self) -> dict[str, bytes]:
        """The package, pip's records of it, and whatever else lies there but the journal and byte
        code."""
        found = (path for path in self.path.rglob("*") if path.is_file() and path.suffix != ".pyc")
        names = {path.relative_to(self.path).as_posix(): path for path in found}
        return {
            name: path.read_bytes()
            for name, path in names.items()
            if journal.FOLDER not in name.split("/")[0]
        }

    def seen(self) -> dict[str, object]:
        """What a server would find that is started right now, before anything is made good."""
        now, touched = (
            self.files(),
            [
                name
                for name in self.before.keys() | self.after.keys()
                if self.before.get(name) != self.after.get(name)
            ],
        )
        patched, pristine = (
            sum(now.get(name) == files.get(name) for name in touched)
            for files in (self.after, self.before)
        )
        says_so = (
            now.get(inplace.LAST) == self.after.get(inplace.LAST) != self.before.get(inplace.LAST)
        )
        torn = len(touched) - patched - pristine
        return {
            "patched files": patched,
            "pristine files": pristine,
            "neither": torn,
            "a server would say it is patched": says_so,
        }

    def harm(self) -> tuple[str, list[str]]:
        """The state after the next call has made good what was left, and what is wrong with it."""
        tree, now = hash_listing(list_package(self.path)), self.files()
        if now == self.before:
            state, left = (
                "pristine",
                [journal.FOLDER] if (self.path / journal.FOLDER).exists() else [],
            )
        elif now == self.after:
            state, left = "patched", []
        else:
            state, left = "between", []
        wrong = [] if state != "between" else [f"tree is {tree}, neither pristine nor patched"]
        wrong += (
            [f"tree hash {tree} is not the pin's"]
            if state == "pristine" and tree != self.pin.tree
            else []
        )
        wrong += (
            [f"tree hash {tree} is not the replay's"]
            if state == "patched" and tree != self.copy.expected()
            else []
        )
        return state, wrong + [f"{name} was left" for name in left]


def install_time(copy: Copy, options: argparse.Namespace) -> Figure:
    site, back = Site(copy), []

    def once() -> float:
        took = site.run("install")
        back.append(round(site.run("uninstall"), 2))
        return took

    figure = seconds(f"install {copy.tag} in place", 5, once)
    figure.details["uninstall seconds"] = back
    return figure


def install_kills(copy: Copy, options: argparse.Namespace) -> Figure:
    """Kill install and uninstall in turn (SIGKILL to the process group); `install --verify` must
    then find one state or the other.

    A third of the moments is spread over the whole running time, the others over the milliseconds
    in which files are renamed.
    """
    site, seed = Site(copy), random.randrange(2**32)
    dice, harm, moments = random.Random(seed), [], []
    times = {verb: site.run(verb) for verb in UNDERWAY}
    measured = [{verb: _renaming_time(site, verb) for verb in UNDERWAY} for _ in range(REPEATS)]
    # on a busy machine the others are mostly waiting
    renaming = {verb: min(one[verb] for one in measured) for verb in UNDERWAY}
    for number in range(options.kills):
        verb, while_renaming = ("install", "uninstall")[number % 2], number // 2 % 3 > 0
        site.run("uninstall" if verb == "install" else "install")
        moment = (
            (number + dice.random()) / options.kills * (renaming if while_renaming else times)[verb]
        )
        running = site.start(verb)
        if while_renaming:
            _await_state(site, running, UNDERWAY[verb])
        _sleep(moment)
        in_time = running.poll() is None
        if in_time:
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        running.stdout.close()
        seen, said = site.seen(), site.start("install --verify").communicate()[0]
        state, wrong = site.harm()
        wrong += ["a file was torn"] if seen["neither"] else []
        wrong += (
            ["a server would say too early that it is patched"]
            if seen["a server would say it is patched"] and seen["pristine files"]
            else []
        )
        harm += [f"{verb} at {moment:.4f} s: {what}" for what in wrong]
        moments.append(
            {
                "verb": verb,
                "second": round(moment, 5),
                "while renaming": while_renaming,
                "was running": in_time,
                "then": seen,
                "made good": "cut short" in said,
                "afterwards": state,
            }
        )
    site.run("uninstall")
    harm += ["the release did not come back"] if site.files() != site.before else []
    right = options.kills - len({what.split(":")[0] for what in harm})
    counts = {
        "hit": sum(one["was running"] for one in moments),
        "made good": sum(one["made good"] for one in moments),
        "mixed before that": sum(
            bool(one["then"]["patched files"] and one["then"]["pristine files"]) for one in moments
        ),
    }
    return Figure(
        "install, uninstall killed",
        f"{right} of {options.kills} right",
        f"{options.kills}",
        not harm,
        {
            "seed": seed,
            "seconds": times,
            "renaming seconds": renaming,
            **counts,
            "moments": moments,
            "harm": harm,
        },
    )


def _renaming_time(site: Site, verb: str) -> float:
    """How long the package can be between its two states."""
    running = site.start(verb)
    _await_state(site, running, UNDERWAY[verb])
    started = time.monotonic()
    while _state(site) is UNDERWAY[verb]:
        pass
    took = time.monotonic() - started
    running.communicate()
    return took


def _state(site: Site) -> journal.State | None:
    try:
        return journal.State((site.path / journal.FOLDER / journal.STATE).read_text().strip())
    except (OSError, ValueError):
        return None


def _await_state(site: Site, running: subprocess.Popen[str], state: journal.State) -> None:
    while running.poll() is None and _state(site) is not state:
        pass


def _sleep(span: float) -> None:
    """To a fraction of a millisecond, which time.sleep is not good for."""
    end = time.monotonic() + span
    while (left := end - time.monotonic()) > 0:
        time.sleep(left - 0.01 if left > 0.02 else 0)


def two_at_once(copy: Copy, options: argparse.Namespace) -> Figure:
    copy.run("apply", copy.tag)
    expected, harm, waited = copy.tree_hash(), [], 0
    for number in range(REPEATS):
        copy.remove_tree()
        both = [copy.start("apply", copy.tag) for _ in range(2)]
        said = [run.communicate()[0] for run in both]
        waited += any("waiting" in text for text in said)
        harm += [
            f"round {number}: exit code {run.returncode}: {text[-400:]}"
            for run, text in zip(both, said)
            if run.returncode
        ]
        harm += [f"round {number}: {what}" for what in copy.harm(expected)]
    right = REPEATS - len({what.split(":")[0] for what in harm})
    return Figure(
        "two applies at once",
        f"{right} of {REPEATS} right",
        f"{REPEATS}",
        not harm,
        {"one waited": waited, "harm": harm},
    )


def bad_input(copy: Copy, options: argparse.Namespace) -> Figure:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/queue/test_broken_input.py",
    ]
    done = subprocess.run(command, cwd=copy.root, capture_output=True, text=True)
    found = re.findall(r"::test_refused\[(.+)\]$", done.stdout, re.MULTILINE)
    return Figure(
        "kinds of broken input tested", str(len(found)), ">= 30", len(found) >= 30, {"kinds": found}
    )


def rebase_time(copy: Copy, options: argparse.Namespace) -> Figure:
    """The report of the whole queue on a release that is not pinned, and the first conflict laid
    out."""

    def once() -> float:
        took = copy.run("rebase", UNPINNED)
        if (copy.root / f"work/rebase-{UNPINNED}").exists():
            copy.run("rebase", UNPINNED, "--abort")
        return took

    copy.run("rebase", UNPINNED)  # fetches its wheel
    copy.run("rebase", UNPINNED, "--abort")
    return seconds(f"rebase onto {UNPINNED}, first conflict laid out", 30, once)


def branches(copy: Copy, options: argparse.Namespace) -> Figure:
    """Release branches and pull requests on every pin, and `git am` of their mails."""
    known, queue = pins.load(ROOT), load_queue(ROOT)
    return _each(
        "git am of branches and pull requests",
        known.all,
        lambda pin, space: handover.measure(queue, known, pin, space),
    )


def installed_wheels(copy: Copy, options: argparse.Namespace) -> Figure:
    """Built wheels of the releases with GPU proofs, installed in their locked environments."""
    return _each(
        "installed wheels verify themselves",
        wheels.proven(pins.load(ROOT)),
        wheels.measure,
    )


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
    right = len(found) - len({what.split(":")[0] for what in harm})
    return Figure(
        name,
        f"{right} of {len(found)} pins",
        f"{len(found)}",
        not harm,
        {"pins": found, "harm": harm},
    )


def newcomer_time(copy: Copy, options: argparse.Namespace) -> Figure:
    """A new user on a fresh machine, once: from the clone to an installed sglang that is patched
    and verified."""
    with tempfile.TemporaryDirectory(prefix="queue-figures-newcomer-") as space:
        found = newcomer.told(
            newcomer.walk(pins.load(ROOT).find(copy.tag), Path(space), lambda line: None)
        )
    met = found["whole"] < FIRST_MINUTES and not found["answers"]
    return Figure(
        "new user: clone to a verified install",
        f"{found['whole']:.2f} s",
        f"< {FIRST_MINUTES} s",
        met,
        found,
    )


FIGURES: dict[str, Callable[[Copy, argparse.Namespace], Figure]] = {
    "apply": apply_time,
    "nox": nox_time,
    "check": check_time,
    "kills": kills,
    "parent-kills": parent_kills,
    "refresh-kills": refresh_kills,
    "two-at-once": two_at_once,
    "install": install_time,
    "install-kills": install_kills,
    "bad-input": bad_input,
    "rebase": rebase_time,
    "branches": branches,
    "wheels": installed_wheels,
    "newcomer": newcomer_time,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The words and options of `measure`."""
    parser.add_argument(
        "figures",
        nargs="*",
        metavar="FIGURE",
        help=f"which to measure: {', '.join(FIGURES)} (default: all)",
    )
    parser.add_argument(
        "--pin",
        default="",
        metavar="REVISION",
        help="the release to apply (default: the default pin)",
    )
    parser.add_argument(
        "--kills",
        type=int,
        default=25,
        metavar="N",
        help="how many moments to kill an apply at (default: 25)",
    )
    parser.add_argument(
        "--out",
        type=paths.path,
        metavar="FILE",
        help=(
            "write every number to this file, as JSON; figures that it has and that were not"
            " measured now stay"
        ),
    )


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
        before = (
            json.loads(options.out.read_text(encoding="utf-8")) if options.out.is_file() else {}
        )
        put(options.out, json.dumps(beside(before, _as_json(tag, measured)), indent=1) + "\n")
    return 0 if all(figure.met for figure in measured) else 1


def _show(figure: Figure) -> None:
    met = "yes" if figure.met else "NO"
    print(f"{figure.name:<40}{figure.shown:>16}{figure.limit:>10}  {met}", flush=True)
    for what in figure.details.get("harm", [])[:5]:
        print(f"  {what}")


def _as_json(tag: str, measured: Sequence[Figure]) -> dict:
    machine = {
        "cpus": os.cpu_count(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "python": platform.python_version(),
        "system": platform.system(),
    }
    return {"revision": tag, "machine": machine, "figures": to_builtins(measured)}


def beside(before: dict, now: dict) -> dict:
    """The new figures in the places of the old ones of the same name; old ones of another release
    or machine go."""
    new = {one["name"]: one for one in now["figures"]}
    alike = before.get("revision") == now["revision"] and _machine(before) == _machine(now)
    kept = before["figures"] if alike else []
    names = dict.fromkeys([*(one["name"] for one in kept), *new])
    old = {one["name"]: one for one in kept}
    return now | {"figures": [new.get(name) or old[name] for name in names]}


def _machine(found: dict) -> dict:
    return {name: value for name, value in found.get("machine", {}).items() if name != "load"}
