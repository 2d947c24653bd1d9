"""The whole queue against every pin, in memory: lint, strict replay, and what upstream has merged;
and the tree that it makes of each, compared with upstream/pins.toml or written there."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from packaging.version import Version

from ..files import atomic
from ..files.tree import hash_python
from ..outcome import Outcome, Problem, Refused, counted, to_type
from ..queue import series
from ..queue.edit import Change
from ..queue.edit import write as write_changes
from ..queue.header import PROFILES
from ..queue.series import Queue
from ..upstream import pins as pinning
from ..upstream import source
from ..upstream.pins import Pin
from ..upstream.source import Source
from .apply import finish_writing, load_queue
from .matching import Row, listing_with
from .selection import Finding, Selection, probe, select

LOG = logging.getLogger(__name__)
LIBC, PR_SET_PDEATHSIG = ctypes.CDLL(None), 1
WRITE = f"{to_type('check', '--write')} writes it"


@dataclass(frozen=True)
class PinReport:
    """One pin: the replay, what the release has of every patch, and all problems."""

    pin: Pin
    steps: tuple[Row, ...]
    findings: tuple[Finding, ...]
    problems: tuple[Problem, ...]
    tree: str = ""

    @property
    def outcome(self) -> Outcome:
        bad = [step.outcome for step in self.steps if not step.outcome.good]
        return bad[0] if bad else Outcome.APPLIED if self.steps else Outcome.EMPTY


@dataclass(frozen=True)
class CheckReport:
    """problems: those of the queue itself, found before any pin was looked at."""

    pins: tuple[PinReport, ...]
    problems: tuple[Problem, ...]

    @property
    def all_problems(self) -> tuple[Problem, ...]:
        return (*self.problems, *(problem for report in self.pins for problem in report.problems))


def check(root: Path, pins: Iterable[Pin]) -> CheckReport:
    """Lint the queue and replay it on each pin. Raises Refused where a source cannot be had."""
    finish_writing(root)
    queue, problems = series.read(root)
    problems += series.lint(root, queue)
    now = {pin.version: pin for pin in pinning.load(root).all}
    pins = [now.get(pin.version, pin) for pin in pins]  # a killed run may have been finished above
    lacking = [pin for pin in pins if not source.is_cached(pin)]
    if len(lacking) > 1:
        LOG.info(
            f"{counted(len(lacking), 'release')} to fetch first, once: about {15 * len(lacking)} MB"
        )
    for pin in lacking:  # one at a time: the cache has one lock
        source.fetch(pin, None)
    with ThreadPoolExecutor() as threads:  # hashing the archives leaves the interpreter free
        sources = list(threads.map(lambda pin: source.fetch(pin, None), pins))
    with _processes() as processes:  # reading their directories does not
        carried = any(pin.patched for pin in now.values())
        reports = tuple(processes.map(partial(_one, queue, carried), sources))
    return CheckReport(reports, tuple(problems))


def _processes() -> ProcessPoolExecutor:
    """Workers that the kernel ends with this process, however it ends (Linux)."""
    fork, own = get_context("fork"), (os.getpid(),)
    return ProcessPoolExecutor(mp_context=fork, initializer=_end_with, initargs=own)


def _end_with(parent: int) -> None:
    if hasattr(LIBC, "prctl"):
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended meanwhile
        os._exit(1)


def _one(queue: Queue, carried: bool, pristine: Source) -> PinReport:
    """The report on one release. carried: others have a patched tree in pins.toml."""
    pin = pristine.pin
    findings = tuple(probe(queue, pin, pristine.read))
    problems = [finding.problem for finding in findings if finding.problem]
    try:
        selection = select(queue, pin)
    except Refused as refusal:
        return PinReport(pin, (), findings, (*problems, *refusal.problems))
    replayed = selection.replay(pristine.read)
    if not replayed.problems:
        tree = hash_python(listing_with(pristine.listing(), replayed.files))
        problems = [*_pinned(pin, tree), *_profiles(queue, pristine), *problems]
        return PinReport(pin, replayed.steps, findings, tuple(problems), tree)
    own_problems = replayed.problems
    bad = sum(not step.outcome.good for step in replayed.steps)
    if bad and carried and not pin.patched:  # one problem in place of one for each hunk
        count = counted(len(replayed.steps), "patch", "patches")
        what = "is pinned, and the queue is not carried to it:"
        what += f" {bad} of {count} to refresh or to solve"
        step = f"{to_type('rebase', pin.version)} sorts them"
        own_problems = (Problem("not-carried", pin.tag, what, step),)
    return PinReport(pin, replayed.steps, findings, (*own_problems, *problems))


def _pinned(pin: Pin, tree: str) -> Iterator[Problem]:
    """How the tree differs from what upstream/pins.toml says."""
    where = f"{pinning.FILE}: {pin.version}"
    if not pin.patched:
        what = f"names no patched tree; it is {tree}"
        yield Problem("no-tree-pinned", where, what, WRITE)
    elif pin.patched != tree:
        what = f"the queue makes the tree {tree}, and patched is {pin.patched}"
        step = f"where that is meant, {WRITE}; else `git diff` shows what changed"
        yield Problem(str(Outcome.TREE_MISMATCH), where, what, step)


def _profiles(queue: Queue, pristine: Source) -> Iterator[Problem]:
    """Why the patches of a profile do not apply alone, or lack one that they need."""
    pin = pristine.pin
    released = {queue.base(patch.name) for patch in queue.select(pin.version)}
    for profile in PROFILES:
        selection = Selection(queue.only(profile), pin)
        kept = {queue.base(patch.name) for patch in selection.patches}
        for problem in selection.replay(pristine.read).problems:
            step = "use fewer context lines, or set Profile: the context is another profile's"
            yield replace(problem, what=f"with --only {profile}: {problem.what}", hint=step)
        for patch in selection.patches:
            for needed in sorted(released.intersection(queue.header(patch.name).needs) - kept):
                what = f"with --only {profile}: needs {needed}, which is not in the profile"
                step = "add the profile to that one's header, or remove it here"
                yield Problem("profile", f"patches/{patch.name} on {pin.tag}", what, step)


def write(root: Path, chosen: Iterable[Pin]) -> list[Change]:
    """Write the trees that the queue makes of these releases. Raises Refused."""
    finish_writing(root)
    with atomic.locked(root / atomic.QUEUE_LOCK):
        queue = load_queue(root)
        trees = {
            pin.version: Selection(queue, pin).patched_tree(source.fetch(pin, None))
            for pin in chosen
            if queue.select(pin.version)
        }
        changes = change_of(root, trees)
        write_changes(root, changes)
        return changes


def change_of(root: Path, trees: Mapping[Version, str]) -> list[Change]:
    """The change of upstream/pins.toml that gives these releases these trees, if any."""
    old = (root / pinning.FILE).read_text(encoding="utf-8")
    new = pinning.with_patched(old, trees)
    return [Change(str(pinning.FILE), new.encode(), "trees")] if new != old else []
