"""The plot of docs/bench.md: graph modes against eager prefill."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..benches import (
    EAGER,
    FIRST,
    LOADS,
    NAMES,
    REPORTED,
    Change,
    beside_eager,
    delay,
    gain,
    itself,
    measured,
)
from ..records import Bench, spoken
from . import paper

COLORS = {
    "eager": "0.4",
    "piecewise": "tab:orange",
    "piecewise-inductor": "tab:green",
    "breakable": "tab:blue",
}


def draw(benches: Sequence[Bench], out: Path) -> bool:
    """Per measurement, a panel of first tokens and one of throughput, against eager prefill. False
    where there is no matplotlib or nothing to draw."""
    benches = [
        bench for bench in benches if beside_eager(bench, FIRST) or beside_eager(bench, LOADS)
    ]
    pyplot = paper.pyplot()
    if not pyplot or not benches:
        return False

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
    paper.save(figure, out)
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
