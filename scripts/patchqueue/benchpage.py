"""Make docs/bench.md and its plot from what the bench measured (evidence/*/*.bench.json): every number comes from there.

The plot needs matplotlib, which nothing else here does: it is drawn where matplotlib is, and left as it was elsewhere.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.version import Version

PAGE, PLOT = Path("docs/bench.md"), Path("docs/bench.png")
EAGER = "eager"
NAMES = {"eager": "eager prefill", "piecewise": "piecewise, eager compiler", "piecewise-inductor": "piecewise, inductor", "breakable": "breakable"}
SPOKEN = NAMES | {"piecewise": "the piecewise graph with the eager compiler", "piecewise-inductor": "the piecewise graph with inductor", "breakable": "the breakable graph"}
REPORTED = {"piecewise": 1.4, "piecewise-inductor": 10.5}  # sglang#19903's own throughput gains on an H100, in percent
INTRO = """# What the prefill graph is worth

Made by `nox -s bench -- --page` from `evidence/*/*.bench.json`; not to be edited.
"""


def load(root: Path) -> list[dict]:
    """Every measurement kept, by release and GPU."""
    found = [json.loads(file.read_text(encoding="utf-8")) for file in (root / "evidence").glob("*/*.bench.json")]
    return sorted(found, key=lambda bench: (Version(bench["version"]), bench["gpu"]["name"]))


def write(root: Path) -> bool:
    """Write the page, and the plot where matplotlib is installed. Returns whether the plot was drawn."""
    benches = load(root)
    (root / PAGE).parent.mkdir(parents=True, exist_ok=True)
    drawn = bool(benches) and draw(benches, root / PLOT)
    (root / PAGE).write_text(page(benches, (root / PLOT).is_file()), encoding="utf-8")
    return drawn


def page(benches: Sequence[dict], with_plot: bool) -> str:
    """The page's text."""
    if not benches:
        return INTRO + "\nNothing was measured yet.\n"
    parts = [INTRO, setting(benches[0])]
    if with_plot:
        parts.append(f"![Time to first token by prompt length, eager prefill beside the graph modes]({PLOT.name})\n")
    for bench in benches:
        parts += [f"## {title(bench)}\n", meaning(bench) + "\n", load_table(bench), first_token_table(bench), notes(bench)]
    return "\n".join(part for part in parts if part)


def title(bench: dict) -> str:
    return f"{bench['version']} on {bench['gpu']['name']}"


def setting(bench: dict) -> str:
    """What was sent to what."""
    load = bench["load"]
    warm = ", after one run that does not count" if all("warm_up" in run for run in measured(bench)) else ""
    return (
        f"The model has the published shape of {bench['model']} and dummy weights. The load is shaped as GSM8K's: {load['requests']} requests, at most "
        f"{load['in_flight']} in flight, prompts of {load['mean_prompt']} tokens on average that share their first {load['shared_prefix']}, answers of "
        f"{load['mean_answer']} tokens on average. The prefix cache is {'on' if load['prefix_cache'] else 'off'}; one forward takes at most "
        f"{load['chunk']} tokens of prompts; graphs are captured for {len(load['capture'])} sizes from {min(load['capture'])} to {max(load['capture'])} tokens. "
        f"The load was run {load['loads']} times in each mode{warm}; every throughput is shown. First tokens are medians of {load['times']} calls, timed around "
        "the whole call. Modes ran one after the other, alone on the GPU.\n"
    )


def measured(bench: dict) -> list[dict]:
    """The modes with numbers."""
    return [run for run in bench["runs"] if run.get("loads")]


def throughput(run: dict) -> float:
    return statistics.mean(one["tokens_per_s"] for one in run["loads"])


def spread(run: dict) -> float:
    """How far the loads of one mode lie apart, in percent of their mean."""
    rates = [one["tokens_per_s"] for one in run["loads"]]
    return (max(rates) - min(rates)) / throughput(run) * 100


def gains(bench: dict) -> dict[str, float]:
    """By how much each graph mode's throughput is above eager prefill's, in percent."""
    runs = {run["mode"]: run for run in measured(bench)}
    if EAGER not in runs:
        return {}
    return {mode: (throughput(run) / throughput(runs[EAGER]) - 1) * 100 for mode, run in runs.items() if mode != EAGER}


def meaning(bench: dict) -> str:
    """What the numbers say, in words that follow from them."""
    runs, found = {run["mode"]: run for run in measured(bench)}, gains(bench)
    if not found:
        return "Eager prefill or every graph mode is missing, so nothing can be compared."
    noise = max(spread(run) for run in runs.values())
    parts = []
    for mode, gain in found.items():
        inside = " (less than equal loads differ by)" if abs(gain) < noise else ""
        other = f", for which the pull request reports {REPORTED[mode]:+.1f} % on an H100" if mode in REPORTED else ""
        parts.append(f"{SPOKEN[mode]} {gain:+.1f} %{inside}{other}")
    text = f"Output tokens per second against eager prefill: {'. '.join(parts)}. Equal loads differ by up to {noise:.1f} %. "
    return text + first_token_meaning(runs)


