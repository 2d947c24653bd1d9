"""Make docs/bench.md and its plots from what was measured: every number comes from evidence/.

Gains against the untouched release come first (gainpage.py), graph modes beside each other
(*.bench.json) behind them. The plots need matplotlib, which nothing else here does: they are drawn
where matplotlib is, and left as they were elsewhere.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from patchqueue.hint import counted, to_type

from . import gainpage
from .records import Bench, Calls, Gain, TimedRun
from .store import FIRST_SUBJECT, timed

PAGE, PLOT = Path("docs/bench.md"), Path("docs/bench.png")
EAGER = "eager"
NAMES = {
    "eager": "eager prefill",
    "piecewise": "piecewise, eager compiler",
    "piecewise-inductor": "piecewise, inductor",
    "breakable": "breakable",
}
# sglang#19903's own throughput gains on an H100, in percent
REPORTED = {"piecewise": 1.4, "piecewise-inductor": 10.5}
SURE = 0.95  # how often an interval holds the median that it is about
COLORS = {
    "eager": "0.4",
    "piecewise": "tab:orange",
    "piecewise-inductor": "tab:green",
    "breakable": "tab:blue",
}
LOADS, FIRST = "loads", "first_token_ms"
INTRO = f"""# What the queue is worth

Made by {to_type("bench", "--page")} from `evidence/*/*.gain.json` and `*.bench.json`; not to be edited.
"""  # noqa: E501
HOW = f"""## Graph modes beside each other

Every mode has an engine of its own on the one GPU, and they take turns: A B C, C B A, and so on. So
each round of the load, and each turn of first tokens, is a paired comparison with eager prefill. A gain is the median of
the paired ratios. The interval behind it holds the median with {SURE * 100:.0f} % confidence (sign test). Of fewer than six pairs it
spans all of them. Where it holds 0, no gain was shown. About one interval in twenty misses by chance.
"""  # noqa: E501


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


def write(root: Path) -> bool:
    """Write the page, and the plot where matplotlib is installed. Returns whether the plot was
    drawn."""
    benches, gains = load(root), gainpage.load(root)
    (root / PAGE).parent.mkdir(parents=True, exist_ok=True)
    drawn = [draw(benches, root / PLOT), gainpage.draw(gains, root / gainpage.PLOT)]
    (root / PAGE).write_text(of(root), encoding="utf-8")
    return any(drawn)


def of(root: Path) -> str:
    """The page's text, from what is kept; with the plots that are there."""
    plots = [(root / plot).is_file() for plot in (PLOT, gainpage.PLOT)]
    return page(load(root), plots[0], gainpage.load(root), plots[1])


def page(
    benches: Sequence[Bench],
    with_plot: bool,
    gains: Sequence[Gain] = (),
    with_gain_plot: bool = False,
) -> str:
    """The page's text."""
    if not benches and not gains:
        return INTRO + "\nNothing was measured yet.\n"
    against = gainpage.text(gains, notes, with_gain_plot)
    if not benches:
        return f"{INTRO}\n{against}"
    parts = [INTRO, against, HOW]
    if with_plot and any(paired(bench) for bench in benches):
        parts.append(
            "![Time to first token and throughput of the graph modes against eager"
            f" prefill]({PLOT.name})\n"
        )
    for model in dict.fromkeys(bench.model for bench in benches):
        mine = [bench for bench in benches if bench.model == model]
        parts += [f"### {model}\n", setting(mine)]
        for bench in mine:
            parts += [
                f"#### {bench.title}\n",
                meaning(bench) + "\n",
                load_table(bench),
                first_token_table(bench),
                notes(bench),
            ]
        parts += [across(mine, "breakable")]
    return "\n".join(part for part in parts if part)


def setting(benches: Sequence[Bench]) -> str:
    """What was sent to what, in the measurements of one model."""
    load = benches[0].load
    said = [f"The model has the published shape of {benches[0].model} and dummy weights."]
    if any(measured(bench, LOADS) for bench in benches):
        said.append(
            f"The load is shaped as GSM8K's: {load.requests} requests, at most"
            f" {load.in_flight} in flight. A prompt has {load.mean_prompt} tokens on average,"
            f" of which all share the first {load.shared_prefix}. An answer has"
            f" {load.mean_answer} tokens on average. The prefix cache is"
            f" {'on' if load.prefix_cache else 'off'}, and empty when a load begins. One load"
            " goes before those that count."
        )
    said.append(
        f"One forward takes at most {load.chunk} tokens of prompts. Graphs are captured for"
        f" {len(load.capture)} sizes from {min(load.capture)} to {max(load.capture)}"
        " tokens. First tokens are timed around the whole call."
    )
    return " ".join(said) + "\n"


