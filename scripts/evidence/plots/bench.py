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
    delays,
    gains,
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
    beside, runs = delays(bench), measured(bench, FIRST)
    eager = runs[EAGER].first_token_ms if EAGER in runs else {}
    for number, (mode, found) in enumerate(beside.items()):
        aside = 0.16 * (number - (len(beside) - 1) / 2)
        points = [(place + aside, found.get(shape)) for place, shape in enumerate(eager)]
        _points(panel, [(place, one) for place, one in points if one], mode)
    panel.axhline(0, color="0.4", linewidth=0.8)
    title = f"{bench.title}, {bench.model.partition(',')[0]}: time to first token"
    shapes = [f"{spoken(shape)}\n{one.median:.0f} ms" for shape, one in eager.items()]
    across = "time to first token against eager, %"
    paper.dress(panel, shapes, f"{title} (below 0 is faster)", across)
    panel.set_xlabel("requests × tokens, and eager prefill's own time to first token")
    for mode in beside:
        panel.plot([], [], "o", color=COLORS[mode], markersize=5, label=NAMES[mode])
    panel.plot(
        [], [], "o", color="0.4", markerfacecolor="white", markersize=5, label="no change shown"
    )
    paper.legend(panel)


def _throughput_panel(panel: Any, bench: Bench) -> None:
    """Gain in throughput in percent: every round, the median with its interval, and what the pull
    request reports."""
    same = itself(bench) if EAGER in measured(bench, LOADS) else None
    rows = [("eager, against itself", EAGER, same)] if same else []
    rows += [(NAMES[mode], mode, found) for mode, found in gains(bench).items()]
    if not rows:
        panel.set_axis_off()
        return
    for place, (_, mode, found) in enumerate(rows):
        _points(panel, [(place, found)], mode)
        places, how = [place - 0.18] * len(found.ratios), {"alpha": 0.45, "markersize": 5}
        panel.plot(places, found.ratios, ".", color=COLORS[mode], **how)
    reported = [
        (place + 0.18, REPORTED[mode])
        for place, (_, mode, _) in enumerate(rows)
        if mode in REPORTED
    ]
    if reported:
        panel.plot(*zip(*reported), "D", color="none", markeredgecolor="0.3", markersize=6)
        panel.set_xlabel("◇ what the pull request reports, on an H100")
    panel.axhline(0, color="0.4", linewidth=0.8)
    names = [name.replace(", ", ",\n") for name, _, _ in rows]
    title = "throughput of the load (above 0 is faster)"
    paper.dress(panel, names, title, "output tokens/s against eager, %", 7.5)
    panel.set_xlim(-0.5, len(rows) - 0.5)


def _points(panel: Any, found: Sequence[tuple[float, Change]], mode: str) -> None:
    """Medians with their intervals; hollow where no change is shown."""
    for shown in (True, False):
        part = [(place, one) for place, one in found if one.shown == shown]
        if part:
            places, changes = zip(*part)
            middles = [one.median for one in changes]
            whiskers = [
                [one.median - one.low for one in changes],
                [one.high - one.median for one in changes],
            ]
            face = COLORS[mode] if shown else "white"
            how = {"fmt": "o", "markersize": 5, "capsize": 2.5, "elinewidth": 1.2}
            colours = {"color": COLORS[mode], "markerfacecolor": face}
            panel.errorbar(places, middles, yerr=whiskers, **how, **colours)
