"""The whole queue against every pin, in memory: lint, strict replay, the tree that is pinned, and
what upstream has merged."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import Thread

from ..hint import counted, to_type
from ..outcome import Outcome, Problem, Refused
from ..queue import series
from ..queue.lint import lint
from ..queue.series import Queue
from ..upstream import pins as pinning
from ..upstream import source
from ..upstream.pins import Pin
from ..upstream.source import Source
from .apply import finish_writing
from .patched import problem_of, tree_with
from .probe import Finding, probe
from .replay import Step
from .selection import select

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class PinReport:
    """One pin: what the replay made of each selected patch, where every patch stands upstream, and
    all problems; tree: the hash of the patched tree."""

    pin: Pin
    steps: tuple[Step, ...]
    findings: tuple[Finding, ...]
    problems: tuple[Problem, ...]
    tree: str = ""

    @property
    def outcome(self) -> Outcome:
        bad = [step.outcome for step in self.steps if not step.outcome.good]
        return bad[0] if bad else Outcome.APPLIED if self.steps else Outcome.EMPTY


@dataclass(frozen=True)
class CheckReport:
    """pins: one report each. problems: those of the queue itself, found before any pin was looked
    at."""

    pins: tuple[PinReport, ...]
    problems: tuple[Problem, ...]

    @property
    def all_problems(self) -> tuple[Problem, ...]:
        return (*self.problems, *(problem for report in self.pins for problem in report.problems))


def check(root: Path, pins: Iterable[Pin], origin: str | None) -> CheckReport:
    """Lint the queue and replay it on each pin. Raises Refused only where a pin's source cannot be
    had."""
    finish_writing(root)
    queue, problems = series.read(root)
    problems += lint(root, queue)
    now = {pin.version: pin for pin in pinning.load(root).all}
    pins = [now.get(pin.version, pin) for pin in pins]  # a killed run may have been finished above
    lacking = [] if origin else [pin for pin in pins if not source.is_cached(pin)]
    if len(lacking) > 1:
        LOG.info(
            f"{counted(len(lacking), 'release')} to fetch first, once: about {15 * len(lacking)} MB"
        )
    with ThreadPoolExecutor() as threads:  # hashing the archives leaves the interpreter free
        sources = list(threads.map(lambda pin: source.fetch(pin, origin), pins))
    with _processes() as processes:  # reading their directories does not
        carried = any(pin.patched for pin in now.values())
        reports = tuple(processes.map(partial(_one, queue, carried), sources))
    return CheckReport(reports, tuple(problems))


@contextmanager
def _processes() -> Iterator[ProcessPoolExecutor]:
    """Workers that end with this process, however it ends. Each waits for work on a pipe that the
    others hold open too, so that a killed parent closes none of these."""
    reading, writing = os.pipe()
    try:
        with ProcessPoolExecutor(
            mp_context=get_context("fork"), initializer=_end_with, initargs=(reading, writing)
        ) as processes:
            yield processes
    finally:
        os.close(reading)
        os.close(writing)


def _end_with(reading: int, writing: int) -> None:
    """End this worker when nobody holds the pipe's other end any more: no worker keeps it."""
    os.close(writing)

    def wait() -> None:
        os.read(reading, 1)
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def _one(queue: Queue, carried: bool, pristine: Source) -> PinReport:
    pin = pristine.pin
    findings = tuple(probe(queue, pin, pristine.read))
    problems = [finding.problem for finding in findings if finding.problem]
    try:
        selection = select(queue, pin)
    except Refused as refusal:
        return PinReport(pin, (), findings, (*problems, *refusal.problems))
    replayed = selection.replay(pristine.read)
    tree = ""
    if replayed.problems or not selection.patches:
        found = _not_carried(pin, carried, replayed.steps) or replayed.problems
    else:
        tree = tree_with(pristine.listing(), replayed.files)
        other = problem_of(pin, tree)
        found = (other,) if other else ()
    return PinReport(pin, replayed.steps, findings, (*found, *problems), tree)


def _not_carried(pin: Pin, carried: bool, steps: Sequence[Step]) -> tuple[Problem, ...]:
    """One problem in place of one for each hunk, for a pin that no rebase has been to yet: it
    has no patched tree, and others (`carried`) have one."""
    bad = sum(not step.outcome.good for step in steps)
    if not bad or not carried or pin.patched:
        return ()
    what = (
        "is pinned, and the queue is not carried to it:"
        f" {bad} of {counted(len(steps), 'patch', 'patches')} to refresh or to solve"
    )
    step = f"{to_type('rebase', pin.version)} sorts them"
    return (Problem("not-carried", pin.tag, what, step),)