def measured(bench: Bench, what: str) -> dict[str, TimedRun]:
    """By mode, in NAMES' order, the latest run that measured `what`."""
    runs = {run.mode: run for run in bench.runs if getattr(run, what)}
    return {mode: runs[mode] for mode in NAMES if mode in runs}


def paired(bench: Bench) -> bool:
    """Whether modes took turns. The first benches ran one mode after the other: these show what
    drifted, not what was gained."""
    return any(run.session for run in bench.runs)


def beside_eager(bench: Bench, what: str) -> dict[str, TimedRun]:
    """The other modes that took turns with eager prefill."""
    runs = measured(bench, what)
    session = runs[EAGER].session if EAGER in runs else ""
    return {
        mode: run
        for mode, run in runs.items()
        if mode != EAGER and session and run.session == session
    }


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


def meaning(bench: Bench) -> str:
    """What the numbers say, in words that follow from them."""
    if not paired(bench):
        return (
            "Modes ran one after the other here, and equal loads differed as much as modes did: no"
            " gain can be told. To be measured again, side by side."
        )
    found = [load_meaning(bench), first_token_meaning(bench)]
    return (
        " ".join(part for part in found if part)
        or "Eager prefill or every graph mode is missing, so nothing can be compared."
    )


def load_meaning(bench: Bench) -> str:
    parts = []
    for mode in beside_eager(bench, LOADS):
        if found := gain(bench, mode):
            other = (
                f" The pull request reports {REPORTED[mode]:+.1f} % on an H100."
                if mode in REPORTED
                else ""
            )
            parts.append(
                f"With {_graph(mode)}, {found.median:+.1f} %"
                f" {span(found, 'rounds')}{_verdict(found)}.{other}"
            )
    if not parts:
        return ""
    same = itself(bench)
    noise = (
        f" Eager prefill against itself, odd rounds against even ones: {same.median:+.1f} %"
        f" {span(same, 'pairs')}."
        if same
        else ""
    )
    prefill = measured(bench, LOADS)[EAGER].loads[-1]
    return (
        f"Output tokens per second against eager prefill. {' '.join(parts)}{noise} A prefill of the"
        f" load had {prefill.prefill_tokens} tokens on average."
    )


def _verdict(found: Change) -> str:
    """What an interval around nothing means: too few pairs could not have shown a gain."""
    return (
        ""
        if found.shown
        else ": no gain shown"
        if found.sure
        else ": too few rounds to show a gain"
    )


def span(found: Change, what: str) -> str:
    return f"({found.low:+.1f} to {found.high:+.1f}, {len(found.ratios)} {what})"


def first_token_meaning(bench: Bench) -> str:
    """Where each graph mode saves time to first token, and where it costs some."""
    parts = []
    for mode, run in beside_eager(bench, FIRST).items():
        found = {shape: delay(bench, mode, shape) for shape in run.first_token_ms}
        clear = {shape: one.median for shape, one in found.items() if one and one.shown}
        less, more = (
            {s: p for s, p in clear.items() if p < 0},
            {s: p for s, p in clear.items() if p > 0},
        )
        said = [
            f"{word} at {len(part)}, by up to {_most(part)}"
            for word, part in (("faster", less), ("slower", more))
            if part
        ]
        parts.append(
            f"With {_graph(mode)} it is {' and '.join(said) or 'neither faster nor slower'}."
        )
    return (
        f"Time to first token against eager prefill, {counted(len(found), 'shape')}."
        f" {' '.join(parts)}"
        if parts
        else ""
    )


def _graph(mode: str) -> str:
    """A graph mode as the subject of a sentence."""
    kind, _, compiler = NAMES[mode].partition(", ")
    return f"the {kind} graph ({compiler})" if compiler else f"the {kind} graph"


def _most(changes: dict[str, float]) -> str:
    shape = max(changes, key=lambda one: abs(changes[one]))
    return f"{abs(changes[shape]):.1f} % ({spoken(shape)})"


def spoken(shape: str) -> str:
    return shape.replace("x", " × ")


def load_table(bench: Bench) -> str:
    loads, beside, rows = measured(bench, LOADS), beside_eager(bench, LOADS), []
    for mode in NAMES:  # noqa: PLC0206
        run = (
            loads.get(mode)
            or measured(bench, FIRST).get(mode)
            or next((run for run in reversed(bench.runs) if run.mode == mode), None)
        )
        if run:
            found = gain(bench, mode) if mode in beside else None
            rows.append(
                [
                    NAMES[mode],
                    *_rates(run),
                    f"{found.median:+.1f} % {span(found, 'rounds')}" if found else "-",
                    *_costs(run),
                ]
            )
    return table(
        [
            "mode",
            "output tokens/s",
            "mean latency, s",
            "against eager prefill",
            "capture, s",
            "graph, GB",
            "engine, GiB",
            "prefills on the graph",
        ],
        rows,
    )


