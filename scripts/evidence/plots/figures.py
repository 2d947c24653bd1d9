"""The plots of docs/figures.md."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .. import benches
from ..figures import MODES, Captured, Measured, captures, columns, timed_benches, tree_then
from ..records import Bench, Figure, Verdict, spoken
from . import paper
from .bench import COLORS

VERDICTS = {
    "passed": "#4c9f70",
    "failed": "#c8453c",
    "not applicable": "#b9b9b9",
    "not run": "#f3f3f3",
}
EARLIER_HATCH = "////"
BELOW = 0.95  # inches below the squares: names of models in three lines, and the legend


def draw_tool(pyplot: Any, measured: Measured) -> Any:
    """Times beside their limits; below, when a run was killed and what it left."""
    figures = measured.tool.figures if measured.tool else ()
    timed = [one for one in figures if "median" in one.details]
    killed = [one for one in figures if "moments" in one.details]
    if not timed and not killed:
        return None
    figure, (top, bottom) = pyplot.subplots(
        2,
        1,
        figsize=(9, 1.9 + 0.75 * (len(timed) + len(killed))),
        height_ratios=(max(len(timed), 1), max(len(killed), 1)),
    )
    _times(top, timed)
    _kills(bottom, killed)
    return figure


def _times(panel: Any, timed: Sequence[Figure]) -> None:
    for place, one in enumerate(timed):
        seconds, colour = one.details["seconds"], VERDICTS["passed" if one.met else "failed"]
        limit = float("".join(letter for letter in one.limit if letter in "0123456789."))
        panel.barh(place, one.details["median"], height=0.5, color=colour, alpha=0.75)
        panel.plot(seconds, [place] * len(seconds), "o", color="0.2", markersize=3.5)
        panel.plot([limit] * 2, [place - 0.38, place + 0.38], color="0.1", linewidth=2)
    _rows(panel, timed, "seconds: median, ● each run, ┃ limit")


def _kills(panel: Any, killed: Sequence[Figure]) -> None:
    colours = {"absent": "0.55", "applied": VERDICTS["passed"], "mixed": "tab:orange"}
    for place, one in enumerate(killed):
        for moment in one.details["moments"]:
            mark = "o" if moment["was running"] else "x"
            colour = colours.get(tree_then(moment), VERDICTS["failed"])
            panel.plot(moment["second"], place, mark, color=colour, markersize=6)
    _rows(panel, killed, "second of the kill, and what was there then")
    for mark, colour, what in (
        ("o", colours["applied"], "a whole one"),
        ("o", colours["absent"], "none yet, pristine or old"),
        ("o", colours["mixed"], "old and new files"),
        ("o", VERDICTS["failed"], "a broken one"),
        ("x", "0.3", "the run had ended before the kill"),
    ):
        panel.plot([], [], mark, color=colour, markersize=6, label=what)
    paper.legend(panel, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.32))


def _rows(panel: Any, figures: Sequence[Figure], label: str) -> None:
    """A line for each figure, with what it shows at its end."""
    for place, one in enumerate(figures):
        _note(panel, one.shown, (1.01, place), 8.5, xycoords=("axes fraction", "data"), va="center")
    names = [one.name.replace(", ", ",\n") for one in figures]
    panel.set_yticks(range(len(names)), names, fontsize=8.5)
    panel.set_ylim(max(len(names), 1) - 0.5, -0.5)
    panel.set_xlim(left=0)
    panel.set_xlabel(label, fontsize=8.5)
    panel.grid(axis="x", alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)


def _note(panel: Any, text: str, place: tuple[float, float], size: float, **how: Any) -> None:
    """Text that may stand beside the panel."""
    panel.annotate(text, place, fontsize=size, annotation_clip=False, **how)


def draw_proofs(pyplot: Any, measured: Measured) -> Any:
    """A row for each release and GPU, a square for each model in each graph mode; hatched where the
    queue has changed since."""
    across, proofs = columns(measured), measured.proofs
    if not proofs or not across:
        return None
    figure, panel = pyplot.subplots(figsize=(2.6 + 0.62 * len(across), 2.6 + 0.5 * len(proofs)))
    for row, one in enumerate(proofs):
        runs = {(run.model, run.mode): run for run in one.runs}
        for column, key in enumerate(across):
            earlier = key in runs and measured.earlier(one, runs[key])
            verdict = runs[key].verdict if key in runs else "not run"
            _square(pyplot, panel, (column, row), verdict, earlier)
    _name_models(panel, [model for model, _ in across], len(proofs) - 0.35)
    modes = [mode.replace("piecewise-inductor", "inductor") for _, mode in across]
    panel.set_xticks(range(len(across)), modes, rotation=40, ha="left", fontsize=8.5)
    panel.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    rows = [f"{one.version}\n{one.gpu.name}{one.attention_told}" for one in proofs]
    panel.set_yticks(range(len(proofs)), rows, fontsize=8.5)
    panel.set_xlim(-0.5, len(across) - 0.5)
    panel.set_ylim(len(proofs) - 0.5, -0.5)
    panel.spines[:].set_visible(False)
    _explain(pyplot, figure)
    figure.tight_layout(rect=(0, BELOW / figure.get_figheight(), 1, 1))
    return figure


def _square(
    pyplot: Any, panel: Any, place: tuple[int, int], verdict: Verdict, earlier: bool
) -> None:
    (column, row), colour = place, VERDICTS[verdict]
    hatch = EARLIER_HATCH if earlier else ""
    corner, how = (column - 0.46, row - 0.44), {"edgecolor": "white", "linewidth": 0}
    panel.add_patch(pyplot.Rectangle(corner, 0.92, 0.88, facecolor=colour, hatch=hatch, **how))
    if verdict == "failed":  # told by more than its colour
        box = {"facecolor": colour, "edgecolor": "none", "pad": 3}
        how = {"ha": "center", "va": "center", "fontsize": 13, "fontweight": "bold"}
        panel.annotate("✗", place, color="white", bbox=box, **how)


def _name_models(panel: Any, models: Sequence[str], below: float) -> None:
    """Each model's name below its squares, and a line behind them."""
    for model in dict.fromkeys(models):
        places = [place for place, other in enumerate(models) if other == model]
        # under one square a long name would meet its neighbour's
        name, size = (model, 9) if len(places) > 1 else (model.replace("-", "\n"), 7.5)
        _note(panel, name, (statistics.mean(places), below), size, ha="center", va="top")
        panel.axvline(places[-1] + 0.5, color="0.6", linewidth=0.8)


