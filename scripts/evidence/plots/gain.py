"""The plots of docs/bench.md about the untouched and the patched release: first tokens by length,
input tokens a second, and the GPU's time by kind of kernel.

In all of them a tree's way of prefilling has one colour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .. import gains, ways
from ..benches import EAGER
from ..gains import PATCHED, UNTOUCHED
from ..records import Gain, spoken
from ..ways import ASKED, PIECEWISE, Table, Timed
from . import paper

# What each shows is its text on the page.
NAMES = {
    "gain-first-tokens.png": "Time to the first token by the length of one prompt, log axes",
    "gain-input-rates.png": "Input tokens a second of a prefill load, by release",
    "gain-kernels.png": "The GPU's time of one prompt of 4096 tokens by kind of kernel",
}
COLORS = {
    (UNTOUCHED, EAGER): "0.65",
    (UNTOUCHED, PIECEWISE): "tab:brown",
    (UNTOUCHED, "graph"): "0.25",
    (PATCHED, EAGER): "tab:cyan",
    (PATCHED, PIECEWISE): "tab:orange",
    (PATCHED, "graph"): "tab:blue",
    (PATCHED, ASKED): "tab:purple",
}
PEERS = {"vllm": "tab:green", "sglang": "tab:olive"}  # another release of it
FLOOR, FLOOR_NAME = "tab:red", "matrix products alone"
COLUMNS = 4  # panels side by side, and entries of a legend
LARGE = "1x4096"  # whose kernels are shown


def draw(found: Sequence[Gain], folder: Path) -> list[Path]:
    """Write the plots of NAMES, each where it has something to show. Returns what was written:
    nothing without matplotlib."""
    table = ways.timed(found)
    pyplot = paper.pyplot()
    if not pyplot or not table:
        return []
    written = []
    makers: tuple[Callable[[Any, Table], Any], ...] = (
        _first_tokens,
        _rates,
        partial(_kernels, found),
    )
    for name, make in zip(NAMES, makers):
        if figure := make(pyplot, table):
            paper.save(figure, folder / name)
            written.append(folder / name)
    return written


def _of(table: Table, model: str) -> list[tuple[str, str]]:
    return [key for key in table if key[0] == model]


def _first_tokens(pyplot: Any, table: Table) -> Any:
    """A panel for each model and release: one line a way, with the floor below."""
    rows = -(-len(table) // COLUMNS)
    size = 3.2 * COLUMNS + 0.4, 2.6 * rows + 0.9
    figure, panels = pyplot.subplots(rows, COLUMNS, figsize=size, squeeze=False)
    for panel, (key, trees) in zip(panels.flat, table.items()):
        _lines(panel, trees)
        panel.set_title(
            "\n".join((ways.short(key[0]).replace(", nets", "\nnets"), key[1])), fontsize=8
        )
    for panel in panels.flat[len(table) :]:
        panel.set_axis_off()
    figure.supxlabel("tokens of one prompt", fontsize=9)
    figure.supylabel("milliseconds to the first token: fastest to median call", fontsize=9)
    _common_legend(figure, panels, FLOOR_NAME)
    return figure


def _lines(panel: Any, trees: Sequence[Timed]) -> None:
    for one in trees:
        known = [(tokens, one.calls(shape)) for tokens, shape in ways.alone(one.gain)]
        points = [(tokens, calls) for tokens, calls in known if calls]
        across, color = [tokens for tokens, _ in points], COLORS[one.tree, one.way]
        middle = [calls.first_quartile for _, calls in points]
        panel.plot(across, middle, color=color, label=one.name, marker=".", markersize=4)
        low = [calls.fastest for _, calls in points]
        high = [calls.median for _, calls in points]
        panel.fill_between(across, low, high, color=color, alpha=0.25, linewidth=0)
    for title, (peer, of) in ways.peers(trees).items():
        known_calls = [(tokens, gains.peer_calls(peer, shape)) for tokens, shape in ways.alone(of)]
        line = [(tokens, calls.first_quartile) for tokens, calls in known_calls if calls]
        if line:
            panel.plot(*zip(*line), color=PEERS[peer.name], linestyle="--", label=title)
    gain = trees[-1].gain
    floor = [(tokens, gain.floor_ms.get(shape)) for tokens, shape in ways.alone(gain)]
    known_floor = [(tokens, least) for tokens, least in floor if least]
    if known_floor:
        panel.plot(*zip(*known_floor), color=FLOOR, linestyle=":", label=FLOOR_NAME)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks([64, 256, 1024, 4096], ["64", "256", "1k", "4k"], fontsize=7)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.yaxis.set_minor_formatter(
        lambda value, _: f"{value:g}" if f"{value:g}"[0] in "25" else ""
    )
    panel.tick_params(axis="y", which="both", labelsize=7)
    panel.grid(which="major", alpha=0.25)


def _common_legend(figure: Any, panels: Any, *last: str) -> None:
    """One legend for all panels, in the order of COLORS, then peers."""
    found: dict[str, Any] = {}
    for panel in panels.flat:
        handles, labels = panel.get_legend_handles_labels()
        found |= dict(zip(labels, handles))
    names = [f"{tree}, {way}" for tree, way in COLORS]
    peers = sorted(name for name in found if name not in (*names, *last))
    shown = [name for name in (*names, *peers, *last) if name in found]
    lines = -(-len(shown) // COLUMNS)  # the legend's, of 0.17 inches each
    figure.tight_layout(rect=(0.02, 0.01, 1, 1 - (0.2 + 0.17 * lines) / figure.get_figheight()))
    figure.legend(
        [found[name] for name in shown],
        shown,
        loc="upper center",
        ncols=COLUMNS,
        frameon=False,
        fontsize=8,
    )


def _rates(pyplot: Any, table: Table) -> Any:
    """A panel for each model: input tokens a second of a prefill load, by release."""
    rated = {
        key: known
        for key, trees in table.items()
        if (known := [one for one in trees if gains.rate(one.gain, one.tree)])
    }
    models = [*dict.fromkeys(model for model, _ in rated)]
    if not models:
        return None
    wide = [1 + len(_of(rated, model)) for model in models]
    size = 0.75 * sum(wide) + 1, 3.2
    figure, panels = pyplot.subplots(1, len(models), figsize=size, squeeze=False, width_ratios=wide)
    for panel, model in zip(panels[0], models):
        keys = _of(rated, model)
        for place, key in enumerate(keys):
            _rate_bars(panel, place, rated[key])
        title = ways.short(model).replace(", ", "\n")
        paper.dress(panel, [version.replace(", ", "\n") for _, version in keys], "", "", 6.5)
        panel.set_title(title, fontsize=8)
        panel.tick_params(axis="y", labelsize=7)
    panels[0][0].set_ylabel("1000 input tokens/s", fontsize=8)
    _common_legend(figure, panels)
    return figure


def _rate_bars(panel: Any, place: int, trees: Sequence[Timed]) -> None:
    """A release's bars, side by side."""
    for number, one in enumerate(trees):
        aside = (number - (len(trees) - 1) / 2) * 0.8 / len(trees)
        rate = (gains.rate(one.gain, one.tree) or 0) / 1000
        color = COLORS[one.tree, one.way]
        panel.bar(place + aside, rate, 0.75 / len(trees), color=color, label=one.name)


