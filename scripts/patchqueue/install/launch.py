"""The server argument that turns the prefill graph on, by release, as docs/choose.md has it."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..queue.header import SPEED

BREAKABLE = "--enable-breakable-cuda-graph"
ARGUMENTS = {  # from 0.5.15 on, the graph is the default
    "<0.5.9": "--enable-piecewise-cuda-graph",
    ">=0.5.9,<0.5.10": BREAKABLE,
    ">=0.5.10,<0.5.14": BREAKABLE,
    ">=0.5.14,<0.5.15": "--cuda-graph-backend-prefill breakable",
}
SPARSE = "DeepSeek-V3.2, GLM-5"
KINDS = (  # releases, models that need something else, and what; the page has the same
    (">=0.5.10,<0.5.14", "Qwen3-Next", "add --enforce-piecewise-cuda-graph"),
    (">=0.5.19", "Qwen3-Next, Qwen3.5 on Hopper", "add --linear-attn-prefill-backend triton"),
    (">=0.5.9,<0.5.10", SPARSE, "--enable-piecewise-cuda-graph instead"),
    (">=0.5.10,<0.5.14", SPARSE, "no flag, the piecewise graph is the default"),
    (">=0.5.16,<0.5.22", SPARSE, "--cuda-graph-backend-prefill tc_piecewise"),
)


def argument(version: Version) -> str:
    """What to add to the launch command; empty where the graph is the default."""
    of_release = (each for each in ARGUMENTS if SpecifierSet(each).contains(version))
    return ARGUMENTS.get(next(of_release, ""), "")


def advice(version: Version, only: str = "") -> str:
    """One sentence for a user who starts a server with a profile of the queue, "" for all of it."""
    if only not in ("", SPEED):
        return f"start the server as before: the profile {only} brings no graph"
    flag = argument(version)
    return f"start the server with {flag}" if flag else "start the server: the graph is on"


def exceptions(version: Version, only: str = "") -> list[str]:
    """A line for each kind of model that needs another argument, or one more."""
    of_release = [each for each in KINDS if SpecifierSet(each[0]).contains(version)]
    return [f"{models}: {what}" for _, models, what in of_release] if only in ("", SPEED) else []
