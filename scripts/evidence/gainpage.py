"""What docs/bench.md says about the untouched and the patched release (evidence/*/*.gain.json)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from .records import Calls, Gain, GainRun, Group, Profile
from .store import FIRST_SUBJECT, graph_beside_eager, timed

PLOT = Path("docs/gain.png")
UNTOUCHED, PATCHED = "untouched", "patched"
TREES = (UNTOUCHED, PATCHED)
COLORS = {UNTOUCHED: "0.6", PATCHED: "tab:blue"}
GROUPS = 12  # rows of a kernel table, and parts of a bar
REST = "everything else"
# A change of first tokens is the trees' own where so much of it is GPU-busy time, or where so many
# launches came or went.
EXPLAINED, FEWER = 0.5, 0.02
HOW = """## Against the untouched release

Each tree had one engine, alone on the GPU, one after the other in one run, with the same pools
and dummy weights. First tokens are whole calls for one token, shapes in turn, round after round:
fastest / first quartile / median, in milliseconds. A change compares first quartiles. It is shown
where one tree's median lies beyond the other's fastest call, and the profile accounts for it.
That is: half of it is GPU-busy time, or the launches differ by 2 % or more. Any other is "the
host": its CPU is shared, and was slower for one engine. GPU-busy is the time of one prefill
in which any kernel ran, from a profile. The floor is the model's matrix products alone, at the
rate that one large product reached on the same GPU. All other kernels only add to it.
"""


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
    """Every gain kept, the first subject first."""
    found = timed(root, "*/*.gain.json", Gain)
    return sorted(
        found,
        key=lambda gain: (
            gain.subject != FIRST_SUBJECT,
            gain.model,
            Version(gain.version),
            gain.gpu.name,
            beside_eager(gain),
        ),
    )


def text(gains: Sequence[Gain], notes: Callable[[Gain], str], with_plot: bool) -> str:
    """The part's text; empty where nothing was measured. notes: says how a release ran."""
    if not gains:
        return ""
    parts = [HOW]
    if with_plot:
        parts.append(
            f"![Time to first token and kernels of the untouched and the patched release]"
            f"({PLOT.name})\n"
        )
    for gain in gains:
        parts += [
            f"### {title(gain)}\n",
            meaning(gain) + "\n",
            first_tokens(gain),
            busy(gain),
            rates(gain),
            kernels(gain),
            said(gain) + notes(gain),
        ]
    return "\n".join(part for part in parts if part)


def title(gain: Gain) -> str:
    graph = beside_eager(gain)
    beside = f", {graph} graph" if graph else ""
    beside += ", states in the graph" if _states(gain) else ""
    return f"{gain.version} on {gain.gpu.name}: {gain.model.partition(',')[0]}{beside}"


def beside_eager(gain: Gain) -> str:
    return graph_beside_eager((run.tree, run.mode) for run in gain.runs)


def runs(gain: Gain, tree: str) -> list[GainRun]:
    """The visits of one tree."""
    return [run for run in gain.runs if run.tree == tree]


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


def rate(gain: Gain, tree: str) -> float | None:
    """Input tokens per second of the prefill load: the median of all loads."""
    found = [one.tokens_per_s for run in runs(gain, tree) for one in run.loads]
    return statistics.median(found) if found else None


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
    """The change of a shape's first quartiles, in the words of HOW; "-" where a tree has none."""
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
    busy = [busy_ms(gain, tree, shape) for tree in TREES]
    counts = [launches(gain, tree, shape) for tree in TREES]
    if None in busy or None in counts:
        return True
    work, fewer = busy[1] - busy[0], counts[1] / counts[0] - 1
    return work / change_ms >= EXPLAINED or (fewer / change_ms > 0 and abs(fewer) >= FEWER)


def largest(gain: Gain) -> str:
    """The shape with most tokens in fewest requests: there the host counts least."""
    return max(gain.gain.shapes, key=lambda shape: (_tokens(shape), -int(shape.partition("x")[0])))


def _tokens(shape: str) -> int:
    count, _, length = shape.partition("x")
    return int(count) * int(length)


def spoken(shape: str) -> str:
    return shape.replace("x", " × ")


def meaning(gain: Gain) -> str:
    """What a user gains, in words that follow from the numbers."""
    shape, parts = largest(gain), []
    before, after = (calls(gain, tree, shape) for tree in TREES)
    if not before or not after:
        return "One of the two trees was not measured, so nothing can be compared."
    ends = (
        f"{spoken(shape)} tokens have their first token after {after.first_quartile:.0f} ms "
        f"instead of {before.first_quartile:.0f}"
    )
    parts.append(f"With the patches {ends} ({shown(gain, shape)}).")
    slow, fast = (rate(gain, tree) for tree in TREES)
    if slow and fast:
        parts.append(
            f"A node that prefills prompts of {gain.gain.load.prompt} tokens takes "
            f"{fast:.0f} tokens a second instead of {slow:.0f}: {fast / slow:.2f} times as many."
        )
    now, least = busy_ms(gain, PATCHED, shape), gain.floor_ms.get(shape)
    if now and least:
        parts.append(
            f"The GPU is busy for {now:.0f} ms of it, {now / least:.2f} times the floor of "
            f"{least:.0f} ms."
        )
    return " ".join(parts)


