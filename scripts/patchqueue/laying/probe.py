"""Merged upstream: does a pristine release already have what a patch brings? Each patch's Probe
says how to see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..outcome import Outcome, Problem
from ..queue.header import NOT_NEEDED
from ..queue.series import Queue
from ..upstream.pins import Pin

Read = Callable[[str], "bytes | None"]


@dataclass(frozen=True)
class Finding:
    """One patch (all its variants together) on one pin. outcome: APPLIED selected, MERGED_UPSTREAM,
    or NOT_SELECTED, a gap.

    reason: why it is not offered there, for a gap.
    """

    patch: str
    pin: Pin
    outcome: Outcome
    reason: str = ""
    problem: Problem | None = None

    @property
    def is_gap(self) -> bool:
        """Whether users of the release lack the change; a reason may say that they do without
        it."""
        return self.outcome is Outcome.NOT_SELECTED and not self.reason.startswith(NOT_NEEDED)


def probe(queue: Queue, pin: Pin, read: Read) -> list[Finding]:
    """Every patch of the queue against one pristine release."""
    bases: dict[str, bool] = {}
    for entry in queue.entries:
        if entry.name in queue.patches:
            bases[entry.base] = bases.get(entry.base, False) or entry.is_for(pin.version)
    return [
        _finding(queue, base, selected, pin, read)
        for base, selected in bases.items()
        if base in queue.patches
    ]


def _finding(queue: Queue, base: str, selected: bool, pin: Pin, read: Read) -> Finding:
    header = queue.patches[base].header
    where = f"patches/{base} on {pin.tag}"
    has = any(passes(line, read) for line in header.probes)
    if selected and has:
        problem = Problem(
            str(Outcome.MERGED_UPSTREAM),
            where,
            "merged upstream: the pristine release passes the patch's Probe",
            "end the guard before this release",
        )
        return Finding(base, pin, Outcome.MERGED_UPSTREAM, problem=problem)
    if selected:
        return Finding(base, pin, Outcome.APPLIED)
    if has:
        return Finding(base, pin, Outcome.MERGED_UPSTREAM)
    reasons = [
        gap.reason for gap in header.gaps if gap.releases.contains(pin.version, prereleases=True)
    ]
    if reasons:
        return Finding(base, pin, Outcome.NOT_SELECTED, reasons[0])
    problem = Problem(
        "unexplained-gap",
        where,
        "the release lacks the change, and the guard leaves it out",
        "widen the guard, or add `Gap: SPECIFIER: reason` to the header",
    )
    return Finding(base, pin, Outcome.NOT_SELECTED, problem=problem)


def passes(line: Any, read: Read) -> bool:
    """Whether a tree passes one line of a header's Probe."""
    content = read(line.path)
    return content is not None and line.matches(content.decode("utf-8", "replace"))
