"""The support matrix: what was proven where, and why the rest was not. Made from the queue and
evidence/ alone."""

from __future__ import annotations

import enum
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from patchqueue.applying.apply import load_queue
from patchqueue.queue.header import Header
from patchqueue.queue.series import Queue
from patchqueue.upstream.pins import Pin, Pins

from . import cells, harness, results
from .cells import Feature
from .footprints import Validity
from .results import NO_MEASURE, Row

DETAILS = "evidence/findings.md#models-and-releases"
AGREES = "agrees with eager prefill"
ENDED = "exit code"  # begins the reason of an engine that gave no answers
DRAWN = 0.1  # the share of runs that hold for their files alone and are run again


class State(str, enum.Enum):
    """What is known about one feature on one release."""

    PROVEN = "proven"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    STALE = "stale"
    NOT_RUN = "not run"
    UPSTREAM = "upstream"
    NOT_APPLICABLE = "not applicable"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Cell:
    """One feature on one release. reason: of what a run said, and where it cannot be; the page
    shows that of a failure. before: of a stale cell, what the run said."""

    state: State
    reason: str = ""
    before: State | None = None
    date: str = field(default="", compare=False)  # of the latest run that it is about


def matrix(root: Path, pins: Pins) -> list[tuple[Pin, list[Cell]]]:
    """A row of cells for each pin, newest first. Raises Refused where the queue is broken."""
    queue, features, rows = load_queue(root), cells.load(root).features, results.load(root)
    rules = harness.identity(root)
    found = []
    for pin in reversed(pins.all):
        of_pin = [row for row in rows if row.release == str(pin.version) and row.kind != "time"]
        validity = Validity(pin.patched, rules)
        found.append((pin, [cell(of_pin, queue, pin, feature, validity) for feature in features]))
    return found


def left_to_run(root: Path, known: Iterable[tuple[Pin, list[Cell]]]) -> list[str]:
    """The tags of the releases with a cell for which no proof of today's patches counts."""
    proven = [not feature.asked for feature in cells.load(root).features]
    left = {State.STALE, State.NOT_RUN}
    return [pin.tag for pin, row in known if left & {one.state for one in compress(row, proven)}]


def drawn(root: Path, pins: Pins) -> dict[str, list[str]]:
    """By release tag, the models of some proofs that hold for their files alone. Running these
    again shows a wrong footprint. Another tree draws others."""
    rows, rules = results.load(root), harness.identity(root)
    found: dict[str, set[str]] = {}
    pinned = {str(pin.version): pin for pin in reversed(pins.all)}
    for row in rows:
        if row.kind == "proof" and (pin := pinned.get(row.release)):
            validity = Validity(pin.patched, rules)
            is_drawn = random.Random(f"{pin.patched} {row.model} {row.name}").random() < DRAWN
            if is_drawn and validity.same_files(row) and not validity.is_today(row):
                found.setdefault(pin.tag, set()).add(row.model)
    return {pin.tag: sorted(found[pin.tag]) for pin in pinned.values() if pin.tag in found}


def cell(
    proofs: Sequence[Row], queue: Queue, pin: Pin, feature: Feature, validity: Validity
) -> Cell:
    """What is known: from the proofs of the release where there are some, else from the queue. The
    best of several GPUs and attentions, and what the others said; of a question the worst."""
    best = [State.PROVEN, State.FAILED, State.NOT_APPLICABLE, State.INCONCLUSIVE, State.STALE]
    if feature.asked:
        best[:2] = reversed(best[:2])
    hosts: dict[tuple[str, str], list[Row]] = {}
    for row in proofs:
        hosts.setdefault((results.slug(row.gpu), row.attention), []).append(row)
    judged = (judge(hosts[host], pin, feature, validity) for host in sorted(hosts))
    if not (known := [one for one in judged if one]):
        return expected(queue, pin, feature)
    latest = sorted(known, key=lambda one: one.date, reverse=True)
    first, *others = sorted(latest, key=lambda one: best.index(one.state))
    if first.state is State.STALE:
        today = expected(queue, pin, feature)
        if today.state is State.NOT_APPLICABLE:
            return today  # no run of today's queue would say anything else
    told = (one for one in others if one.state in (State.PROVEN, State.FAILED))
    said = (f"{one.state} {one.reason}" for one in told)
    return replace(first, reason="; ".join([first.reason, *said]))


