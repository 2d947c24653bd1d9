"""What gains say: the untouched and the patched release (*.gain.json)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from msgspec import structs
from packaging.version import Version

from .records import USUAL_ATTENTION, Calls, Gain, GainRun, Group, Peer, Profile
from .store import FIRST_SUBJECT, USUAL_LOAD, graph_told, timed

T = TypeVar("T")
UNTOUCHED, PATCHED = "untouched", "patched"
TREES = (UNTOUCHED, PATCHED)
GROUPS = 12  # rows of a kernel table, and parts of a bar
REST = "everything else"
# begins why a visit is not whole, before the part that tests/gpu/gain.py names
NO_TIME = "no time was left for "
PARTS = {
    "again": "prefills back to back",
    "prefill_load": "the load of prompts",
    "profile": "profiles",
    "profile_load": "the profile of its load",
}
# A change of first tokens is the trees' own where so much of it is GPU-busy time, or where so many
# launches came or went.
EXPLAINED, FEWER = 0.5, 0.02


@dataclass(frozen=True)
class Spread:
    """Calls of one shape on one tree, all visits of the tree together. In milliseconds."""

    fastest: float
    first_quartile: float
    median: float

    def __str__(self) -> str:
        return f"{self.fastest:.1f} / {self.first_quartile:.1f} / {self.median:.1f}"


def spread(spans: Sequence[float]) -> Spread | None:
    """Of calls as they came; None of none."""
    if not spans:
        return None
    quartile = (
        statistics.quantiles(spans, n=4, method="inclusive")[0] if len(spans) > 1 else spans[0]
    )
    return Spread(min(spans), quartile, statistics.median(spans))


def load(root: Path) -> list[Gain]:
    """Every gain kept, the first subject first; one that timed the untouched release in several
    modes once for each."""
    found = [part for gain in timed(root, "*/*.gain.json", Gain) for part in apart(gain)]
    return sorted(
        found,
        key=lambda gain: (
            gain.subject != FIRST_SUBJECT,
            gain.model,
            Version(gain.version),
            gain.gpu.name,
            graph_of(gain),
            gain.attention != USUAL_ATTENTION,
        ),
    )


def apart(gain: Gain) -> list[Gain]:
    """A gain for each mode of the untouched tree, with all visits of the patched one: figures of
    two modes are never put together."""
    modes = dict.fromkeys(run.mode for run in runs(gain, UNTOUCHED))
    if len(modes) < 2:
        return [gain]
    return [
        structs.replace(
            gain,
            runs=tuple(run for run in gain.runs if run.tree == PATCHED or run.mode == mode),
        )
        for mode in modes
    ]


def title(gain: Gain) -> str:
    graph = graph_of(gain)
    beside = f", {graph.replace('-', ' ')} graph" if graph else ""
    beside += ", states in the graph" if states(gain) else ""
    beside += gain.attention_told
    beside += _loads(gain.gain.traffic)
    return f"{gain.version} on {gain.gpu.name}: {gain.model.partition(',')[0]}{beside}"


def _loads(kinds: Sequence[str]) -> str:
    if not kinds:
        return ""
    return ", loads of users" + ("" if USUAL_LOAD in kinds else f": {', '.join(kinds)}")


def graph_of(gain: Gain) -> str:
    return graph_told((run.tree, run.mode) for run in gain.runs)


def runs(gain: Gain, tree: str) -> list[GainRun]:
    """The visits of one tree."""
    return [run for run in gain.runs if run.tree == tree]


def both(what: Callable[..., T], gain: Gain, *more: str) -> tuple[T, T]:
    """A function of a gain and a tree, of the untouched and of the patched one."""
    return what(gain, UNTOUCHED, *more), what(gain, PATCHED, *more)


def calls(gain: Gain, tree: str, shape: str) -> Spread | None:
    """First tokens of a shape, over all visits of the tree."""
    return spread(
        [one for run in runs(gain, tree) for one in run.first_token_ms.get(shape, Calls()).all]
    )


def profiles(gain: Gain, tree: str, shape: str) -> list[Profile]:
    return [run.profile[shape] for run in runs(gain, tree) if shape in run.profile]


def busy_ms(gain: Gain, tree: str, shape: str) -> float | None:
    """The GPU's own time of one call: the median over visits."""
    found = [one.busy_ms for one in profiles(gain, tree, shape)]
    return statistics.median(found) if found else None


def launches(gain: Gain, tree: str, shape: str) -> float | None:
    """Kernels and copies of one call: the median over visits."""
    found = [one.launches for one in profiles(gain, tree, shape)]
    return statistics.median(found) if found else None


def repeated_ms(gain: Gain, tree: str, shape: str) -> float | None:
    """One of many prefills that follow each other: the median over visits."""
    found = [run.back_to_back[shape].ms for run in runs(gain, tree) if shape in run.back_to_back]
    return statistics.median(found) if found else None


def rate(gain: Gain, tree: str) -> float | None:
    """Input tokens per second of the prefill load: the median of all loads."""
    found = [one.tokens_per_s for run in runs(gain, tree) for one in run.loads]
    return statistics.median(found) if found else None


def peer_calls(peer: Peer, shape: str) -> Spread | None:
    """First tokens of a shape from a peer."""
    return spread(peer.first_token_ms.get(shape, Calls()).all)


