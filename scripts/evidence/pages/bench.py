"""docs/bench.md and its plots, made from what was measured: every number comes from evidence/.

Gains against the untouched release come first, graph modes beside each other behind them. The plots
need matplotlib, which nothing else here does: they are drawn where matplotlib is, and left as they
were elsewhere.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import benches, gains, ways
from ..benches import EAGER, FIRST, NAMES
from ..plots import bench as bench_plot
from ..plots import gain as gain_plot
from ..records import Bench, Gain, TimedRun, spoken
from ..store import put
from .render import number, render, signed, table

PAGE, PLOT = Path("docs/bench.md"), Path("docs/bench.png")


def write(root: Path) -> bool:
    """Write the page, and the plots where matplotlib is installed. Returns whether any was
    drawn."""
    (root / PAGE).parent.mkdir(parents=True, exist_ok=True)
    drawn = [
        bench_plot.draw(benches.load(root), root / PLOT),
        gain_plot.draw(gains.load(root), (root / PAGE).parent),
    ]
    put(root / PAGE, of(root))
    return any(drawn)


def of(root: Path) -> str:
    """The page's text, from what is kept; with the plots that are there."""
    drawn = [name for name in gain_plot.NAMES if (root / PAGE).with_name(name).is_file()]
    return page(benches.load(root), (root / PLOT).is_file(), gains.load(root), drawn)


def page(
    timed: Sequence[Bench],
    with_plot: bool,
    compared: Sequence[Gain] = (),
    drawn: Sequence[str] = (),
) -> str:
    """The page's text. drawn: the plots of gains that are there."""
    models: dict[str, list[Bench]] = {}
    for bench in timed:
        models.setdefault(bench.model, []).append(bench)
    return render(
        "bench.md",
        models=models,
        compared=compared,
        plot=PLOT.name if with_plot and any(map(benches.paired, timed)) else "",
        gain_plots={name: gain_plot.NAMES[name] for name in drawn},
        **FUNCTIONS,
    )


def load_rows(bench: Bench) -> list[list[str]]:
    """A mode each: its throughput, and what it costs."""
    gained, rows = benches.gains(bench), []
    for mode, name in NAMES.items():
        if run := _telling(bench, mode):
            found = gained.get(mode)
            change = f"{signed(found.median)} % {_span(found)}" if found else "-"
            rows.append([name, *_rates(run), change, *_costs(run)])
    return rows


def _telling(bench: Bench, mode: str) -> TimedRun | None:
    """Of a mode's runs the latest with loads, else with first tokens, else the latest."""
    runs = [run for run in reversed(bench.runs) if run.mode == mode]
    return max(runs, key=lambda run: (bool(run.loads), bool(run.first_token_ms)), default=None)


def _span(found: benches.Change) -> str:
    return f"({signed(found.low)} to {signed(found.high)}, {len(found.ratios)} rounds)"


def _rates(run: TimedRun) -> list[str]:
    """Throughput and latency: medians, with the least and most."""
    if not run.loads:
        return ["-" if run.first_token_ms else f"{run.verdict}: {run.why}"[:90], "-"]
    rates = [one.tokens_per_s for one in run.loads]
    latencies = [one.mean_latency_s for one in run.loads]
    return [_spread(rates, 0), _spread(latencies, 2)]


def _spread(values: Sequence[float], digits: int) -> str:
    known = (statistics.median(values), min(values), max(values))
    return "{} ({} to {})".format(*(number(one, digits) for one in known))


def _costs(run: TimedRun) -> list[str]:
    """What a mode's prefill graphs took to capture, what the engine holds, and how often the graph
    was used."""
    graph, prefills = run.prefill_capture, run.prefills
    held = run.memory_mib.get("after_load", run.memory_mib.get("started"))
    return [
        number(sum(one.seconds for one in graph), 1) if graph else "-",
        number(sum(one.gb for one in graph), 2) if graph else "-",
        number(held / 1024, 1) if held else "-",
        f"{prefills.on_graph} of {prefills.prefills}" if prefills.prefills else "-",
    ]


def first_token_table(bench: Bench) -> str:
    """Medians; the change against eager prefill where it is shown."""
    runs, delays = benches.measured(bench, FIRST), benches.delays(bench)

    def cell(mode: str, shape: str) -> str:
        calls = runs[mode].first_token_ms.get(shape)
        found = delays.get(mode, {}).get(shape)
        change = f" ({signed(found.median)} %)" if found and found.shown else ""
        return number(calls.median, 1) + change if calls else "-"

    return table(
        ["first token, ms; changes that are shown", *(NAMES[mode] for mode in runs)],
        ([spoken(shape), *(cell(mode, shape) for mode in runs)] for shape in benches.shapes(bench)),
    )