def judge(proofs: Iterable[Row], pin: Pin, feature: Feature, validity: Validity) -> Cell | None:
    """What the proofs on one kind of GPU say about a feature; None where they did not try it on
    every model that the release knows. Inconclusive where today's queue ran, and a model's
    reference did not agree with itself, or the control of a question answered as the patched tree
    did."""
    models = feature.known(pin.version)
    tried = [row for row in proofs if row.name == feature.mode and row.model in models]
    rows, controls = ([row for row in tried if row.control is of] for of in (False, True))
    if {row.model for row in rows} != set(models):
        return None
    unasked = [row for row in rows if row.verdict == results.NOT_RUN]
    if not all(row.why.startswith(NO_MEASURE) for row in unasked):
        return None
    if unasked:
        why = f"the reference of {unasked[0].model} failed ([details]({DETAILS}))"
        then = Cell(State.INCONCLUSIVE, f"{place(unasked[0])}: {why}")
    else:
        then = _verdict(rows, feature, validity)
    if then.state is State.PROVEN and controls and all(row.why for row in controls):
        then = replace(then, state=State.INCONCLUSIVE)
    if unknown := [model for model in feature.models if model not in models]:
        reason = f"{then.reason}; the release does not know {', '.join(unknown)}"
        then = Cell(then.state, reason)
    date = max(row.date for row in rows)
    earlier = sorted(row.date for row in rows if not validity.holds(row))
    if earlier:
        why = f"the queue has changed since the run of {earlier[0]}, which said {then.state}:"
        return Cell(State.STALE, f"{why} {then.reason}", then.state, date)
    return replace(then, date=date)


def _verdict(rows: Sequence[Row], feature: Feature, validity: Validity) -> Cell:
    for row in rows:
        if row.verdict == "not applicable":
            return Cell(State.NOT_APPLICABLE, row.why)
    places = [
        place(row, not validity.is_today(row) and validity.same_files(row))
        + ("" if validity.judged_alike(row) or feature.asked else ", by an earlier harness")
        for row in rows
    ]
    for there, row in zip(places, rows, strict=True):
        if row.verdict != "passed":
            who = row.name if feature.asked else row.model
            what = f"{who} {in_words(row.why)} ([details]({DETAILS}))"
            return Cell(State.FAILED, f"{there}: {what}")
    return Cell(State.PROVEN, "; ".join(dict.fromkeys(places)))


def in_words(why: str) -> str:
    """What a run's "check: what was found" means to a user. The numbers are in evidence/, and told
    on the page."""
    check = why.partition(": ")[0]
    if check.startswith(AGREES):
        return "answers otherwise than eager prefill"
    return f"ended with {check}" if check.startswith(ENDED) else f'does not pass "{check}"'


def place(row: Row, same_files: bool = False) -> str:
    """Where a run was, and how far that is from what the release asks for. same_files: the run was
    of another tree, which had the same files where the run looked."""
    off = f", off the release's pin {row.torch_pin}" if row.torch_pin else ""
    kernels = f", kernels {row.kernels}" if row.kernels else ""
    files = ", same files as today" if same_files else ""
    return f"on {row.gpu} with torch {row.torch}{off}{row.attention_named}{kernels}{files}"


def expected(queue: Queue, pin: Pin, feature: Feature) -> Cell:
    """What the queue alone says about a feature on a release."""
    selected = {queue.base(patch.name) for patch in queue.select(pin.version)}
    if not selected.isdisjoint(feature.brings) and not _has(pin, feature.upstream):
        return Cell(State.NOT_RUN)
    for specifier, reason in feature.never.items():
        if SpecifierSet(specifier).contains(pin.version, prereleases=True):
            return Cell(State.NOT_APPLICABLE, reason)
    since = feature.upstream or _merged(queue.patches[name].header for name in feature.brings)
    if not _has(pin, since):
        return Cell(State.NOT_APPLICABLE)
    repaired = not selected.isdisjoint(feature.repairs)
    return Cell(State.NOT_RUN if repaired else State.UPSTREAM)


def _has(pin: Pin, since: str) -> bool:
    return bool(since) and pin.version >= Version(since)


def _merged(headers: Iterable[Header]) -> str:
    """The first release that has one of these patches; empty where none has."""
    return next((one.merged for one in headers if one.merged), "")