def _kernels(timed: Sequence[Gain], pyplot: Any, table: Table) -> Any:
    """A bar for each tree and way, and each peer: the GPU's time of one prompt by kind of kernel,
    and the floor."""
    bars = [bar for bar in _bars(timed, table) if any(bar[1].values())]
    if not bars:
        return None
    figure, panel = pyplot.subplots(figsize=(11, 0.27 * len(bars) + 1.6))
    places = range(len(bars), 0, -1)
    ends = _stack(panel, places, [kinds for _, kinds, _ in bars])
    for place, (_, _, least), end in zip(places, bars, ends):
        if least:
            panel.plot([least, least], [place - 0.45, place + 0.45], color="black", linewidth=1.6)
            panel.text(end + 1, place, f"{end / least:.2f} × floor", va="center", fontsize=6.5)
    panel.set_yticks(places, [name for name, *_ in bars], fontsize=7)
    panel.set_ylim(0.3, len(bars) + 0.7)
    panel.set_xlim(right=1.15 * max(ends))
    across = f"kernel time of {spoken(LARGE)} tokens, ms; black: the floor, {FLOOR_NAME}"
    panel.set_xlabel(across, fontsize=8)
    panel.grid(axis="x", alpha=0.25)
    paper.legend(panel, loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=5)
    figure.tight_layout()
    return figure


def _bars(
    timed: Sequence[Gain], table: Table
) -> Iterator[tuple[str, dict[str, float], float | None]]:
    """Of each tree and way, and of each peer's latest profile: its name, milliseconds by kind of
    kernel, and the floor of its run."""
    for (model, version), trees in table.items():
        for one in trees:
            name = f"{ways.short(model)}; {version}: {one.name}"
            yield name, one.kinds(LARGE), one.gain.floor_ms.get(LARGE)
        beside = [gain for gain in timed if (gain.model, ways.release(gain)) == (model, version)]
        peers = {
            peer.title: (ways.kinds(gains.peer_groups(peer, LARGE)), gain.floor_ms.get(LARGE))
            for gain in sorted(beside, key=lambda gain: gain.date)
            for peer in gain.peers
            if LARGE in peer.profile
        }
        for title, (kinds, floor) in peers.items():
            yield f"{ways.short(model)}; beside {version}: {title}", kinds, floor


def _stack(panel: Any, places: Sequence[int], found: Sequence[dict[str, float]]) -> list[float]:
    """Bars of several parts; where each ends."""
    from matplotlib import colormaps

    ends = [0.0] * len(found)
    for number, name in enumerate(found[0]):
        parts = [one[name] for one in found]
        panel.barh(places, parts, 0.8, ends, color=colormaps["tab10"](number), label=name)
        ends = [end + part for end, part in zip(ends, parts)]
    return ends
