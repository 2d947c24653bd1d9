"""The plot of docs/bench.md: the untouched and the patched release."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..gains import (
    PATCHED,
    REST,
    TREES,
    UNTOUCHED,
    Spread,
    calls,
    groups,
    largest,
    runs,
    shown,
    title,
    top,
)
from ..records import Gain, spoken
from . import paper

COLORS = {UNTOUCHED: "0.6", PATCHED: "tab:blue"}


def draw(gains: Sequence[Gain], out: Path) -> bool:
    """Per gain, a panel of first tokens and one of kernels. False without matplotlib or a gain."""
    gains = [
        gain
        for gain in gains
        if not gain.gain.traffic
        and all(runs(gain, tree) and calls(gain, tree, largest(gain)) for tree in TREES)
    ]
    pyplot = paper.pyplot()
    if not pyplot or not gains:
        return False

    figure, panels = pyplot.subplots(
        len(gains), 2, figsize=(12, 3.6 * len(gains)), squeeze=False, width_ratios=(1.3, 1)
    )
    for (left, right), gain in zip(panels, gains):
        _first_token_panel(left, gain)
        _kernel_panel(right, gain)
    figure.tight_layout()
    paper.save(figure, out)
    return True


def label(name: str) -> str:
    """A group's name in a legend: matplotlib leaves out what begins with an underscore."""
    return name.lstrip("_")[:34]


def _first_token_panel(panel: Any, gain: Gain) -> None:
    """First quartiles side by side, from fastest to median; the floor as a line across."""
    shapes = gain.gain.shapes
    for tree, aside in zip(TREES, (-0.2, 0.2)):
        known = [(place, calls(gain, tree, shape)) for place, shape in enumerate(shapes)]
        _bars(panel, gain, tree, {place: one for place, one in known if one}, aside)
    floors = [(place, gain.floor_ms.get(shape)) for place, shape in enumerate(shapes)]
    name = "matrix products alone"
    for place, least in floors:
        if least:
            across, up = [place - 0.42, place + 0.42], [least, least]
            panel.plot(across, up, color="tab:red", linewidth=1.4, label=name)
            name = ""
    paper.dress(panel, [*map(spoken, shapes)], title(gain), "time to first token, ms")
    panel.set_xlabel("requests × tokens; pale: no change is shown")
    panel.set_ylim(top=1.3 * panel.get_ylim()[1])  # for the legend
    paper.legend(panel)


def _bars(panel: Any, gain: Gain, tree: str, found: dict[int, Spread], aside: float) -> None:
    """One tree's first tokens, by place."""
    heights = [one.first_quartile for one in found.values()]
    whiskers = [
        [one.first_quartile - one.fastest for one in found.values()],
        [one.median - one.first_quartile for one in found.values()],
    ]
    places, how = [place + aside for place in found], {"ecolor": "0.2", "capsize": 2}
    bars = panel.bar(places, heights, 0.38, yerr=whiskers, color=COLORS[tree], label=tree, **how)
    for bar, place in zip(bars, found):
        bar.set_alpha(1.0 if shown(gain, gain.gain.shapes[place]).endswith("%") else 0.35)


def _kernel_panel(panel: Any, gain: Gain) -> None:
    """The GPU's time of the largest shape by kernel, one bar for each tree."""
    shape = largest(gain)
    found = [groups(gain, tree, shape) for tree in TREES]
    named = top(*found)[:9]
    ends = [0.0, 0.0]
    from matplotlib import colormaps

    for number, name in enumerate([*named, REST]):
        parts = [
            one.get(name, 0.0)
            if name != REST
            else sum(ms for other, ms in one.items() if other not in named)
            for one in found
        ]
        panel.barh([1, 0], parts, left=ends, color=colormaps["tab10"](number), label=label(name))
        ends = [end + part for end, part in zip(ends, parts)]
    if least := gain.floor_ms.get(shape):
        panel.axvline(least, color="tab:red", linewidth=1.4)
    panel.set_yticks([1, 0], TREES)
    panel.set_ylim(-1.9, 1.5)
    panel.set_xlabel(f"kernel time of {spoken(shape)}, ms")
    paper.legend(panel, fontsize=6.5, ncols=2, loc="lower left")