def first_tokens(gain: Gain) -> str:
    rows = []
    for shape in gain.gain.shapes:
        before, after = (calls(gain, tree, shape) for tree in TREES)
        rows.append([spoken(shape), str(before or "-"), str(after or "-"), shown(gain, shape)])
    return table(["first token, ms", "untouched", "patched", "change"], rows)


def busy(gain: Gain) -> str:
    rows = []
    for shape in gain.gain.shapes:
        before, after = (busy_ms(gain, tree, shape) for tree in TREES)
        counts = [launches(gain, tree, shape) for tree in TREES]
        shown_launches = " → ".join("-" if one is None else f"{one:.0f}" for one in counts)
        rows.append(
            [
                spoken(shape),
                _ms(before),
                _ms(after),
                change(before, after),
                _ms(gain.floor_ms.get(shape)),
                shown_launches,
            ]
        )
    return table(["GPU-busy, ms", "untouched", "patched", "change", "floor", "launches"], rows)


def rates(gain: Gain) -> str:
    found = [rate(gain, tree) for tree in TREES]
    sent = gain.gain.load
    head = f"input tokens/s, {sent.in_flight} × {sent.prompt} in flight"
    return table(
        [head, "untouched", "patched", "change"],
        [["median of all loads", *(f"{one:.0f}" if one else "-" for one in found), change(*found)]],
    )


def kernels(gain: Gain) -> str:
    """Where the time of the largest shape goes, before and after; - where there is no such one."""
    shape = largest(gain)
    before, after = (groups(gain, tree, shape) for tree in TREES)
    if not before or not after:
        return ""
    named = _top(before, after)
    rows = [[name, _ms(before.get(name), 2), _ms(after.get(name), 2)] for name in named]
    rest = [sum(ms for name, ms in found.items() if name not in named) for found in (before, after)]
    return table(
        [f"kernels of {spoken(shape)}, ms", "untouched", "patched"],
        [*rows, [REST, *(_ms(one, 2) for one in rest)]],
    )


def _top(*found: dict[str, float]) -> list[str]:
    """The groups that take most in either tree, largest first."""
    most = {name: max(one.get(name, 0.0) for one in found) for one in found for name in one}
    return sorted(most, key=lambda name: -most[name])[:GROUPS]


