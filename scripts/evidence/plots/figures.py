"""The plots of docs/figures.md."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .. import benches
from ..figures import MODES, Measured, captures, columns, timed_benches, tree_then
from ..records import spoken
from . import paper
from .bench import COLORS

VERDICTS = {
    "passed": "#4c9f70",
    "failed": "#c8453c",
    "not applicable": "#b9b9b9",
    "not run": "#f3f3f3",
}
EARLIER_HATCH = "////"


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
    for place, one in enumerate(timed):
        limit = float("".join(letter for letter in one.limit if letter in "0123456789."))
        top.barh(
            place,
            one.details["median"],
            height=0.5,
            color=VERDICTS["passed" if one.met else "failed"],
            alpha=0.75,
        )
        top.plot(
            one.details["seconds"],
            [place] * len(one.details["seconds"]),
            "o",
            color="0.2",
            markersize=3.5,
        )
        top.plot([limit] * 2, [place - 0.38, place + 0.38], color="0.1", linewidth=2)
        top.annotate(
            one.shown,
            (1.01, place),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8.5,
            annotation_clip=False,
        )
    _rows(top, [one.name for one in timed], "seconds: median, ● each run, ┃ limit")
    colours = {"absent": "0.55", "applied": VERDICTS["passed"], "mixed": "tab:orange"}
    for place, one in enumerate(killed):
        for moment in one.details["moments"]:
            ran = moment["was running"]
            bottom.plot(
                moment["second"],
                place,
                "o" if ran else "x",
                color=colours.get(tree_then(moment), VERDICTS["failed"]),
                markersize=6,
            )
        bottom.annotate(
            one.shown,
            (1.01, place),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8.5,
            annotation_clip=False,
        )
    _rows(bottom, [one.name for one in killed], "second of the kill, and what was there then")
    for mark, colour, what in (
        ("o", colours["applied"], "a whole one"),
        ("o", colours["absent"], "none yet, pristine or old"),
        ("o", colours["mixed"], "old and new files"),
        ("o", VERDICTS["failed"], "a broken one"),
        ("x", "0.3", "the run had ended before the kill"),
    ):
        bottom.plot([], [], mark, color=colour, markersize=6, label=what)
    bottom.legend(
        frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.32)
    )
    return figure


def _rows(panel: Any, names: Sequence[str], label: str) -> None:
    panel.set_yticks(range(len(names)), [name.replace(", ", ",\n") for name in names], fontsize=8.5)
    panel.set_ylim(max(len(names), 1) - 0.5, -0.5)
    panel.set_xlim(left=0)
    panel.set_xlabel(label, fontsize=8.5)
    panel.grid(axis="x", alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)


# what was proven on GPUs


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
            run = runs.get(key)
            verdict = run.verdict if run else "not run"
            hatch = EARLIER_HATCH if run and measured.earlier(one, run) else ""
            panel.add_patch(
                pyplot.Rectangle(
                    (column - 0.46, row - 0.44),
                    0.92,
                    0.88,
                    facecolor=VERDICTS[verdict],
                    hatch=hatch,
                    edgecolor="white",
                    linewidth=0,
                )
            )
            if verdict == "failed":  # told by more than its colour
                panel.annotate(
                    "✗",
                    (column, row),
                    ha="center",
                    va="center",
                    color="white",
                    fontsize=13,
                    fontweight="bold",
                    bbox={"facecolor": VERDICTS["failed"], "edgecolor": "none", "pad": 3},
                )
    models = list(dict.fromkeys(model for model, _ in across))
    for model in models:
        places = [place for place, key in enumerate(across) if key[0] == model]
        # under one square a long name would meet its neighbour's
        name = model if len(places) > 1 else model.replace("-", "\n")
        panel.annotate(
            name,
            (statistics.mean(places), len(proofs) - 0.35),
            ha="center",
            va="top",
            fontsize=9,
            annotation_clip=False,
        )
        panel.axvline(places[-1] + 0.5, color="0.6", linewidth=0.8)
    panel.set_xticks(
        range(len(across)),
        [mode.replace("piecewise-inductor", "inductor") for _, mode in across],
        rotation=40,
        ha="left",
        fontsize=8.5,
    )
    panel.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    panel.set_yticks(
        range(len(proofs)),
        [f"{one.version}\n{one.gpu.name}" for one in proofs],
        fontsize=8.5,
    )
    panel.set_xlim(-0.5, len(across) - 0.5)
    panel.set_ylim(len(proofs) - 0.5, -0.5)
    panel.spines[:].set_visible(False)
    keys = [
        pyplot.Rectangle((0, 0), 1, 1, facecolor=colour, edgecolor="0.7")
        for colour in VERDICTS.values()
    ]
    keys.append(
        pyplot.Rectangle(
            (0, 0), 1, 1, facecolor="0.75", hatch=EARLIER_HATCH, edgecolor="white", linewidth=0
        )
    )
    figure.legend(
        keys,
        [*VERDICTS, "about an earlier queue"],
        loc="lower center",
        ncols=len(keys),
        frameon=False,
        fontsize=8.5,
        handlelength=1.3,
    )
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    return figure


# first tokens


def draw_first_tokens(pyplot: Any, measured: Measured) -> Any:
    """A panel for each release: milliseconds by shape, every mode's median and its quarters of
    calls."""
    found = timed_benches(measured)
    if not found:
        return None
    figure, panels = pyplot.subplots(len(found), 1, figsize=(10, 3.1 * len(found)), squeeze=False)
    widest = max(len(benches.shapes(bench)) for bench in found)
    for panel, bench in zip(panels[:, 0], found):
        runs = benches.measured(bench, benches.FIRST)
        shapes = benches.shapes(bench)
        for number, (mode, run) in enumerate(runs.items()):
            places, middles, spreads = [], [], []
            for place, shape in enumerate(shapes):
                if shape in run.first_token_ms:
                    times = run.first_token_ms[shape].all
                    low, _middle, high = (
                        statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
                    )
                    places.append(place + 0.17 * (number - (len(runs) - 1) / 2))
                    middles.append(statistics.median(times))
                    spreads.append((max(middles[-1] - low, 0), max(high - middles[-1], 0)))
            panel.errorbar(
                places,
                middles,
                yerr=list(zip(*spreads)),
                fmt="o",
                markersize=5,
                elinewidth=1.4,
                capsize=2,
                color=COLORS[mode],
                label=benches.NAMES[mode],
            )
        panel.set_yscale("log")
        panel.set_yticks([30, 50, 100, 200], ["30", "50", "100", "200"])
        panel.minorticks_off()
        panel.set_ylim(25, 320)
        panel.set_xticks(range(len(shapes)), [spoken(shape) for shape in shapes], fontsize=8.5)
        # shapes are as far apart in every panel, whichever it has
        panel.set_xlim(-0.6, widest - 0.4)
        panel.set_ylabel("ms to first token")
        panel.set_title(f"{bench.title}, {bench.model}", fontsize=10)
        panel.grid(axis="y", alpha=0.25)
        panel.legend(frameon=False, fontsize=8, ncols=len(runs), loc="upper left")
    panels[-1, 0].set_xlabel(
        "requests × tokens; the median call, and the half of the calls around it"
    )
    return figure


# capture


def draw_captures(pyplot: Any, measured: Measured) -> Any:
    """A panel for each kind of model: bars of seconds, release beside release."""
    found = captures(measured)
    kinds = list(dict.fromkeys(one.what for one in found))
    if not kinds:
        return None
    figure, panels = pyplot.subplots(len(kinds), 1, figsize=(9, 3.0 * len(kinds)), squeeze=False)
    for panel, what in zip(panels[:, 0], kinds):
        here = [one for one in found if one.what == what]
        places = list(dict.fromkeys(one.where for one in here))
        for number, mode in enumerate(MODES):
            bars = [
                (places.index(one.where) + 0.27 * (number - 1), one.seconds)
                for one in here
                if one.mode == mode
            ]
            if bars:
                drawn = panel.bar(
                    *zip(*bars),
                    width=0.25,
                    color=COLORS[mode],
                    label=benches.NAMES[mode],
                )
                panel.bar_label(drawn, fmt="%.1f", fontsize=8, padding=1)
        panel.set_xticks(
            range(len(places)), [where.replace(" on ", "\n") for where in places], fontsize=8.5
        )
        panel.set_xlim(-0.6, len(places) - 0.4)
        panel.set_ylim(0, 1.28 * max(one.seconds for one in here))
        panel.set_ylabel("seconds")
        panel.set_title(f"capture of the prefill graphs: {what}", fontsize=10)
        panel.grid(axis="y", alpha=0.25)
        panel.legend(frameon=False, fontsize=8, ncols=3, loc="upper left")
    return figure


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
