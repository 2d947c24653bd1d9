"""The switches that turn the prefill graph on, by release: docs/choose.md has the same table."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..queue.header import SPEED

BREAKABLE = "--enable-breakable-cuda-graph"
LAUNCH = {
    "<0.5.9": "--enable-piecewise-cuda-graph",
    ">=0.5.9,<0.5.10": BREAKABLE,
    ">=0.5.10,<0.5.14": f"{BREAKABLE} (Qwen3-Next: and --enforce-piecewise-cuda-graph)",
    ">=0.5.14,<0.5.15": "--cuda-graph-backend-prefill breakable",
    ">=0.5.15": "",
}
CAPTURE = {
    ">=0.5.15,<0.5.19": "SGLANG_PREFILL_GRAPH_STATES=capture",
    ">=0.5.22,<0.5.23": "SGLANG_PREFILL_GRAPH_STATES=capture",
    ">=0.5.23": "SGLANG_PREFILL_GRAPH_STATES=all",
}


def flag(version: Version) -> str:
    """The server argument; empty where the graph is the default."""
    return _of(LAUNCH, version)


def capture(version: Version) -> str:
    """The environment variable that puts Mamba2 layers into the graph; empty where none is
    needed or none helps."""
    return _of(CAPTURE, version)


def _of(table: dict[str, str], version: Version) -> str:
    fits = (text for releases, text in table.items() if SpecifierSet(releases).contains(version))
    return next(fits, "")


def advice(version: Version, only: str = "") -> str:
    """One sentence for a user who starts a server with a profile of the queue, "" for all of it."""
    if only not in ("", SPEED):
        return f"start the server as before: the profile {only} brings no graph"
    asked, states = flag(version), capture(version)
    begun = f"start the server with {asked}" if asked else "start the server: the graph is on"
    return f"{begun}; {states} captures Mamba2 layers too" if states else begun
