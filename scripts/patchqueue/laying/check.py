"""The whole queue against every pin, in memory: lint, strict replay, the tree that is pinned, and
what upstream has merged."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import Thread

from ..hint import counted, to_type
from ..outcome import Outcome, Problem, Refused
from ..queue import series
from ..queue.lint import lint
from ..queue.patchfile import Patch
from ..queue.series import Queue
from ..upstream import source
from ..upstream.pins import Pin
from ..upstream.source import Source
from .apply import finish_writing
from .pinned import misshapen, problem_of
from .place import widened
from .probe import Finding, probe
from .replay import Step
from .selection import select

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class PinReport:
    """One pin: what the replay made of each selected patch, where every patch stands upstream, and
    all problems.

    texts: the patches as the release's own tree has them, where the replay had no problem.
    """

    pin: Pin
    steps: tuple[Step, ...]
    findings: tuple[Finding, ...]
    problems: tuple[Problem, ...]
    texts: dict[str, Patch] = field(default_factory=dict, repr=False, compare=False)

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


def check(
    root: Path, pins: Iterable[Pin], origin: str | None, every: Iterable[Pin] = ()
) -> CheckReport:
    """Lint the queue and replay it on each pin. Raises Refused only where a pin's source cannot be
    had.

    every: all pinned releases, where `pins` are not; a text's form is looked at where all that it
    is for are in `pins`.
    """
    finish_writing(root)
    queue, problems = series.read(root)
    problems += lint(root, queue)
    pins = list(pins)
    lacking = [] if origin else [pin for pin in pins if not source.is_cached(pin)]
    if len(lacking) > 1:
        LOG.info(
            f"{counted(len(lacking), 'release')} to fetch first, once: about {15 * len(lacking)} MB"
        )
    with ThreadPoolExecutor() as threads:  # hashing the archives leaves the interpreter free
        sources = list(threads.map(lambda pin: source.fetch(pin, origin), pins))
    with _processes() as processes:  # reading their directories does not
        reports = tuple(processes.map(partial(_one, queue), sources))
    problems += misshapen(
        queue,
        [pin.version for pin in every or pins],
        {report.pin.version: report.texts for report in reports},
    )
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


def _one(queue: Queue, pristine: Source) -> PinReport:
    pin = pristine.pin
    findings = tuple(probe(queue, pin, pristine.read))
    problems = [finding.problem for finding in findings if finding.problem]
    try:
        selection = select(queue, pin)
    except Refused as refusal:
        return PinReport(pin, (), findings, (*problems, *refusal.problems))
    replayed = selection.replay(pristine.read)
    other = None if replayed.problems else problem_of(queue, pin, replayed.files)
    below = {step.patch: step.below for step in replayed.steps}
    texts = (
        {}
        if replayed.problems
        else {patch.name: widened(patch, below[patch.name]) for patch in selection.patches}
    )
    laid = _not_carried(queue, pin, replayed.steps) or replayed.problems
    every = (*laid, *([other] if other else []), *problems)
    return PinReport(pin, replayed.steps, findings, every, texts)


def _not_carried(queue: Queue, pin: Pin, steps: Sequence[Step]) -> tuple[Problem, ...]:
    """One problem in place of one for each hunk, for a pin that no rebase has been to yet: others
    have a tree of the queue, and it has none."""
    trees = {version for version, placed in queue.placed.items() if placed.tree}
    bad = sum(not step.outcome.good for step in steps)
    if not bad or not trees or pin.version in trees:
        return ()
    what = (
        "is pinned, and the queue is not carried to it:"
        f" {bad} of {counted(len(steps), 'patch', 'patches')} to refresh or to solve"
    )
    step = f"{to_type('rebase', pin.version)} sorts them"
    return (Problem("not-carried", pin.tag, what, step),)
