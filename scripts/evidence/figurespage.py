"""Make docs/figures.md and its plots from what was measured: every number comes from a file of
evidence/.

evidence/figures.json is what `scripts/nox figures` wrote about the tool; the proofs and benches of
evidence/<version>/ are the rest. The plots need matplotlib, which nothing else here does: they are
drawn where matplotlib is, and left as they were elsewhere.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchqueue.files import record
from patchqueue.hint import counted, to_type
from patchqueue.upstream import pins as pinning

from . import benchpage, cells, store
from .records import Bench, Figures, Record, Run

PAGE, PLOTS = Path("docs/figures.md"), Path("docs")
TOOL = store.FOLDER / "figures.json"
INTRO = f"""# Figures

Made by {to_type("figures", "--page")} from the files of `evidence/`; not to be edited. {to_type("figures", "--out", TOOL)}
measures the tool again, {to_type("gpu")} and {to_type("bench")} the rest.
"""  # noqa: E501
REFERENCES = ("reference", "reference-breakable")
MODES = ("breakable", "piecewise", "piecewise-inductor")
VERDICTS = {
    "passed": "#4c9f70",
    "failed": "#c8453c",
    "not applicable": "#b9b9b9",
    "not run": "#f3f3f3",
}
EARLIER_HATCH = "////"


@dataclass(frozen=True)
class Measured:
    """All that the page is made from. tool: figures.json, None where nothing was kept; proofs,
    benches: as in evidence/; now: tag -> the queue's identity; models: as the support matrix lists
    them."""

    tool: Figures | None
    proofs: list[Record]
    benches: list[Bench]
    now: dict[str, str]
    models: Sequence[str] = ()

    def earlier(self, found: Record, run: Run) -> bool:
        """Whether a run was about an earlier queue."""
        return found.under(run).changes != self.now[found.tag]


def load(root: Path) -> Measured:
    """What evidence/ holds. Raises Refused where its figures.json is none."""
    pins = pinning.load(root)
    proofs = [one for pin in pins.all for one in store.proofs(root, str(pin.version))]
    return Measured(
        _tool(root / TOOL),
        proofs,
        benchpage.load(root),
        {one.tag: store.today(root, pins.find(one.version)) for one in proofs},
        cells.load(root).models,
    )


def _tool(file: Path) -> Figures | None:
    if not file.is_file():
        return None
    step = to_type("figures", f"--out {TOOL}")
    return record.json(file.read_bytes(), Figures, str(TOOL), "bad-figures", step)


def write(root: Path) -> tuple[Path, ...]:
    """Write the page, and the plots where matplotlib is installed. Returns the plots that were
    drawn."""
    measured = load(root)
    (root / PLOTS).mkdir(exist_ok=True)
    drawn = draw(measured, root / PLOTS)
    store.put(
        root / PAGE,
        page(measured, {name for name in DRAWN if plot_of(root / PLOTS, name).is_file()}),
    )
    return drawn


def plot_of(folder: Path, name: str) -> Path:
    return folder / f"figures-{name}.png"


def page(measured: Measured, plots: set[str]) -> str:
    """The page's text. plots: those that there are."""
    parts = [INTRO]
    for name, (title, text, _) in DRAWN.items():
        said = text(measured)
        if said:
            parts += [
                f"## {title}\n",
                f"![{title}]({plot_of(Path(), name)})\n" if name in plots else "",
                said,
            ]
    return "\n".join(part for part in parts if part)


# the tool


def tool_table(tool: Figures | None) -> str:
    """What was promised and measured, as Markdown; a figure that misses its limit says so."""
    if not tool:
        return f"Nothing was measured yet: {to_type('figures', f'--out {TOOL}')}.\n"
    rows = [
        [one.name, one.shown + ("" if one.met else ", **missed**"), one.limit]
        for one in tool.figures
    ]
    return benchpage.table(["figure", "measured", "limit"], rows)


