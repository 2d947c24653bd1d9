"""What gain.py prints in the end: the engines beside each other."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import traffic
from timing import spoken


def states(entry: dict) -> str:
    """What the environment said of layers with recurrent states, behind a comma; nothing where it
    said nothing."""
    return f", states: {entry['states']}" if entry.get("states") else ""


def show_traffic(runs: Sequence[dict], kinds: Sequence[str]) -> None:
    """Of each kind, tree beside tree: the median load's tokens a second, and first tokens."""
    print("\ntokens/s, written, or read; first token, ms: p50 / p99; between later ones: p50")
    for kind in dict.fromkeys(kinds):
        cells = [_load(entry.get("traffic", {}).get(kind, [])) for entry in runs]
        print(f"  {kind:8}" + "".join(f"{cell:>30}" for cell in cells))


def _load(found: Sequence[dict]) -> str:
    if not found:
        return "-"
    rate = statistics.median(map(traffic.rate, found))
    firsts = ([one["first_ms"][part] for one in found] for part in ("p50", "p99"))
    half, most = map(statistics.median, firsts)
    later = [one["later_ms"]["p50"] for one in found if one["later_ms"]]
    spoken_later = f"; {statistics.median(later):.2f}" if later else ""
    return f"{rate:.0f}; {half:.1f} / {most:.1f}{spoken_later}"


def show(facts: dict) -> None:
    """The result, engine beside engine, and a line of each in the end."""
    engines = [*facts["runs"], *facts["peers"]]
    if facts["gain"]["traffic"]:
        show_traffic(facts["runs"], facts["gain"]["traffic"])
    else:
        show_shapes(facts, engines)
    for entry in engines:
        rates = ", ".join(f"{one['tokens_per_s']:.0f}" for one in entry.get("loads", []))
        verdict = f"{title(entry)}{entry['verdict']} {entry['why']}"
        print(f"{verdict}; input tokens/s {rates or '-'}; {entry['seconds']} s")
    print(f"\n{facts['tag']} on {facts['gpu']['name']}: {facts['seconds']} s")


def title(entry: dict) -> str:
    """Which engine a line is about; of a peer, on a line of its own."""
    if "tree" in entry:
        return f"{entry['tree']}, {entry['mode']}{states(entry)}: "
    return f"beside: {entry['name']} {entry['version']}, {entry['mode'] or 'mode unknown'}\n  "


def show_shapes(facts: dict, engines: Sequence[dict]) -> None:
    """A column for each engine: fastest / first quartile / median, then the GPU's own time."""
    shapes, floors = facts["gain"]["shapes"], facts.get("floor_ms", {})
    print("\nengines: " + ", ".join(entry.get("tree") or entry["name"] for entry in engines))
    print("first token, ms: fastest / first quartile / median")
    for shape in shapes:
        found = [entry.get("first_token_ms", {}).get(shape) for entry in engines]
        cells = "".join(f"{spoken(one) if one else '-':>26}" for one in found)
        print(f"  {shape:8}{cells}" + (f"   floor {floors[shape]}" if floors.get(shape) else ""))
    print("GPU busy, ms (launches)")
    for shape in shapes:
        found = [entry.get("profile", {}).get(shape) for entry in engines]
        busy = [f"{one['busy_ms']:.1f} ({one['launches']:.0f})" if one else "-" for one in found]
        print(f"  {shape:8}" + "".join(f"{one:>26}" for one in busy))
    if same := same_kernels([entry for entry in engines if "tree" in entry], shapes):
        print(f"the same kernels, as often, in all engines: {', '.join(same)}")
        print("  a patch that should bring others was not in effect there")


def same_kernels(runs: Sequence[dict], shapes: Sequence[str]) -> list[str]:
    """Shapes in which every engine launched the same kernels as often; none where one tree alone
    was profiled."""
    if len({entry["tree"] for entry in runs if entry.get("profile")}) < 2:
        return []

    def launched(shape: str) -> list[dict]:
        groups = [one["groups"] for entry in runs if (one := entry.get("profile", {}).get(shape))]
        return [{name: kind["launches"] for name, kind in one.items()} for one in groups]

    made = {shape: launched(shape) for shape in shapes}
    return [shape for shape, each in made.items() if len(each) > 1 and each == each[:1] * len(each)]