def _rates(run: TimedRun) -> list[str]:
    """Throughput and latency: medians, with the least and most."""
    if not run.loads:
        return ["-" if run.first_token_ms else f"{run.verdict}: {run.why}"[:90], "-"]
    found = []
    for name, form in (("tokens_per_s", "{:.0f}"), ("mean_latency_s", "{:.2f}")):
        values = [getattr(one, name) for one in run.loads]
        found.append(
            f"{form.format(statistics.median(values))} ({form.format(min(values))} to"
            f" {form.format(max(values))})"
        )
    return found


def _costs(run: TimedRun) -> list[str]:
    """What a mode's prefill graphs took to capture, what the engine holds, and how often the graph
    was used."""
    graph, prefills = run.prefill_capture, run.prefills
    held = run.memory_mib.get("after_load", run.memory_mib.get("started"))
    return [
        f"{sum(one.seconds for one in graph):.1f}" if graph else "-",
        f"{sum(one.gb for one in graph):.2f}" if graph else "-",
        f"{held / 1024:.1f}" if held else "-",
        f"{prefills.on_graph} of {prefills.prefills}" if prefills.prefills else "-",
    ]


def first_token_table(bench: Bench) -> str:
    """Medians; the change against eager prefill where it is shown."""
    runs, beside = measured(bench, FIRST), beside_eager(bench, FIRST)
    shapes = list(dict.fromkeys(shape for run in runs.values() for shape in run.first_token_ms))

    def cell(mode: str, shape: str) -> str:
        if shape not in runs[mode].first_token_ms:
            return "-"
        found = delay(bench, mode, shape) if mode in beside else None
        return f"{runs[mode].first_token_ms[shape].median:.1f}" + (
            f" ({found.median:+.1f} %)" if found and found.shown else ""
        )

    rows = [[spoken(shape), *(cell(mode, shape) for mode in runs)] for shape in shapes]
    return (
        table(["first token, ms; changes that are shown", *(NAMES[mode] for mode in runs)], rows)
        if runs
        else ""
    )


def across(benches: Sequence[Bench], mode: str) -> str:
    """One mode's first tokens in every measurement that has them, beside each other; empty where
    fewer than two have."""
    found = [bench for bench in benches if mode in beside_eager(bench, FIRST)]
    if len(found) < 2:
        return ""

    def cell(bench: Bench, shape: str) -> str:
        runs = [measured(bench, FIRST)[name].first_token_ms.get(shape) for name in (EAGER, mode)]
        return " → ".join(f"{one.median:.1f}" for one in runs if one) if all(runs) else "-"

    shapes = dict.fromkeys(
        shape for bench in found for shape in measured(bench, FIRST)[mode].first_token_ms
    )
    text = (
        f"#### {NAMES[mode].capitalize()}, release beside release\n\nMilliseconds to first token,"
        f" eager prefill → {NAMES[mode]}, each pair side by side, the releases each in a run of its"
        " own.\n\n"
    )
    return text + table(
        ["requests × tokens", *(bench.title for bench in found)],
        [[spoken(shape), *(cell(bench, shape) for bench in found)] for shape in shapes],
    )