def _ms(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def said(gain: Gain) -> str:
    """How the trees ran, where that is not the same for both or not as asked for."""
    lines = [f"{tree.capitalize()}: {_modes(gain, tree)}." for tree in TREES if runs(gain, tree)]
    rated = gain.rate
    if rated.tflops:
        lines.append(
            f"A product of {rated.size} × {rated.size} matrices in bfloat16 ran at "
            f"{rated.tflops:.0f} TFLOP/s."
        )
    counts = {
        len(run.first_token_ms.get(shape, Calls()).all)
        for run in gain.runs
        for shape in gain.gain.shapes
    }
    lines.append(
        f"{' or '.join(map(str, sorted(counts)))} calls of each shape on each engine; {gain.model}."
    )
    lines += asked(gain) + under_load(gain) + split(gain) + first_answers(gain)
    bad = [f"{run.tree} {run.verdict}: {run.why}" for run in gain.runs if run.verdict != "passed"]
    return " ".join([*lines, *(f"{one}." for one in bad)]) + " "


def asked(gain: Gain) -> list[str]:
    """What the run asked for beyond the release's defaults."""
    lines = []
    if states := _states(gain):
        lines.append(f"The patched server had `SGLANG_PREFILL_GRAPH_STATES={states}`.")
    if pause := gain.gain.pause_s:
        lines.append(f"The server was idle for {pause * 1e3:.0f} ms before each call.")
    return lines


def _states(gain: Gain) -> str:
    """What the patched server's environment said of layers with recurrent states."""
    said_of = {run.states or "" for run in runs(gain, PATCHED)}
    return " and ".join(sorted(said_of - {""}))


def under_load(gain: Gain) -> list[str]:
    """How fast the GPU ran under the load, and for which part of the time."""
    found = [run for tree in TREES for run in runs(gain, tree)[:1]]
    clocks = [run.clock for run in found]
    if len(found) < len(TREES) or not all(clock.samples for clock in clocks):
        return []
    slow, fast = clocks
    busy_part = [f"{100 * run.load_profile.busy:.1f} %" for run in found if run.load_profile]
    lines = [
        f"Under the load the GPU ran at {slow.sm_mhz:.0f} MHz untouched, and at"
        f" {fast.sm_mhz:.0f} patched, at {fast.watts:.0f} W. Its power limit held the clock"
        f" down in {100 * slow.power_capped:.0f} and {100 * fast.power_capped:.0f} % of"
        f" the samples."
    ]
    if len(busy_part) == len(TREES):
        lines.append(f"It was busy for {busy_part[0]} and {busy_part[1]} of a load's time.")
    return lines


def first_answers(gain: Gain) -> list[str]:
    """What a new server's first answer waits for, where each engine compiled its own kernels."""
    found = [runs(gain, tree)[0].first_answer_s for tree in TREES if runs(gain, tree)]
    if not gain.gain.own_kernels or len(found) < len(TREES) or None in found:
        return []
    waits = f"{found[0]:.0f} s untouched, and {found[1]:.0f} s patched"
    return [f"On a host that has compiled no Triton kernel yet, the first answer took {waits}."]


def split(gain: Gain) -> list[str]:
    """Which profiled calls a scheduler did not answer with one forward."""
    found = {
        (tree, shape): one.forwards
        for tree in TREES
        for shape in gain.gain.shapes
        for one in profiles(gain, tree, shape)
    }
    return [
        f"{tree.capitalize()}, {spoken(shape)} took {count:g} forwards a call."
        for (tree, shape), count in found.items()
        if count != 1
    ]


def _modes(gain: Gain, tree: str) -> str:
    named = dict.fromkeys(
        run.mode + (f" ({run.mode_why})" if run.mode_why else "") for run in runs(gain, tree)
    )
    return " and ".join(
        "eager prefill" + one.removeprefix("eager")
        if one.startswith("eager")
        else f"the {one} graph"
        for one in named
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table that reads well as plain text: columns padded, numbers to the right."""
    rows = [list(row) for row in rows]
    widths = [max(3, *(len(row[place]) for row in (head, *rows))) for place in range(len(head))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]

    def line(row: Sequence[str]) -> str:
        return (
            "| "
            + " | ".join(
                [
                    row[0].ljust(widths[0]),
                    *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:])),
                ]
            )
            + " |\n"
        )

    return "".join(map(line, (head, rule, *rows)))


def draw(gains: Sequence[Gain], out: Path) -> bool:
    """Per gain, a panel of first tokens and one of kernels. False without matplotlib or a gain."""
    gains = [
        gain
        for gain in gains
        if all(runs(gain, tree) and calls(gain, tree, largest(gain)) for tree in TREES)
    ]
    try:
        import matplotlib
    except ImportError:
        return False
    if not gains:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        len(gains), 2, figsize=(12, 3.6 * len(gains)), squeeze=False, width_ratios=(1.3, 1)
    )
    for (left, right), gain in zip(panels, gains):
        _first_token_panel(left, gain)
        _kernel_panel(right, gain)
    figure.tight_layout()
    figure.savefig(out, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return True


def label(name: str) -> str:
    """A group's name in a legend: matplotlib leaves out what begins with an underscore."""
    return name.lstrip("_")[:34]


def _first_token_panel(panel: Any, gain: Gain) -> None:
    """First quartiles side by side, from fastest to median; the floor as a line across."""
    shapes = gain.gain.shapes
    for tree, aside in zip(TREES, (-0.2, 0.2)):
        found = [
            (place + aside, one)
            for place, shape in enumerate(shapes)
            if (one := calls(gain, tree, shape))
        ]
        heights = [one.first_quartile for _, one in found]
        whiskers = [
            [one.first_quartile - one.fastest for _, one in found],
            [one.median - one.first_quartile for _, one in found],
        ]
        bars = panel.bar(
            [place for place, _ in found],
            heights,
            0.38,
            yerr=whiskers,
            color=COLORS[tree],
            ecolor="0.2",
            capsize=2,
            label=tree,
        )
        for bar, (place, _) in zip(bars, found):
            bar.set_alpha(1.0 if shown(gain, shapes[round(place)]).endswith("%") else 0.35)
    floors = [(place, gain.floor_ms.get(shape)) for place, shape in enumerate(shapes)]
    for number, (place, least) in enumerate((place, least) for place, least in floors if least):
        panel.plot(
            [place - 0.42, place + 0.42],
            [least, least],
            color="tab:red",
            linewidth=1.4,
            label="" if number else "matrix products alone",
        )
    panel.set_xticks(range(len(shapes)), [spoken(shape) for shape in shapes], fontsize=8)
    panel.set_xlabel("requests × tokens; pale: no change is shown")
    panel.set_ylabel("time to first token, ms")
    panel.set_ylim(top=1.3 * panel.get_ylim()[1])  # for the legend
    panel.set_title(title(gain), fontsize=10)
    panel.grid(axis="y", alpha=0.25)
    panel.legend(frameon=False, fontsize=8)


def _kernel_panel(panel: Any, gain: Gain) -> None:
    """The GPU's time of the largest shape by kernel, one bar for each tree."""
    shape = largest(gain)
    found = [groups(gain, tree, shape) for tree in TREES]
    named = _top(*found)[:9]
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
    panel.legend(frameon=False, fontsize=6.5, ncols=2, loc="lower left")
