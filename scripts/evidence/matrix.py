"""The support matrix: what was proven where, and why the rest was not. Made from the queue and
evidence/ alone."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from patchqueue.laying.apply import load_queue
from patchqueue.laying.selection import Selection
from patchqueue.queue.header import Header
from patchqueue.queue.series import Queue
from patchqueue.upstream.pins import Pin, Pins

from . import cells, harness
from .cells import ALWAYS, Feature
from .records import Found, Record, Run
from .store import BREAKABLE, NO_MEASURE, proofs

DETAILS, AGREES = "#what-failed-in-that-run", "agrees with eager prefill"
ENDED = "exit code"  # begins the reason of an engine that gave no answers


class State(str, enum.Enum):
    """What is known about one feature on one release."""

    PROVEN = "proven"
    FAILED = "failed"
    UNTOLD = "untold"
    STALE = "stale"
    NOT_RUN = "not run"
    UPSTREAM = "upstream"
    NOT_APPLICABLE = "not applicable"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Cell:
    """One feature on one release."""

    state: State
    reason: str
    date: str = field(default="", compare=False)  # of the latest run that it is about


def matrix(root: Path, pins: Pins) -> list[tuple[Pin, list[Cell]]]:
    """A row of cells for each pin, newest first. Raises Refused where the queue is broken."""
    queue, features = load_queue(root), cells.load(root).features
    return [
        (pin, [cell(root, queue, pin, feature) for feature in features])
        for pin in reversed(pins.all)
    ]


def cell(root: Path, queue: Queue, pin: Pin, feature: Feature) -> Cell:
    """What is known: from evidence where there is some, else from the queue. The best of several
    GPUs and attentions, and what the others said."""
    best = [State.PROVEN, State.FAILED, State.NOT_APPLICABLE, State.UNTOLD, State.STALE]
    known = [
        judged
        for file in proofs(root, str(pin.version))
        if (judged := judge(file, queue, pin, feature, harness.identity(root)))
    ]
    if not known:
        return expected(queue, pin, feature)
    latest = sorted(known, key=lambda one: one.date, reverse=True)
    first, *others = sorted(latest, key=lambda one: best.index(one.state))
    if first.state is State.STALE:
        today = expected(queue, pin, feature)
        if today.state is State.NOT_APPLICABLE:
            return today  # no run of today's queue would say anything else
    said = [
        f"{one.state} {one.reason}" for one in others if one.state in (State.PROVEN, State.FAILED)
    ]
    return Cell(first.state, "; ".join([first.reason, *said]))


def judge(found: Record, queue: Queue, pin: Pin, feature: Feature, rules: str) -> Cell | None:
    """What the runs on one kind of GPU say about a feature; None where they did not try it on every
    model that the release knows. Untold where today's queue ran, and a model's reference did not
    agree with itself. rules: the harness of today."""
    models = feature.known(pin.version)
    runs = [
        (run, found.under(run))
        for run in found.runs
        if run.mode == feature.mode and run.model in models
    ]
    now = Selection(queue, pin).effect_sha256
    if {run.model for run, _ in runs} != set(models):
        return None
    unasked = [(run, one) for run, one in runs if run.verdict == "not run"]
    if not all(run.why.startswith(NO_MEASURE) for run, _ in unasked):
        return None
    then = _untold(*unasked[0]) if unasked else _verdict(runs, rules)
    if unknown := [model for model in feature.models if model not in models]:
        reason = f"{then.reason}; the release does not know {', '.join(unknown)}"
        then = Cell(then.state, reason)
    date = max(one.date for _, one in runs)
    earlier = sorted(one.date for _, one in runs if one.changes != now)
    if earlier:
        why = f"the queue has changed since the run of {earlier[0]}, which said {then.state}:"
        return Cell(State.STALE, f"{why} {then.reason}", date)
    return replace(then, date=date)


def _untold(run: Run, one: Record) -> Cell:
    why = f"{place(one)}: the reference of {run.model} failed ([details]({DETAILS}))"
    return Cell(State.UNTOLD, why)


def _verdict(runs: Sequence[tuple[Run, Record]], rules: str) -> Cell:
    """What runs say, each with the facts that it was made under."""
    for run, _ in runs:
        if run.verdict == "not applicable":
            return Cell(State.NOT_APPLICABLE, run.why)
    places = [
        place(one) + ("" if one.harness == rules else ", by an earlier harness") for _, one in runs
    ]
    for there, (run, _) in zip(places, runs):
        if run.verdict != "passed":
            what = f"{run.model} {in_words(run.why)} ([details]({DETAILS}))"
            return Cell(State.FAILED, f"{there}: {what}")
    where = "; ".join(dict.fromkeys(places))
    return _of_lifetimes(runs, places) or Cell(State.PROVEN, where + _unchecked(runs))


def _of_lifetimes(runs: Sequence[tuple[Run, Record]], places: Sequence[str]) -> Cell | None:
    """The first check of a breakable graph's lifetimes that did not pass."""
    for there, (run, one) in zip(places, runs):
        found = one.lifetimes if run.mode == BREAKABLE else None
        if found and found.verdict != "passed":
            why = found.why.partition(": ")[0]
            return Cell(State.FAILED, f"{there}: lifetimes: {found.verdict}: {why}")
    return None