def _explain(pyplot: Any, figure: Any) -> None:
    """What the squares' colours mean."""
    square = partial(pyplot.Rectangle, (0, 0), 1, 1)
    keys = [square(facecolor=colour, edgecolor="0.7") for colour in VERDICTS.values()]
    keys.append(square(facecolor="0.75", hatch=EARLIER_HATCH, edgecolor="white", linewidth=0))
    names = [*VERDICTS, "about an earlier queue"]
    how = {"loc": "lower center", "ncols": len(keys), "frameon": False, "handlelength": 1.3}
    figure.legend(keys, names, fontsize=8.5, **how)


def draw_first_tokens(pyplot: Any, measured: Measured) -> Any:
    """A panel for each release: milliseconds by shape, every mode's median and its quarters of
    calls."""
    found = timed_benches(measured)
    if not found:
        return None
    figure, panels = pyplot.subplots(len(found), 1, figsize=(10, 3.1 * len(found)), squeeze=False)
    widest = max(len(benches.shapes(bench)) for bench in found)
    for panel, bench in zip(panels[:, 0], found):
        _first_tokens(panel, bench)
        # shapes are as far apart in every panel, whichever it has
        panel.set_xlim(-0.6, widest - 0.4)
    panels[-1, 0].set_xlabel(
        "requests × tokens; the median call, and the half of the calls around it"
    )
    return figure