def notes(bench: Bench) -> str:
    """Under what conditions the release ran."""
    torch = bench.torch
    running = sorted({run.running for run in bench.runs if run.running})
    said = (
        [f"Each engine ran at most {' or '.join(map(str, running))} requests at once."]
        if running
        else []
    )
    said += [
        f"Driver {bench.gpu.driver}, torch {torch.version}, Python {bench.python},"
        f" {bench.date}, queue release {bench.queue_release}."
    ]
    if cpus := bench.cpus:
        said.append(f"The bench and its engines had {counted(cpus, 'hardware thread')}.")
    if bench.earlier_queue:
        said.append("The queue has changed since.")
    if not str(bench.idle).startswith("stopped") and paired(bench):
        said.append(
            "Engines that waited for their turn polled for requests meanwhile; the bench has"
            " stopped them since."
        )
    shapes = [
        shape
        for run in beside_eager(bench, FIRST).values()
        for shape in run.first_token_ms.values()
    ]
    if any(shape.lost is not None for shape in shapes):
        lost, kept = (
            sum(count) for count in zip(*((shape.lost or 0, len(shape.all)) for shape in shapes))
        )
        said.append(
            "A paired turn of first tokens counts where its hardware threads were fast before and"
            f" after each call: {lost} of {lost + kept} do not."
        )
    if bench.remark:
        said.append(bench.remark)
    if bench.beside:
        said.append(f"Meanwhile on the host: {bench.beside}.")
    if torch.off_pin:
        said.append(f"The release pins torch {torch.pinned}: it ran off its pin.")
    if bench.kernel:
        said.append(f"Kernels from {bench.kernel.package}: {bench.kernel.reason}.")
    said += [f"Shim {shim.module}: {shim.reason}." for shim in bench.shims]
    return " ".join(said) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; numbers to the right."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def draw(benches: Sequence[Bench], out: Path) -> bool:
    """Per measurement, a panel of first tokens and one of throughput, against eager prefill. False
    where there is no matplotlib or nothing to draw."""
    benches = [
        bench for bench in benches if beside_eager(bench, FIRST) or beside_eager(bench, LOADS)
    ]
    try:
        import matplotlib
    except ImportError:
        return False
    if not benches:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        len(benches),
        2,
        figsize=(12, 3.9 * len(benches)),
        squeeze=False,
        sharey="col",
        width_ratios=(1.9, 1),
    )
    for (left, right), bench in zip(panels, benches):
        _first_token_panel(left, bench)
        _throughput_panel(right, bench)
    figure.tight_layout()
    figure.savefig(out, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return True


def _first_token_panel(panel: Any, bench: Bench) -> None:
    """Change of time to first token in percent, shapes side by side; below each what eager prefill
    takes."""
    beside, runs = beside_eager(bench, FIRST), measured(bench, FIRST)
    eager = runs[EAGER].first_token_ms if EAGER in runs else {}
    for number, (mode, _run) in enumerate(beside.items()):
        found = [
            (place + 0.16 * (number - (len(beside) - 1) / 2), delay(bench, mode, shape))
            for place, shape in enumerate(eager)
        ]
        _points(panel, [(place, one) for place, one in found if one], mode)
    panel.axhline(0, color="0.4", linewidth=0.8)
    panel.set_xticks(
        range(len(eager)),
        [f"{spoken(shape)}\n{one.median:.0f} ms" for shape, one in eager.items()],
        fontsize=8,
    )
    panel.set_xlabel("requests × tokens, and eager prefill's own time to first token")
    panel.set_ylabel("time to first token against eager, %")
    panel.set_title(
        f"{bench.title}, {bench.model.partition(',')[0]}: time to first token (below 0 is faster)",
        fontsize=10,
    )
    panel.grid(axis="y", alpha=0.25)
    for mode in beside:
        panel.plot([], [], "o", color=COLORS[mode], markersize=5, label=NAMES[mode])
    panel.plot(
        [], [], "o", color="0.4", markerfacecolor="white", markersize=5, label="no change shown"
    )
    panel.legend(frameon=False, fontsize=8)


def _throughput_panel(panel: Any, bench: Bench) -> None:
    """Gain in throughput in percent: every round, the median with its interval, and what the pull
    request reports."""
    rows = (
        [("eager, against itself", EAGER, itself(bench))] if EAGER in measured(bench, LOADS) else []
    )
    rows += [(NAMES[mode], mode, gain(bench, mode)) for mode in beside_eager(bench, LOADS)]
    rows = [row for row in rows if row[2]]
    if not rows:
        return panel.set_axis_off()
    for place, (_, mode, found) in enumerate(rows):
        _points(panel, [(place, found)], mode)
        panel.plot(
            [place - 0.18] * len(found.ratios),
            found.ratios,
            ".",
            color=COLORS[mode],
            alpha=0.45,
            markersize=5,
        )
    reported = [
        (place + 0.18, REPORTED[mode])
        for place, (_, mode, _) in enumerate(rows)
        if mode in REPORTED
    ]
    if reported:
        panel.plot(*zip(*reported), "D", color="none", markeredgecolor="0.3", markersize=6)
        panel.set_xlabel("◇ what the pull request reports, on an H100")
    panel.axhline(0, color="0.4", linewidth=0.8)
    panel.set_xticks(
        range(len(rows)), [name.replace(", ", ",\n") for name, _, _ in rows], fontsize=7.5
    )
    panel.set_xlim(-0.5, len(rows) - 0.5)
    panel.set_ylabel("output tokens/s against eager, %")
    panel.set_title("throughput of the load (above 0 is faster)", fontsize=10)
    panel.grid(axis="y", alpha=0.25)


def _points(panel: Any, found: Sequence[tuple[float, Change]], mode: str) -> None:
    """Medians with their intervals; hollow where no change is shown."""
    for shown in (True, False):
        part = [(place, one) for place, one in found if one.shown == shown]
        if part:
            low, high = (
                [abs(getattr(one, end) - one.median) for _, one in part] for end in ("low", "high")
            )
            panel.errorbar(
                [place for place, _ in part],
                [one.median for _, one in part],
                yerr=[low, high],
                fmt="o",
                color=COLORS[mode],
                capsize=2.5,
                elinewidth=1.2,
                markersize=5,
                markerfacecolor=COLORS[mode] if shown else "white",
            )
