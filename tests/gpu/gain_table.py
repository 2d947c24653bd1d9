"""What gain.py prints in the end: the engines beside each other."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import traffic
from visit import spoken


def states(entry: dict) -> str:
    """What the environment said of layers with recurrent states, behind a comma; nothing where it
    said nothing."""
    return f", states: {entry['states']}" if entry["states"] else ""


def show_traffic(runs: Sequence[dict], kinds: Sequence[str]) -> None:
    """Of each kind, tree beside tree: the median load's tokens a second, and first tokens."""
    print("\ntokens/s, written, of prefill read; first token, ms: p50 / p99")
    for kind in kinds:
        cells = [_load(entry.get("traffic", {}).get(kind, [])) for entry in runs]
        print(f"  {kind:8}" + "".join(f"{cell:>30}" for cell in cells))


def _load(found: Sequence[dict]) -> str:
    if not found:
        return "-"
    rate = statistics.median(map(traffic.rate, found))
    half, most = (
        statistics.median(one["first_ms"][part] for one in found) for part in ("p50", "p99")
    )
    return f"{rate:.0f}; {half:.1f} / {most:.1f}"


def show(facts: dict) -> None:
    """The result, tree beside tree: fastest / first quartile / median, then the GPU's own time."""
    runs = facts["runs"]
    if facts["gain"]["traffic"]:
        show_traffic(runs, facts["gain"]["traffic"])
    else:
        show_shapes(facts, runs)
    for entry in runs:
        rates = ", ".join(f"{one['tokens_per_s']:.0f}" for one in entry.get("loads", []))
        print(
            f"{entry['tree']}, {entry['mode']}{states(entry)}: {entry['verdict']} {entry['why']}; "
            f"input tokens/s {rates or '-'}; {entry['seconds']} s"
        )
    for entry in facts["peers"]:
        show_peer(entry, facts["gain"]["shapes"])
    print(f"\n{facts['tag']} on {facts['gpu']['name']}: {facts['seconds']} s")


def show_peer(entry: dict, shapes: Sequence[str]) -> None:
    """What a peer did: first tokens, GPU-busy time and the load."""
    rates = ", ".join(f"{one['tokens_per_s']:.0f}" for one in entry.get("loads", []))
    print(f"\nbeside: {entry['name']} {entry['version']}, {entry['mode'] or 'mode unknown'}")
    print(f"{entry['verdict']} {entry['why']}; input tokens/s {rates or '-'}; {entry['seconds']} s")
    for shape in shapes:
        calls, profile = (entry.get(of, {}).get(shape) for of in ("first_token_ms", "profile"))
        busy = f"GPU busy {profile['busy_ms']:.1f} ({profile['launches']:.0f})" if profile else "-"
        print(f"  {shape:8}{spoken(calls) if calls else '-':>26}{busy:>30}")


def show_shapes(facts: dict, runs: Sequence[dict]) -> None:
    print("\nfirst token, ms: fastest / first quartile / median")
    for shape in facts["gain"]["shapes"]:
        cells = [
            spoken(found) if (found := entry.get("first_token_ms", {}).get(shape)) else "-"
            for entry in runs
        ]
        floor_ms = facts.get("floor_ms", {}).get(shape)
        print(
            f"  {shape:8}"
            + "".join(f"{cell:>26}" for cell in cells)
            + (f"   floor {floor_ms}" if floor_ms else "")
        )
    print("GPU busy, ms (launches)")
    for shape in facts["gain"]["shapes"]:
        found = [entry.get("profile", {}).get(shape) for entry in runs]
        print(
            f"  {shape:8}"
            + "".join(
                f"{one['busy_ms']:>18.1f} ({one['launches']:.0f})" if one else f"{'-':>26}"
                for one in found
            )
        )
    if same := same_kernels(runs, facts["gain"]["shapes"]):
        print(f"the same kernels, as often, in all engines: {', '.join(same)}")
        print("  a patch that should bring others was not in effect there")


def same_kernels(runs: Sequence[dict], shapes: Sequence[str]) -> list[str]:
    """Shapes in which every engine launched the same kernels as often: a patch that should bring
    others was not in effect. What they take, and how they are launched, may differ all the same.
    None where one tree alone was profiled."""
    if len({entry["tree"] for entry in runs if entry.get("profile")}) < 2:
        return []
    found = []
    for shape in shapes:
        profiles = [one for entry in runs if (one := entry.get("profile", {}).get(shape))]
        launched = [
            {name: kind["launches"] for name, kind in one["groups"].items()} for one in profiles
        ]
        if len(launched) > 1 and all(one == launched[0] for one in launched):
            found.append(shape)
    return found
