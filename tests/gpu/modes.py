"""The ways to run a prefill, as the release at hand names them: found by looking at its ServerArgs, not at its version."""

from __future__ import annotations

from dataclasses import dataclass

# What every mode is held against: a server that has the graph, each of whose prefills is kept eager (watch/). Releases from
# 0.5.10 pick other kernels where the graph is off (Qwen3-Next's gated norm, models/qwen3_next.py:190 in 0.5.11).
REFERENCE = "reference"
EAGER = "eager"  # a server whose graph is off
PIECEWISE, INDUCTOR, BREAKABLE = "piecewise", "piecewise-inductor", "breakable"
GRAPHS = (PIECEWISE, INDUCTOR, BREAKABLE)
ALL = (REFERENCE, EAGER, *GRAPHS)


@dataclass(frozen=True)
class Unavailable:
    """Why a release has no such mode."""

    reason: str


def flags(mode: str, known: set[str], sizes: list[int], enforce: bool) -> dict | Unavailable:
    """Keyword arguments of sglang.Engine for `mode`. known: the fields of the release's ServerArgs.

    sizes: tokens to capture for; enforce: also where the release keeps the graph off for this model's architecture.
    """
    if mode == REFERENCE:  # one small size: what is captured is never replayed
        tried = [flags(graph, known, sizes[:1], enforce) for graph in (BREAKABLE, PIECEWISE)]
        return next(chosen for chosen in tried if isinstance(chosen, dict))
    if mode == EAGER:
        if "cuda_graph_backend_prefill" in known:
            return {"cuda_graph_backend_prefill": "disabled"}
        return {"disable_piecewise_cuda_graph": True} if "disable_piecewise_cuda_graph" in known else {}
    if "cuda_graph_backend_prefill" in known:
        return _by_backend(mode, known, sizes)
    if mode == BREAKABLE and "enable_breakable_cuda_graph" not in known:
        return Unavailable("the release has no breakable graph")
    chosen: dict = {"piecewise_cuda_graph_tokens": sizes}
    if enforce and "enforce_piecewise_cuda_graph" in known:
        chosen["enforce_piecewise_cuda_graph"] = True
    if mode == BREAKABLE:
        return chosen | {"enable_breakable_cuda_graph": True}
    if "disable_piecewise_cuda_graph" not in known:  # off unless asked for
        chosen["enable_piecewise_cuda_graph"] = True
    return chosen | {"piecewise_cuda_graph_compiler": "inductor" if mode == INDUCTOR else "eager"}


def _by_backend(mode: str, known: set[str], sizes: list[int]) -> dict | Unavailable:
    chosen = {"cuda_graph_bs_prefill": sizes}
    if mode == BREAKABLE:
        return chosen | {"cuda_graph_backend_prefill": "breakable"}
    if "cuda_graph_tc_compiler" not in known:
        return Unavailable("the release has no piecewise graph any more")
    return chosen | {"cuda_graph_backend_prefill": "tc_piecewise", "cuda_graph_tc_compiler": "inductor" if mode == INDUCTOR else "eager"}
