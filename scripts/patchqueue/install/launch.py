"""The switches that turn the prefill graph on, by release: docs/choose.md has the same table."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..queue.header import SPEED

BREAKABLE = "--enable-breakable-cuda-graph"
CAPTURE, ALL = (f"SGLANG_PREFILL_GRAPH_STATES={states}" for states in ("capture", "all"))
SWITCHES = {  # the server argument, and the environment variable that captures Mamba2 layers too
    "<0.5.9": ("--enable-piecewise-cuda-graph", ""),
    ">=0.5.9,<0.5.10": (BREAKABLE, ""),
    ">=0.5.10,<0.5.14": (f"{BREAKABLE} (Qwen3-Next: and --enforce-piecewise-cuda-graph)", ""),
    ">=0.5.14,<0.5.15": ("--cuda-graph-backend-prefill breakable", ""),
    ">=0.5.15,<0.5.19": ("", CAPTURE),
    ">=0.5.22,<0.5.23": ("", CAPTURE),
    ">=0.5.23": ("", ALL),
}


def switches(version: Version) -> tuple[str, str]:
    """The server argument, empty where the graph is the default; and the environment variable that
    puts Mamba2 layers into the graph, empty where none is needed or none helps."""
    of_release = (each for each in SWITCHES if SpecifierSet(each).contains(version))
    return SWITCHES.get(next(of_release, ""), ("", ""))


def advice(version: Version, only: str = "") -> str:
    """One sentence for a user who starts a server with a profile of the queue, "" for all of it."""
    if only not in ("", SPEED):
        return f"start the server as before: the profile {only} brings no graph"
    flag, states = switches(version)
    begun = f"start the server with {flag}" if flag else "start the server: the graph is on"
    return f"{begun}; {states} captures Mamba2 layers too" if states else begun
