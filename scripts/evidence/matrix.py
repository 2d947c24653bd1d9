"""The support matrix: what was proven where, and why the rest was not. Made from the queue and
evidence/ alone."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from patchqueue.laying.apply import changes, load_queue
from patchqueue.queue.series import Queue
from patchqueue.upstream.pins import Pin, Pins

from . import cells
from .cells import ALWAYS, Feature
from .records import Record, Run
from .store import BREAKABLE, harness, proofs

DETAILS, AGREES = "#what-failed-in-that-run", "agrees with eager prefill"


class State(str, enum.Enum):
    """What is known about one feature on one release."""

    PROVEN = "proven"
    FAILED = "failed"
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


def matrix(root: Path, pins: Pins) -> list[tuple[Pin, list[Cell]]]:
    """A row of cells for each pin, newest first. Raises Refused where the queue is broken."""
    queue, features = load_queue(root), cells.load(root).features
    return [
        (pin, [cell(root, queue, pin, feature) for feature in features])
        for pin in reversed(pins.all)
    ]


def cell(root: Path, queue: Queue, pin: Pin, feature: Feature) -> Cell:
    """What is known: from evidence where there is some, else from the queue. The best of several
    GPUs, and what the others said."""
    best = [State.PROVEN, State.FAILED, State.NOT_APPLICABLE, State.STALE]
    known = [
        judged
        for file in proofs(root, str(pin.version))
        if (judged := judge(file, queue, pin, feature, harness(root)))
    ]
    if not known:
        return expected(queue, pin, feature)
    first, *others = sorted(known, key=lambda one: best.index(one.state))
    said = [
        f"{one.state} {one.reason}" for one in others if one.state in (State.PROVEN, State.FAILED)
    ]
    return Cell(first.state, "; ".join([first.reason, *said]))


def judge(found: Record, queue: Queue, pin: Pin, feature: Feature, rules: str) -> Cell | None:
    """What the runs on one kind of GPU say about a feature; None where they did not try it on every
    model. rules: the harness of today."""
    runs = [
        (run, found.under(run))
        for run in found.runs
        if run.mode == feature.mode and run.model in feature.models
    ]
    if {run.model for run, _ in runs} != set(feature.models) or any(
        run.verdict == "not run" for run, _ in runs
    ):
        return None
    then = _verdict(runs, rules)
    now = changes(queue, queue.select(pin.version), pin)
    earlier = sorted(one.date for _, one in runs if one.changes != now)
    if earlier:
        return Cell(
            State.STALE,
            f"the queue has changed since the run of {earlier[0]}, which said {then.state}:"
            f" {then.reason}",
        )
    return then


def _verdict(runs: Sequence[tuple[Run, Record]], rules: str) -> Cell:
    """What runs say, each with the facts that it was made under."""
    places = [
        place(one) + ("" if one.harness == rules else ", by an earlier harness") for _, one in runs
    ]
    where = "; ".join(dict.fromkeys(places))
    refused = [run for run, _ in runs if run.verdict == "not applicable"]
    if refused:
        return Cell(State.NOT_APPLICABLE, refused[0].why)
    for there, (run, _) in zip(places, runs):
        if run.verdict != "passed":
            return Cell(
                State.FAILED,
                f"{there}: {run.model} {in_words(run.why)} ([details]({DETAILS}))",
            )
    checked = [
        (there, one.lifetimes) for there, (run, one) in zip(places, runs) if run.mode == BREAKABLE
    ]
    for there, lifetimes in checked:
        if lifetimes and lifetimes.verdict != "passed":
            return Cell(
                State.FAILED,
                f"{there}: lifetimes: {lifetimes.verdict}: {lifetimes.why.partition(': ')[0]}",
            )
    missing = any(lifetimes is None for _, lifetimes in checked)
    return Cell(State.PROVEN, f"{where}; lifetimes not checked in this run" if missing else where)


def in_words(why: str) -> str:
    """What a run's "check: what was found" means to a user. The numbers are in evidence/, and told
    on the page."""
    check = why.partition(": ")[0]
    return (
        "answers otherwise than eager prefill"
        if check.startswith(AGREES)
        else f'does not pass "{check}"'
    )


def place(found: Record) -> str:
    """Where a run was, and how far that is from what the release asks for."""
    text = f"on {found.gpu.name} with torch {found.torch.version.partition('+')[0]}"
    if found.torch.off_pin:
        text += f", off the release's pin {found.torch.pinned}"
    return text + (f", kernels {found.kernel.package}" if found.kernel else "")


def expected(queue: Queue, pin: Pin, feature: Feature) -> Cell:
    """What the queue alone says about a feature on a release."""
    selected = [queue.base(patch.name) for patch in queue.select(pin.version)]
    brings, repairs = (
        _named(name for name in selected if name in those)
        for those in (feature.brings, feature.repairs)
    )
    if brings and not (feature.upstream and pin.version >= Version(feature.upstream)):
        return Cell(State.NOT_RUN, f"the queue brings it with {brings}")
    reasons = [
        reason
        for specifier, reason in feature.never.items()
        if SpecifierSet(specifier).contains(pin.version, prereleases=True)
    ]
    if reasons:
        return Cell(State.NOT_APPLICABLE, reasons[0])
    headers = [queue.patches[name].header for name in feature.brings]
    merged = [
        found[1]
        for header in headers
        if (found := re.fullmatch(r"Merged (\S+)", header.get("Upstream-Status")))
    ]
    since = feature.upstream or (merged[0] if merged else "")
    if since and pin.version >= Version(since):
        if repairs:
            return Cell(State.NOT_RUN, f"the queue repairs it with {repairs}")
        return Cell(
            State.UPSTREAM,
            f"the release has it itself{'' if since == ALWAYS else f' (since {since})'}, and no"
            " patch repairs it there; not run here",
        )
    gaps = [
        gap.reason
        for header in headers
        for gap in header.gaps
        if gap.releases.contains(pin.version, prereleases=True)
    ]
    return Cell(State.NOT_APPLICABLE, gaps[0] if gaps else "no patch brings it there")


def _named(patches: Iterable[str]) -> str:
    return ", ".join(f"`{name.removesuffix('.patch')}`" for name in patches)