def across(timed: Sequence[Bench], mode: str) -> str:
    """One mode's first tokens in every measurement that has them, beside each other; empty where
    fewer than two have."""
    found = [bench for bench in timed if mode in benches.beside_eager(bench, FIRST)]
    if len(found) < 2:
        return ""
    runs = [benches.measured(bench, FIRST) for bench in found]
    shapes = dict.fromkeys(shape for one in runs for shape in one[mode].first_token_ms)
    rows = [[spoken(shape), *(_both(one, mode, shape) for one in runs)] for shape in shapes]
    return table(["requests × tokens", *(bench.title for bench in found)], rows)


def _both(runs: dict[str, TimedRun], mode: str, shape: str) -> str:
    calls = [runs[name].first_token_ms.get(shape) for name in (EAGER, mode)]
    return " → ".join(number(one.median, 1) for one in calls if one) if all(calls) else "-"


def call_rows(gain: Gain) -> list[list[str]]:
    """First tokens of each shape, before and after."""
    return [
        [
            spoken(shape),
            *(str(one or "-") for one in gains.both(gains.calls, gain, shape)),
            gains.shown(gain, shape),
        ]
        for shape in gain.gain.shapes
    ]


LONG = "1x4096"  # of the page's first tables
NAME = 54  # the longest name of a kernel beside two numbers, in 80 columns


def summaries(compared: Sequence[Gain]) -> dict[str, list[list[str]]]:
    """Of each model the patched ways of prefilling, each beside the untouched tree of its run: the
    GPU's own time of 4096 tokens, its ratio to the floor, and input tokens a second."""
    tables: dict[str, list[list[str]]] = {}
    for (model, version), trees in ways.timed(compared).items():
        for one in trees:
            if one.tree == gains.PATCHED:
                row = [version, _both_ways(one), *_summary(one.gain)]
                tables.setdefault(ways.short(model), []).append(row)
    return tables


@dataclass(frozen=True)
class Column:
    """One of a table of loads. kind: of load; part: of what gains.served returns; unit: what it is
    counted in; digits: behind the point."""

    kind: str
    part: int
    unit: int = 1
    digits: int = 0


SHORT = (Column("gsm8k", 0), Column("chat-16", 1), Column("agent", 1))
NODE = (Column("long", 0), Column("prefill", 0, unit=1000, digits=1))


def served_summary(compared: Sequence[Gain], columns: Sequence[Column]) -> list[list[str]]:
    """Of each model, release and both ways of prefilling the loads before and after, each of the
    gain that has most of it, and the first such."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for gain in compared:
        if gain.gain.traffic and gains.runs(gain, gains.PATCHED):
            patched = ways.Timed(gains.PATCHED, ways.way_of(gain, gains.PATCHED), gain)
            cells = [_served(gain, column) for column in columns]
            key = (gain.model, ways.release(gain), _both_ways(patched))
            rows[key] = [max(pair, key=_whole) for pair in zip(rows.get(key, cells), cells)]
    return [[*key[1:], *cells] for key, cells in rows.items() if {*cells} != {"-"}]


def _whole(cell: str) -> int:
    """How many of the two figures of a cell are there."""
    return sum(part != "-" for part in cell.split(" → "))


def _served(gain: Gain, column: Column) -> str:
    both = gains.both(gains.served, gain, column.kind)
    return _arrow([one and one[column.part] / column.unit for one in both], column.digits)


def _both_ways(one: ways.Timed) -> str:
    """How the untouched tree of the same run prefilled, and how this one did."""
    known = gains.runs(one.gain, gains.UNTOUCHED)
    before = ways.way_of(one.gain, gains.UNTOUCHED) if known else "-"
    return one.way if before == one.way else f"{before} → {one.way}"


def _summary(gain: Gain) -> list[str]:
    busy, floor = gains.both(gains.busy_ms, gain, LONG), gain.floor_ms.get(LONG)
    ratio = busy[1] / floor if busy[1] and floor else None
    rates = [rate and rate / 1000 for rate in gains.both(gains.rate, gain)]
    return [_arrow(busy), number(ratio, 2), _arrow(rates)]


def _arrow(pair: Sequence[float | None], digits: int = 1) -> str:
    return " → ".join(number(one, digits) for one in pair) if any(pair) else "-"


def served_rows(gain: Gain) -> list[list[str]]:
    """Of each kind of load: tokens a second, and first tokens."""
    rows = []
    for kind in gain.gain.traffic:
        before, after = gains.both(gains.served, gain, kind)
        rates, halves, most = (
            [number(one[part] if one else None, digits) for one in (before, after)]
            for part, digits in ((0, 0), (1, 1), (2, 1))
        )
        change = gains.change(before and before[0], after and after[0])
        rows.append([kind, " → ".join(rates), change, " → ".join(halves), " → ".join(most)])
    return rows


def busy_rows(gain: Gain) -> list[list[str]]:
    """The GPU's own time of each shape, before and after."""
    rows = []
    for shape in gain.gain.shapes:
        busy, counts = (gains.both(what, gain, shape) for what in (gains.busy_ms, gains.launches))
        rows.append(
            [
                spoken(shape),
                *(number(one, 1) for one in busy),
                gains.change(*busy),
                number(gain.floor_ms.get(shape), 1),
                " → ".join(map(number, counts)),
            ]
        )
    return rows