def first_token_meaning(runs: dict[str, dict]) -> str:
    """Where the graph saves time to first token, and where it does not."""
    eager = {shape: found["median"] for shape, found in runs[EAGER]["first_token_ms"].items()}
    best = {shape: min(run["first_token_ms"][shape]["median"] for mode, run in runs.items() if mode != EAGER) for shape in eager}
    shortest, longest = list(eager)[0], max(eager, key=_tokens)
    at = round(runs[EAGER]["prefills"]["mean_tokens"])
    return (
        f"One prompt of {_tokens(shortest)} tokens has its first token after {best[shortest]:.1f} ms in the best graph mode, {eager[shortest]:.1f} ms without; "
        f"{_tokens(longest)} tokens take {best[longest]:.1f} and {eager[longest]:.1f} ms. The graph saves the host's time for launching kernels, which "
        f"shows as long as the GPU waits for the host: at few tokens. The prefills of this run had {at} tokens on average."
    )


def _tokens(shape: str) -> int:
    count, length = shape.split("x")
    return int(count) * int(length)


def load_table(bench: dict) -> str:
    rows = []
    for run in bench["runs"]:
        if not run.get("loads"):
            rows.append([NAMES[run["mode"]], f"{run['verdict']}: {run['why']}"[:90], "", "", "", "", ""])
            continue
        graph = [one for one in run["captured"] if one["what"] != "cuda graph"]
        rows.append([
            NAMES[run["mode"]], " / ".join(f"{one['tokens_per_s']:.0f}" for one in run["loads"]), " / ".join(f"{one['mean_latency_s']:.2f}" for one in run["loads"]),
            f"{sum(one['seconds'] for one in graph):.1f}" if graph else "-", f"{sum(one['gb'] for one in graph):.2f}" if graph else "-",
            f"{run['memory_mib']['after_load'] / 1024:.1f}", f"{run['prefills']['on_graph']} of {run['prefills']['prefills']}",
        ])  # fmt: skip
    return table(["mode", "output tokens/s", "mean latency, s", "capture, s", "graph, GB", "engine, GiB", "prefills on the graph"], rows)


def first_token_table(bench: dict) -> str:
    runs = measured(bench)
    if not runs:
        return ""
    shapes = list(runs[0]["first_token_ms"])
    rows = [[shape.replace("x", " × "), *(f"{run['first_token_ms'][shape]['median']:.1f}" for run in runs)] for shape in shapes]
    return table(["requests × tokens; ms to first token", *(NAMES[run["mode"]] for run in runs)], rows)


def notes(bench: dict) -> str:
    """Under what conditions the release ran."""
    torch = bench["torch"]
    said = [f"Driver {bench['gpu']['driver']}, torch {torch['version']}, Python {bench['python']}, {bench['date']}, queue release {bench['queue_release']}."]
    if bench.get("earlier_queue"):
        said.append("The queue has changed since.")
    if torch["off_pin"]:
        said.append(f"The release pins torch {torch['pinned']}: it ran off its pin.")
    if bench.get("kernel"):
        said.append(f"Kernels from {bench['kernel']['package']}: {bench['kernel']['reason']}.")
    said += [f"Shim {shim['module']}: {shim['reason']}." for shim in bench.get("shims", [])]
    return " ".join(said) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; numbers to the right."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def draw(benches: Sequence[dict], out: Path) -> bool:
    """Time to first token of one prompt by its length, a panel for each measurement. False where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, panels = pyplot.subplots(1, len(benches), figsize=(5.2 * len(benches), 3.8), squeeze=False, sharey=True)
    for panel, bench in zip(panels[0], benches):
        _panel(panel, bench)
    panels[0][0].set_ylabel("ms to first token")
    panels[0][0].legend(frameon=False, fontsize=9)
    for panel in panels[0]:
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        panel.yaxis.set_minor_formatter(ticker.StrMethodFormatter("{x:g}"))
    figure.tight_layout()
    figure.savefig(out, dpi=130, metadata={"Software": None})
    pyplot.close(figure)
    return True


def _panel(panel, bench: dict) -> None:
    for run, mark in zip(measured(bench), "os^v"):
        points = [(_tokens(shape), found["median"]) for shape, found in run["first_token_ms"].items() if shape.startswith("1x")]
        panel.plot(*zip(*points), marker=mark, markersize=4, linewidth=1.3, label=NAMES[run["mode"]])
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xlabel("tokens of one prompt")
    panel.set_title(title(bench), fontsize=10)
    panel.grid(True, which="both", alpha=0.25)