def _unchecked(runs: Sequence[tuple[Run, Record]]) -> str:
    missing = any(run.mode == BREAKABLE and one.lifetimes is None for run, one in runs)
    return "; lifetimes not checked in this run" if missing else ""


def in_words(why: str) -> str:
    """What a run's "check: what was found" means to a user. The numbers are in evidence/, and told
    on the page."""
    check = why.partition(": ")[0]
    if check.startswith(AGREES):
        return "answers otherwise than eager prefill"
    return f"ended with {check}" if check.startswith(ENDED) else f'does not pass "{check}"'


def place(found: Record) -> str:
    """Where a run was, and how far that is from what the release asks for."""
    kernels = f", kernels {found.kernel.package}" if found.kernel else ""
    return host(found) + found.attention_told + kernels


def host(found: Found) -> str:
    """The GPU and torch that ran it."""
    off = f", off the release's pin {found.torch.pinned}" if found.torch.off_pin else ""
    return f"on {found.gpu.name} with torch {found.torch.version.partition('+')[0]}{off}"


def expected(queue: Queue, pin: Pin, feature: Feature) -> Cell:
    """What the queue alone says about a feature on a release."""
    selected = [queue.base(patch.name) for patch in queue.select(pin.version)]
    brings, repairs = (
        named(name for name in selected if name in those)
        for those in (feature.brings, feature.repairs)
    )
    if brings and not _has(pin, feature.upstream):
        return Cell(State.NOT_RUN, f"the queue brings it with {brings}")
    for specifier, reason in feature.never.items():
        if SpecifierSet(specifier).contains(pin.version, prereleases=True):
            return Cell(State.NOT_APPLICABLE, reason)
    headers = [queue.patches[name].header for name in feature.brings]
    since = feature.upstream or _merged(headers)
    if not _has(pin, since):
        return Cell(State.NOT_APPLICABLE, gap(headers, pin) or "no patch brings it there")
    if repairs:
        return Cell(State.NOT_RUN, f"the queue repairs it with {repairs}")
    when = "" if since == ALWAYS else f" (since {since})"
    what = f"the release has it itself{when}, and no patch repairs it there; not run here"
    return Cell(State.UPSTREAM, what)


def _has(pin: Pin, since: str) -> bool:
    return bool(since) and pin.version >= Version(since)


def _merged(headers: Iterable[Header]) -> str:
    """The first release that has one of these patches; empty where none has."""
    found = (re.fullmatch(r"Merged (\S+)", one.get("Upstream-Status")) for one in headers)
    return next((one[1] for one in found if one), "")


def gap(headers: Iterable[Header], pin: Pin) -> str:
    """Why a release does not get one of these patches; empty where none says so."""
    gaps = (one for header in headers for one in header.gaps)
    reasons = (one.reason for one in gaps if one.releases.contains(pin.version, prereleases=True))
    return next(reasons, "")


def named(patches: Iterable[str]) -> str:
    """Patches as a page names them."""
    return ", ".join(f"`{name.removesuffix('.patch')}`" for name in patches)