def repeated_rows(gain: Gain) -> list[list[str]]:
    """Prefills that follow each other, before and after; none where nobody measured them."""
    found = {shape: gains.both(gains.repeated_ms, gain, shape) for shape in gain.gain.shapes}
    return [
        [spoken(shape), *(number(one, 1) for one in both), gains.change(*both)]
        for shape, both in found.items()
        if any(both)
    ]


def rate_row(gain: Gain) -> list[str]:
    rates = gains.both(gains.rate, gain)
    return ["median of all loads", *(number(one or None) for one in rates), gains.change(*rates)]


def peer_rows(gain: Gain) -> list[list[str]]:
    """Of each shape the first quartile of every tree and peer, and of each the input tokens a
    second; none where there is no peer."""
    if not gain.peers:
        return []
    rows = [
        [
            spoken(shape),
            *(_quartile(gains.calls(gain, tree, shape)) for tree in gains.TREES),
            *(_quartile(gains.peer_calls(peer, shape)) for peer in gain.peers),
        ]
        for shape in gain.gain.shapes
    ]
    rates = [*gains.both(gains.rate, gain), *map(gains.peer_rate, gain.peers)]
    return [*rows, ["input tokens/s", *map(number, rates)]]


def peer_busy_rows(gain: Gain) -> list[list[str]]:
    """The GPU's own time of each shape on every tree and peer; none where no peer was profiled."""
    if not any(peer.profile for peer in gain.peers):
        return []
    return [
        [
            spoken(shape),
            *(number(one, 1) for one in gains.both(gains.busy_ms, gain, shape)),
            *(number(gains.peer_busy(peer, shape), 1) for peer in gain.peers),
        ]
        for shape in gain.gain.shapes
    ]


def peer_kind_rows(gain: Gain, shape: str) -> list[list[str]]:
    """Where the time of a shape goes on the patched tree and on each peer."""
    each = (
        gains.groups(gain, gains.PATCHED, shape),
        *(gains.peer_groups(peer, shape) for peer in gain.peers),
    )
    found = [ways.kinds(groups) for groups in each]
    return [
        [name, *(number(one[name] or None, 1) for one in found)]
        for name in found[0]
        if any(one[name] for one in found)
    ]


def _quartile(calls: gains.Spread | None) -> str:
    return number(calls.first_quartile if calls else None, 1)


def _cut(name: str) -> str:
    """A kernel's name as a terminal of 80 columns shows it beside two numbers."""
    return name if len(name) <= NAME else f"{name[: NAME - 1]}…"


def kernel_rows(gain: Gain, shape: str) -> list[list[str]]:
    """Where the time of a shape goes, before and after; none where a tree was not profiled."""
    found = gains.both(gains.groups, gain, shape)
    if not all(found):
        return []
    named = gains.top(*found)
    rest = [sum(ms for name, ms in one.items() if name not in named) for one in found]
    rows = [[_cut(name), *(number(one.get(name), 2) for one in found)] for name in named]
    return [*rows, [gains.REST, *(number(one, 2) for one in rest)]]


def modes(gain: Gain, tree: str) -> str:
    """In what a tree's engines prefilled, and why."""
    ran = [
        ("eager prefill" if run.mode == EAGER else f"the {run.mode} graph")
        + (f" ({run.mode_why})" if run.mode_why else "")
        for run in gains.runs(gain, tree)
    ]
    return " and ".join(dict.fromkeys(ran))


FUNCTIONS = {
    one.__name__: one
    for one in (
        *(across, busy_rows, call_rows, first_token_table, repeated_rows),
        *(kernel_rows, load_rows, modes, rate_row),
        *(peer_busy_rows, peer_kind_rows, peer_rows),
        *(served_rows, served_summary, summaries),
    )
} | {"SHORT": SHORT, "NODE": NODE}