def tool_text(measured: Measured) -> str:
    if not measured.tool:
        return ""
    machine, said = measured.tool.machine, []
    for one in measured.tool.figures:
        details = one.details
        if "median" in details:
            said.append(
                f"`{one.name}`: median of {len(details['seconds'])}, of which the processor took"
                f" {details['cpu seconds of one']} s. {details['load']} processes wanted to run"
                " meanwhile."
            )
        if "hit" in details:
            said.append(
                f"`{one.name}`: {details['hit']} of the {len(details['moments'])} kills came"
                " while it ran."
            )
        if "steps" in details:
            said.append(f"`{one.name}`: {_walk(details)}")
    about = (
        f"Release {measured.tool.revision}, {counted(machine.cpus, 'hardware thread')},"
        f" Python {machine.python}:\n\n"
    )
    return tool_table(measured.tool) + "\n" + about + "".join(f"- {one}\n" for one in said)


def _walk(details: dict) -> str:
    """What each command of a new user took, and what it asked of them."""
    steps = "".join(
        f"\n  - `{step['command']}`: {step['seconds']:.1f} s, {counted(step['lines'], 'line')} of"
        " 80 columns"
        for step in details["steps"]
    )
    asked = (
        f"the user chose {' and '.join(details['decisions'])}, and gave"
        f" {counted(details['answers'], 'answer')}"
    )
    return f"{asked}. {details['load']} processes wanted to run meanwhile.{steps}"


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


def tree_then(moment: dict) -> str:
    """What a kill left, before anything was made good: "absent" (or pristine), "applied", "mixed"
    whole files, or else.

    Of an apply the measuring script says it; of an install it counts the files that are patched,
    pristine, and neither."""
    if "queue then" in moment:
        return {"old": "absent", "new": "applied"}.get(moment["queue then"], "broken")
    if "tree then" in moment:
        return moment["tree then"]
    patched, pristine, neither = (
        moment["then"][name] for name in ("patched files", "pristine files", "neither")
    )
    return (
        "broken"
        if neither
        else "mixed"
        if patched and pristine
        else "applied"
        if patched
        else "absent"
    )


def _rows(panel: Any, names: Sequence[str], label: str) -> None:
    panel.set_yticks(range(len(names)), [name.replace(", ", ",\n") for name in names], fontsize=8.5)
    panel.set_ylim(max(len(names), 1) - 0.5, -0.5)
    panel.set_xlim(left=0)
    panel.set_xlabel(label, fontsize=8.5)
    panel.grid(axis="x", alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)


# what was proven on GPUs


def columns(measured: Measured) -> list[tuple[str, str]]:
    """(model, mode) of every graph mode that was run, models in the support matrix's order."""
    known = measured.models
    found = {
        (run.model, run.mode) for one in measured.proofs for run in one.runs if run.mode in MODES
    }
    return sorted(
        found,
        key=lambda key: (
            known.index(key[0]) if key[0] in known else len(known),
            key[0],
            MODES.index(key[1]),
        ),
    )


def proofs_text(measured: Measured) -> str:
    rows = []
    for one in measured.proofs:
        graph = [run for run in one.runs if run.mode in MODES]
        counts = [str(sum(run.verdict == verdict for run in graph)) for verdict in VERDICTS]
        earlier = sum(measured.earlier(one, run) for run in graph)
        checks = [check for run in one.runs for check in run.checks]
        rows.append(
            [
                one.title,
                *counts,
                str(earlier),
                f"{sum(check.good for check in checks)} of {len(checks)}",
            ]
        )
    if not rows:
        return ""
    head = ["one model in one graph mode", *VERDICTS, "about an earlier queue", "checks that held"]
    return (
        benchpage.table(head, rows)
        + "\nWhat the support matrix makes of these, and why one failed:"
        " [proof.md](proof.md#the-support-matrix).\n"
    )


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


def timed_benches(measured: Measured) -> list[Bench]:
    return [
        bench
        for bench in measured.benches
        if len(benchpage.measured(bench, benchpage.FIRST)) > 1 and benchpage.paired(bench)
    ]


def first_token_text(measured: Measured) -> str:
    found = timed_benches(measured)
    if not found:
        return ""
    said = "\n".join(
        f"- {bench.title}, {bench.model}. {benchpage.first_token_meaning(bench)}" for bench in found
    )
    return f"{said}\n\nHow they were timed, each number, and throughput: [bench.md](bench.md).\n"


def _shapes(bench: Bench) -> list[str]:
    """The shapes that some mode was timed at, in their order."""
    return list(
        dict.fromkeys(
            shape
            for run in benchpage.measured(bench, benchpage.FIRST).values()
            for shape in run.first_token_ms
        )
    )