def _first_tokens(panel: Any, bench: Bench) -> None:
    runs, shapes = benches.measured(bench, benches.FIRST), benches.shapes(bench)
    for number, (mode, run) in enumerate(runs.items()):
        aside = 0.17 * (number - (len(runs) - 1) / 2)
        spans = {
            place + aside: run.first_token_ms[shape].all
            for place, shape in enumerate(shapes)
            if shape in run.first_token_ms
        }
        middles = [statistics.median(times) for times in spans.values()]
        quarters = [
            statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
            for times in spans.values()
        ]
        spreads = [
            [max(middle - quarter[0], 0) for middle, quarter in zip(middles, quarters)],
            [max(quarter[2] - middle, 0) for middle, quarter in zip(middles, quarters)],
        ]
        how = {"color": COLORS[mode], "label": benches.NAMES[mode], "elinewidth": 1.4}
        panel.errorbar([*spans], middles, spreads, fmt="o", markersize=5, capsize=2, **how)
    panel.set_yscale("log")
    panel.set_yticks([30, 50, 100, 200], ["30", "50", "100", "200"])
    panel.minorticks_off()
    panel.set_ylim(25, 320)
    title = f"{bench.title}, {bench.model}"
    paper.dress(panel, [*map(spoken, shapes)], title, "ms to first token", 8.5)
    paper.legend(panel, ncols=len(runs), loc="upper left")


def draw_captures(pyplot: Any, measured: Measured) -> Any:
    """A panel for each kind of model: bars of seconds, release below release."""
    found = captures(measured)
    kinds = list(dict.fromkeys(one.what for one in found))
    if not kinds:
        return None
    rows = [len({one.where for one in found if one.what == what}) for what in kinds]
    tall = [1.2 + 0.42 * count for count in rows]  # inches; three bars of a row stay apart
    shape = {"figsize": (9, sum(tall)), "height_ratios": tall, "squeeze": False}
    figure, panels = pyplot.subplots(len(kinds), 1, **shape)
    for panel, what in zip(panels[:, 0], kinds):
        _captures(panel, what, [one for one in found if one.what == what])
    return figure


def _captures(panel: Any, what: str, found: Sequence[Captured]) -> None:
    places = list(dict.fromkeys(one.where for one in found))
    for number, mode in enumerate(MODES):
        mine = [one for one in found if one.mode == mode]
        if mine:
            down = [places.index(one.where) + 0.27 * (number - 1) for one in mine]
            how = {"color": COLORS[mode], "label": benches.NAMES[mode]}
            drawn = panel.barh(down, [one.seconds for one in mine], height=0.25, **how)
            panel.bar_label(drawn, fmt="%.1f", fontsize=6, padding=1)
    panel.set_yticks(range(len(places)), places, fontsize=8)
    panel.set_xlabel("seconds to capture the prefill graphs")
    panel.set_title(what, fontsize=10)
    panel.grid(axis="x", alpha=0.25)
    panel.set_ylim(len(places) - 0.4, -0.6)  # the first release on top
    panel.set_xlim(0, 1.1 * max(one.seconds for one in found))
    paper.legend(panel, loc="lower right")


# name -> its plot, None where there is nothing to draw
DRAWN: dict[str, Callable[[Any, Measured], Any]] = {
    "tool": draw_tool,
    "proofs": draw_proofs,
    "first-tokens": draw_first_tokens,
    "capture": draw_captures,
}


def file(folder: Path, name: str) -> Path:
    return folder / f"figures-{name}.png"


def draw(measured: Measured, folder: Path) -> tuple[Path, ...]:
    """Every plot there is something for; none where matplotlib is not installed."""
    pyplot, drawn = paper.pyplot(), []
    for name, make in DRAWN.items() if pyplot else ():
        if figure := make(pyplot, measured):
            if not figure.legends:
                figure.tight_layout()
            paper.save(figure, file(folder, name))
            drawn.append(file(folder, name))
    return tuple(drawn)
