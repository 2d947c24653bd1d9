"""The ways to run a prefill, as the release at hand names them: found by looking at its ServerArgs,
not at its version."""

from __future__ import annotations

from dataclasses import dataclass

# What every mode is held against: a server that has the graph, each of whose prefills is kept eager
# (watch/). Releases pick other kernels where the graph is off, or is another: see `reference`.
REFERENCE, BREAKABLE_REFERENCE = "reference", "reference-breakable"
REFERENCES = (REFERENCE, BREAKABLE_REFERENCE)
EAGER = "eager"  # a server whose graph is off
PIECEWISE, INDUCTOR, BREAKABLE = "piecewise", "piecewise-inductor", "breakable"
GRAPHS = (BREAKABLE, PIECEWISE, INDUCTOR)
ALL = (*REFERENCES, *GRAPHS, EAGER)


@dataclass(frozen=True)
class Unavailable:
    """Why a release has no such mode."""

    reason: str


def before(version: str, patch: int) -> bool:
    """Whether a release comes before 0.5.patch. version: a patched one has +pcg.N behind it."""
    release = version.partition("+")[0]
    return tuple(int(part) for part in release.split(".")[:3]) < (0, 5, patch)


def reference(mode: str, known: set[str]) -> str:
    """The reference of `mode`: the one whose server picks the kernels that the mode's own server
    picks.

    0.5.10 to 0.5.13 choose by --disable-piecewise-cuda-graph, which no graph sets: one reference
    (Qwen3-Next's gated norm, models/qwen3_next.py:190 in 0.5.11). From 0.5.14 they ask for the
    piecewise backend by name (models/qwen3_next.py:208 in 0.5.16), so that the breakable graph runs
    the kernels of a server without a graph: two. 0.5.9 asks for --enable-piecewise-cuda-graph, but
    only for how Qwen3-Next's projections and norm are launched
    (layers/attention/fla/layernorm_gated.py:183, models/qwen3_next.py:381): one.
    """
    two = "cuda_graph_tc_compiler" in known
    return BREAKABLE_REFERENCE if two and mode in (BREAKABLE, EAGER) else REFERENCE


def has_breakable(known: set[str]) -> bool:
    """Whether the release has a breakable graph. known: the fields of its ServerArgs."""
    return not known.isdisjoint(("enable_breakable_cuda_graph", "cuda_graph_backend_prefill"))


def flags(
    mode: str,
    known: set[str],
    sizes: list[int],
    enforce: bool,
    breakable: bool = True,
    piecewise: bool = True,
) -> dict | Unavailable:
    """Keyword arguments of sglang.Engine for `mode`. known: the fields of the release's ServerArgs.

    sizes: tokens to capture for, none for the release's own choice; enforce: also where the release
    keeps the graph off for this model's architecture; breakable, piecewise: whether the model can
    be captured with breaks, and in pieces. The reference is piecewise with the eager compiler,
    which alone changes kernels where a release tells graphs apart. From 0.5.10 to 0.5.13, where it
    does not, where nothing else is left, and for a model without pieces, it is breakable: that
    captures in a second.
    """
    backend = "cuda_graph_backend_prefill" in known
    unless_disabled = "disable_piecewise_cuda_graph" in known
    if mode in REFERENCES:  # one small size: what is captured is never replayed
        alike = unless_disabled and not backend
        with_breaks = mode == BREAKABLE_REFERENCE or (breakable and (alike or not piecewise))
        first = BREAKABLE if with_breaks else PIECEWISE
        tried = [flags(graph, known, sizes[:1], enforce) for graph in (first, PIECEWISE, BREAKABLE)]
        return next(chosen for chosen in tried if isinstance(chosen, dict))
    if backend:
        return _by_backend(mode, known, sizes)
    if mode == EAGER:
        return {"disable_piecewise_cuda_graph": True} if unless_disabled else {}
    if mode == BREAKABLE and not has_breakable(known):
        return Unavailable("the release has no breakable graph")
    chosen: dict = {"piecewise_cuda_graph_tokens": sizes} if sizes else {}
    if enforce and "enforce_piecewise_cuda_graph" in known:
        chosen["enforce_piecewise_cuda_graph"] = True
    if mode == BREAKABLE:
        return chosen | {"enable_breakable_cuda_graph": True}
    if not unless_disabled:  # off unless asked for
        chosen["enable_piecewise_cuda_graph"] = True
    return chosen | {"piecewise_cuda_graph_compiler": "inductor" if mode == INDUCTOR else "eager"}


def _by_backend(mode: str, known: set[str], sizes: list[int]) -> dict | Unavailable:
    if mode == EAGER:
        return {"cuda_graph_backend_prefill": "disabled"}
    chosen: dict = {"cuda_graph_bs_prefill": sizes} if sizes else {}
    if mode == BREAKABLE:
        return chosen | {"cuda_graph_backend_prefill": "breakable"}
    if "cuda_graph_tc_compiler" not in known:
        return Unavailable("the release has no piecewise graph any more")
    return chosen | {
        "cuda_graph_backend_prefill": "tc_piecewise",
        "cuda_graph_tc_compiler": "inductor" if mode == INDUCTOR else "eager",
    }
