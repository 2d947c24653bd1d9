"""What benches say: graph modes beside each other, compared pair by pair (*.bench.json)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from .records import Bench, Calls, Timed, TimedRun
from .store import FIRST_SUBJECT, timed

EAGER, LOADS, FIRST = "eager", "loads", "first_token_ms"
NAMES = {
    "eager": "eager prefill",
    "piecewise": "piecewise, eager compiler",
    "piecewise-inductor": "piecewise, inductor",
    "breakable": "breakable",
}
# sglang#19903's own throughput gains on an H100, in percent
REPORTED = {"piecewise": 1.4, "piecewise-inductor": 10.5}
SURE = 0.95  # how often an interval holds the median that it is about


@dataclass(frozen=True)
class Change:
    """How far paired measurements of two modes lie apart, in percent: each pair's ratio less 1,
    their median, its interval.

    sure: there were enough pairs for SURE; otherwise the interval is all that was seen.
    """

    ratios: tuple[float, ...]
    median: float
    low: float
    high: float
    sure: bool

    @property
    def shown(self) -> bool:
        return self.sure and not self.low <= 0 <= self.high


def change(pairs: Sequence[tuple[float, float]]) -> Change | None:
    """By how much the second of each pair is above the first; None of no pairs.

    The interval is the sign test's: of n ratios in order, the k-th from either end, where fewer
    than k of n fair coins fall on one side at most (1 - SURE) / 2 of the time. Six are the fewest
    that give one.
    """
    found = sorted((second / first - 1) * 100 for first, second in pairs)
    if not found:
        return None
    tail, cut = 0.0, 0
    while (tail := tail + math.comb(len(found), cut) / 2 ** len(found)) <= (1 - SURE) / 2:
        cut += 1
    return Change(
        tuple(found), statistics.median(found), found[max(cut, 1) - 1], found[-max(cut, 1)], cut > 0
    )


def load(root: Path) -> list[Bench]:
    """Every measurement kept, by release and GPU."""
    found = timed(root, "*/*.bench.json", Bench)
    return sorted(
        found,
        key=lambda bench: (
            bench.subject != FIRST_SUBJECT,
            bench.model,
            Version(bench.version),
            bench.gpu.name,
        ),
    )


def measured(bench: Timed, what: str) -> dict[str, TimedRun]:
    """By mode, in NAMES' order, the latest run that measured `what`."""
    runs = {run.mode: run for run in bench.runs if getattr(run, what)}
    return {mode: runs[mode] for mode in NAMES if mode in runs}


def paired(bench: Timed) -> bool:
    """Whether modes took turns. The first benches ran one mode after the other: these show what
    drifted, not what was gained."""
    return any(run.session for run in bench.runs)


def beside_eager(bench: Timed, what: str) -> dict[str, TimedRun]:
    """The other modes that took turns with eager prefill."""
    runs = measured(bench, what)
    session = runs[EAGER].session if EAGER in runs else ""
    return {
        mode: run
        for mode, run in runs.items()
        if mode != EAGER and session and run.session == session
    }


def loaded(benches: Sequence[Bench]) -> bool:
    """Whether any was sent the load."""
    return any(measured(bench, LOADS) for bench in benches)


def shapes(bench: Bench) -> list[str]:
    """The shapes that some mode was timed at, in their order."""
    runs = measured(bench, FIRST).values()
    return list(dict.fromkeys(shape for run in runs for shape in run.first_token_ms))


def gain(bench: Bench, mode: str) -> Change | None:
    """A mode's throughput against eager prefill's, over the rounds that both ran."""
    runs = measured(bench, LOADS)
    first, second = (
        {one.round: one.tokens_per_s for one in runs[name].loads} for name in (EAGER, mode)
    )
    return change(
        [(first[number], second[number]) for number in sorted(first.keys() & second.keys())]
    )


def itself(bench: Bench) -> Change | None:
    """Eager prefill against itself: each odd round's throughput against the even one's before
    it."""
    rates = {one.round: one.tokens_per_s for one in measured(bench, LOADS)[EAGER].loads}
    return change(
        [
            (rates[number], rates[number + 1])
            for number in rates
            if number % 2 == 0 and number + 1 in rates
        ]
    )


def delay(bench: Bench, mode: str, shape: str) -> Change | None:
    """A mode's time to first token against eager prefill's, over the turns that both had."""
    runs = measured(bench, FIRST)
    return change(list(zip(*(_calls(runs[name], shape).all for name in (EAGER, mode)))))


def _calls(run: TimedRun, shape: str) -> Calls:
    return run.first_token_ms.get(shape, Calls())


def gains(bench: Bench) -> dict[str, Change]:
    """By mode, where there is one."""
    found = {mode: gain(bench, mode) for mode in beside_eager(bench, LOADS)}
    return {mode: one for mode, one in found.items() if one}


def delays(bench: Bench) -> dict[str, dict[str, Change | None]]:
    """By mode and shape."""
    return {
        mode: {shape: delay(bench, mode, shape) for shape in run.first_token_ms}
        for mode, run in beside_eager(bench, FIRST).items()
    }


def clear(found: Mapping[str, Change | None]) -> list[tuple[str, str, float, int]]:
    """Of delays by shape, those that are shown: faster or slower, where most, by how much, and at
    how many."""
    shown = {shape: one.median for shape, one in found.items() if one and one.shown}
    sides = {
        "faster": {shape: -median for shape, median in shown.items() if median < 0},
        "slower": {shape: median for shape, median in shown.items() if median > 0},
    }
    return [
        (word, most := max(side, key=side.__getitem__), side[most], len(side))
        for word, side in sides.items()
        if side
    ]


def turns(bench: Timed) -> tuple[int, int] | None:
    """How many turns of first tokens did not count, of how many; None where none was watched."""
    calls = [
        one for run in beside_eager(bench, FIRST).values() for one in run.first_token_ms.values()
    ]
    lost = sum(one.lost or 0 for one in calls)
    watched = any(one.lost is not None for one in calls)
    return (lost, lost + sum(len(one.all) for one in calls)) if watched else None