def draw_first_tokens(pyplot: Any, measured: Measured) -> Any:
    """A panel for each release: milliseconds by shape, every mode's median and its quarters of
    calls."""
    found = timed_benches(measured)
    if not found:
        return None
    figure, panels = pyplot.subplots(len(found), 1, figsize=(10, 3.1 * len(found)), squeeze=False)
    widest = max(len(_shapes(bench)) for bench in found)
    for panel, bench in zip(panels[:, 0], found):
        runs = benchpage.measured(bench, benchpage.FIRST)
        shapes = _shapes(bench)
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
                color=benchpage.COLORS[mode],
                label=benchpage.NAMES[mode],
            )
        panel.set_yscale("log")
        panel.set_yticks([30, 50, 100, 200], ["30", "50", "100", "200"])
        panel.minorticks_off()
        panel.set_ylim(25, 320)
        panel.set_xticks(
            range(len(shapes)), [benchpage.spoken(shape) for shape in shapes], fontsize=8.5
        )
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


@dataclass(frozen=True)
class Captured:
    """Seconds that prefill graphs took to capture. where: release and GPU; what: the model, and of
    how many sizes."""

    where: str
    what: str
    mode: str
    seconds: float


def captures(measured: Measured) -> list[Captured]:
    """Of every graph mode: the median over the small models of a proof, and over the engines of a
    bench. Graphs for decoding are left out."""
    found = []
    for one in measured.proofs:
        for mode in MODES:
            times = [
                seconds
                for run in one.runs
                if run.mode == mode
                and run.verdict in ("passed", "failed")
                and (seconds := _seconds(run)) is not None
            ]
            if times:
                found.append(
                    Captured(
                        one.title,
                        f"small models, {len(one.capture)} sizes, median",
                        mode,
                        statistics.median(times),
                    )
                )
    for bench in measured.benches:
        for mode in MODES:
            times = [
                seconds
                for run in bench.runs
                if run.mode == mode and (seconds := _seconds(run)) is not None
            ]
            if times:
                found.append(
                    Captured(
                        bench.title,
                        f"{bench.model}, {len(bench.load.capture)} sizes, median",
                        mode,
                        statistics.median(times),
                    )
                )
    return found


def _seconds(run: Run) -> float | None:
    prefill = [one.seconds for one in run.prefill_capture]
    return sum(prefill) if prefill else None


def capture_text(measured: Measured) -> str:
    found = captures(measured)
    rows = []
    for what, where in dict.fromkeys((one.what, one.where) for one in found):
        times = {one.mode: one.seconds for one in found if (one.what, one.where) == (what, where)}
        rows.append(
            [
                f"{where}: {what}",
                *(f"{times[mode]:.1f} s" if mode in times else "-" for mode in MODES),
            ]
        )
    if not rows:
        return ""
    table = benchpage.table(["prefill graphs of", *(benchpage.NAMES[mode] for mode in MODES)], rows)
    return (
        f"{table}\nSmall models are captured while other engines run on the host. What a capture"
        " has to compile first counts, the kernels of attention too.\n"
    )


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
                    color=benchpage.COLORS[mode],
                    label=benchpage.NAMES[mode],
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


# name -> its heading, its text ("" where nothing was measured), its plot (None where there is
# nothing to draw)
DRAWN: dict[str, tuple[str, Callable[[Measured], str], Callable]] = {
    "tool": ("What the tool promises", tool_text, draw_tool),
    "proofs": ("What was proven on GPUs", proofs_text, draw_proofs),
    "first-tokens": ("Time to first token", first_token_text, draw_first_tokens),
    "capture": ("Time to capture", capture_text, draw_captures),
}


def draw(measured: Measured, folder: Path) -> tuple[Path, ...]:
    """Every plot there is something for; none where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return ()
    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = []
    for name, (_, _, make) in DRAWN.items():
        if figure := make(pyplot, measured):
            if not figure.legends:
                figure.tight_layout()
            figure.savefig(plot_of(folder, name), dpi=110, metadata={"Software": None})
            pyplot.close(figure)
            drawn.append(plot_of(folder, name))
    return tuple(drawn)
