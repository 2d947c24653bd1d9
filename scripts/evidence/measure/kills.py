"""Neither a kill nor a second run harms a tree, the queue or an installed sglang."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from typing import Any

from patchqueue.files.tree import hash_listing, list_package
from patchqueue.install import changes, journal
from patchqueue.laying.worktree import State
from patchqueue.upstream import source

from ..records import Figure
from .copies import REPEATS, Copy, counted_right

UNDERWAY = {"install": journal.State.INSTALLING, "uninstall": journal.State.REMOVING}
Kill = Callable[[subprocess.Popen[str]], None]


def _group(running: subprocess.Popen[str]) -> None:
    os.killpg(running.pid, signal.SIGKILL)


def _parent(running: subprocess.Popen[str]) -> None:
    os.kill(running.pid, signal.SIGKILL)


def _struck(running: subprocess.Popen[str], moment: float, kill: Kill = _group) -> bool:
    """Kill a run after so many seconds, to a fraction of a millisecond: time.sleep alone would not
    do. Whether it still ran."""
    end = time.monotonic() + moment
    while (left := end - time.monotonic()) > 0:
        time.sleep(left - 0.01 if left > 0.02 else 0)
    in_time = running.poll() is None
    if in_time:
        kill(running)
    running.wait()
    return in_time


def _hits(moments: list[dict[str, Any]]) -> int:
    return sum(one["was running"] for one in moments)


def of_apply(copy: Copy, options: argparse.Namespace) -> Figure:
    return _of_apply(copy, options.kills, "apply killed, then run again", _group)


def of_parent(copy: Copy, options: argparse.Namespace) -> Figure:
    return _of_apply(copy, max(3, options.kills // 5), "only its parent killed", _parent)


def _of_apply(copy: Copy, rounds: int, name: str, kill: Kill) -> Figure:
    """Kill an apply at moments spread over its whole running time; the next apply must make the
    very same tree.

    In turn there is no tree before, and one that is out of date, which is replaced in the end.
    Which tree is right the replay says.
    """
    copy.remove_tree()
    times = [copy.run("apply", copy.tag, "--discard"), copy.rebuild(), copy.rebuild()]
    whole, harm, moments = statistics.median(times), [], []
    for number in range(rounds):
        moment = whole * (number + random.random()) / rounds
        if number % 2:
            copy.change_queue(f"Round {number}.")
        else:
            copy.remove_tree()
        running = copy.start("apply", copy.tag, output=subprocess.DEVNULL)
        in_time, state = _struck(running, moment, kill), copy.state()
        copy.run("apply", copy.tag)
        found = copy.harm(copy.expected())
        if state not in (State.ABSENT, State.APPLIED):
            found.append(f"the kill left a tree that is {state}")
        harm += [f"at {moment:.2f} s: {what}" for what in found]
        told = {"second": round(moment, 3), "was running": in_time, "tree then": str(state)}
        moments.append(told)
    details = {"whole": round(whole, 2), "hit": _hits(moments), "moments": moments}
    return counted_right(name, rounds, harm, details)


def of_refresh(copy: Copy, options: argparse.Namespace) -> Figure:
    """Kill a refresh at moments spread over its whole running time: the queue must be whole, the
    old or the new one.

    The edit is of a patch that several releases share, and of an overlay file. The next refresh
    must end with the new queue.
    """
    before = copy.queue_files()
    _edit(copy, before)
    whole = copy.run("refresh", copy.tag)
    after, moments = copy.queue_files(), []
    harm = [] if after != before else ["the edit did not change the queue"]
    for number in range(options.kills):
        _edit(copy, before)
        moment = whole * (number + random.random()) / options.kills
        running = copy.start("refresh", copy.tag, output=subprocess.DEVNULL)
        in_time = _struck(running, moment)
        copy.run("check")
        found = copy.queue_files()
        then = "old" if found == before else "new" if found == after else "broken"
        copy.run("refresh", copy.tag)
        made_good = copy.queue_files() == after
        if then == "broken" or not made_good:
            now = "the new one" if made_good else "another"
            harm.append(f"at {moment:.2f} s: the queue was {then} and is {now}")
        moments.append({"second": round(moment, 3), "was running": in_time, "queue then": then})
    copy.set_queue(before)
    copy.remove_tree()
    details = {"whole": round(whole, 2), "hit": _hits(moments), "moments": moments}
    return counted_right("refresh killed", options.kills, harm, details, "whole")


def _edit(copy: Copy, before: dict[str, bytes]) -> None:
    copy.set_queue(before)
    copy.run("apply", copy.tag, "--discard")
    copy.edit_tree()


class Site:
    """The release of a copy's pin, installed as pip would leave it, byte code included: to be
    patched in place and killed."""

    def __init__(self, copy: Copy) -> None:
        self.copy, self.path = copy, copy.root.parent / "site-packages"
        shutil.rmtree(self.path, ignore_errors=True)
        with zipfile.ZipFile(source.fetch(copy.pin, None).archive) as wheel:
            wheel.extractall(self.path)
        subprocess.run(
            [sys.executable, "-m", "compileall", "-qq", str(self.path / "sglang")], check=False
        )
        self.words = ("--site-packages", str(self.path))
        self.before = self.files()
        self.run("install")
        self.after = self.files()
        self.run("uninstall")

    def start(self, verb: str, output: int = subprocess.PIPE) -> subprocess.Popen[str]:
        return self.copy.start(*verb.split(), *self.words, output=output)

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

    def seen(self) -> dict[str, int | bool]:
        """What a server would find that is started right now, before anything is made good."""
        now, states = self.files(), (self.after, self.before)
        names = self.before.keys() | self.after.keys()
        touched = [name for name in names if self.before.get(name) != self.after.get(name)]
        patched, pristine = (
            sum(now.get(name) == files.get(name) for name in touched) for files in states
        )
        last, new, old = (files.get(changes.LAST) for files in (now, *states))
        return {
            "patched files": patched,
            "pristine files": pristine,
            "neither": len(touched) - patched - pristine,
            "a server would say it is patched": last == new != old,
        }

    def harm(self) -> tuple[str, list[str]]:
        """The state after the next call has made good what was left, and what is wrong with it."""
        tree, now = hash_listing(list_package(self.path)), self.files()
        if now == self.before:
            wrong = [] if tree == self.copy.pin.tree else [f"tree hash {tree} is not the pin's"]
            left = [journal.FOLDER] if (self.path / journal.FOLDER).exists() else []
            return "pristine", wrong + [f"{name} was left" for name in left]
        if now == self.after:
            right = tree == self.copy.expected()
            return "patched", [] if right else [f"tree hash {tree} is not the replay's"]
        return "between", [f"tree is {tree}, neither pristine nor patched"]


def of_install(copy: Copy, options: argparse.Namespace) -> Figure:
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
        span = (renaming if while_renaming else times)[verb]
        moment = (number + dice.random()) / options.kills * span
        told, wrong = _killed(site, verb, moment, while_renaming)
        moments.append(told)
        harm += [f"{verb} at {moment:.4f} s: {what}" for what in wrong]
    site.run("uninstall")
    harm += ["the release did not come back"] if site.files() != site.before else []
    mixed = [one["then"]["patched files"] and one["then"]["pristine files"] for one in moments]
    details = {
        "seed": seed,
        "seconds": times,
        "renaming seconds": renaming,
        "hit": _hits(moments),
        "made good": sum(one["made good"] for one in moments),
        "mixed before that": sum(map(bool, mixed)),
        "moments": moments,
    }
    return counted_right("install, uninstall killed", options.kills, harm, details)


def _killed(
    site: Site, verb: str, moment: float, while_renaming: bool
) -> tuple[dict[str, Any], list[str]]:
    """One kill: what came of it, and what is wrong then."""
    site.run("uninstall" if verb == "install" else "install")
    running = site.start(verb, subprocess.DEVNULL)
    if while_renaming:
        _await_state(site, running, UNDERWAY[verb])
    in_time = _struck(running, moment)
    seen, said = site.seen(), site.start("install --verify").communicate()[0]
    state, wrong = site.harm()
    if seen["neither"]:
        wrong.append("a file was torn")
    if seen["a server would say it is patched"] and seen["pristine files"]:
        wrong.append("a server would say too early that it is patched")
    told = {"verb": verb, "second": round(moment, 5), "while renaming": while_renaming}
    told |= {"was running": in_time, "then": seen, "made good": "cut short" in said}
    return told | {"afterwards": state}, wrong


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
    return counted_right("two applies at once", REPEATS, harm, {"one waited": waited})