def peer_busy(peer: Peer, shape: str) -> float | None:
    """The GPU's own time of one call, in milliseconds."""
    return peer.profile[shape].busy_ms if shape in peer.profile else None


def peer_groups(peer: Peer, shape: str) -> dict[str, float]:
    """Milliseconds of one call by group of kernels; none where nobody profiled it."""
    profiled = peer.profile[shape].groups if shape in peer.profile else {}
    return {name: group.ms for name, group in profiled.items()}


def peer_rate(peer: Peer) -> float | None:
    """Input tokens per second of the prefill load: the median of a peer's loads."""
    found = [one.tokens_per_s for one in peer.loads]
    return statistics.median(found) if found else None


def served(gain: Gain, tree: str, kind: str) -> tuple[float, float, float] | None:
    """Tokens a second of a kind of load, and milliseconds until the median first token and the
    99th percentile: each the median of all loads."""
    found = [one for run in runs(gain, tree) for one in run.traffic.get(kind, ())]
    if not found:
        return None
    rate = statistics.median(one.rate for one in found)
    half, most = (statistics.median(one.first_ms[part] for one in found) for part in ("p50", "p99"))
    return rate, half, most


def loads_taken(gain: Gain, run: GainRun) -> list[int]:
    """How many loads of a kind a visit took, each number once, ascending."""
    return sorted({len(run.traffic.get(kind, ())) for kind in gain.gain.traffic})


def ended(one: GainRun | Peer) -> str:
    """What became of a visit, behind its name: what is missing where it was timed."""
    part = one.why.removeprefix(NO_TIME)
    if one.verdict == "not run" and one.first_token_ms and part != one.why:
        return f"had no time left for {PARTS.get(part, part)}"
    return f"{one.verdict}: {one.why}"


def ran(peer: Peer) -> str:
    """How a peer ran, behind its name."""
    if not peer.first_token_ms:
        return ended(peer)
    said = f"ran in its mode {peer.mode}"
    if peer.prefills:
        said += f", with {peer.prefills.on_graph} of {peer.prefills.prefills} prefills on a graph"
    return said + ("" if peer.verdict == "passed" else f", and {ended(peer)}")


def groups(gain: Gain, tree: str, shape: str) -> dict[str, float]:
    """Milliseconds of one call by group of kernels: the median over visits."""
    found = profiles(gain, tree, shape)
    names = dict.fromkeys(name for one in found for name in one.groups)
    return {
        name: statistics.median(one.groups.get(name, Group(0.0)).ms for one in found)
        for name in names
    }


def change(before: float | None, after: float | None) -> str:
    return f"{(after / before - 1) * 100:+.1f} %" if before and after is not None else "-"


def shown(gain: Gain, shape: str) -> str:
    """The change of a shape's first quartiles, in the page's words; "-" where a tree has none."""
    before, after = (calls(gain, tree, shape) for tree in TREES)
    if not before or not after:
        return "-"
    if not (after.median < before.fastest or before.median < after.fastest):
        return "none shown"
    if not accounted(gain, shape, after.first_quartile - before.first_quartile):
        return "the host"
    return change(before.first_quartile, after.first_quartile)


def accounted(gain: Gain, shape: str, change_ms: float) -> bool:
    """Whether the profiles say where such a change comes from; also where there are none."""
    (busy, now_busy), (count, now) = (both(what, gain, shape) for what in (busy_ms, launches))
    if busy is None or now_busy is None or count is None or now is None:
        return True
    work, fewer = now_busy - busy, now / count - 1
    return work / change_ms >= EXPLAINED or (fewer / change_ms > 0 and abs(fewer) >= FEWER)


def largest(gain: Gain) -> str:
    """The shape with most tokens in fewest requests: there the host counts least."""
    return max(gain.gain.shapes, key=lambda shape: (_tokens(shape), -int(shape.partition("x")[0])))


def _tokens(shape: str) -> int:
    count, _, length = shape.partition("x")
    return int(count) * int(length)


def states(gain: Gain) -> str:
    """What the patched server's environment said of layers with recurrent states."""
    said_of = {run.states or "" for run in runs(gain, PATCHED)}
    return " and ".join(sorted(said_of - {""}))


def top(*found: dict[str, float]) -> list[str]:
    """The groups that take most in either tree, largest first."""
    most = {name: max(one.get(name, 0.0) for one in found) for one in found for name in one}
    return sorted(most, key=lambda name: -most[name])[:GROUPS]


def call_counts(gain: Gain) -> list[int]:
    """How often each shape was called on each engine."""
    return sorted(
        {
            len(run.first_token_ms.get(shape, Calls()).all)
            for run in gain.runs
            for shape in gain.gain.shapes
        }
    )


def first_visits(gain: Gain) -> list[GainRun]:
    """Each tree's."""
    return [run for tree in TREES for run in runs(gain, tree)[:1]]


def split(gain: Gain) -> list[tuple[str, str, float]]:
    """Tree, shape and forwards of the profiled calls that a scheduler did not answer with one
    forward."""
    found = {
        (tree, shape): one.forwards
        for tree in TREES
        for shape in gain.gain.shapes
        for one in profiles(gain, tree, shape)
    }
    return [(*where, count) for where, count in found.items() if count != 1]
