"""What a release's model runner collects of a model, where it looks for that, and what it made of
it."""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Callable
from typing import Any

from .features import defines, has

logger = logging.getLogger(__name__)
EAGER = "Prefill runs without a CUDA graph: %s"
DISABLED = "Disable prefill CUDA graph because %s."
_RUNNER = "sglang.srt.model_executor.model_runner"


def layer_lists(runner: Any) -> tuple[str, ...]:
    """The lists by layer_id that a runner collects beside attention_layers (from 0.5.7)."""
    return tuple(name for name in ("moe_layers", "moe_fusions") if hasattr(runner, name))


def sees_layers(model: Any) -> bool:
    """Whether the runner's own loop finds decoder layers."""
    own = importlib.import_module(_RUNNER)
    resolve = getattr(own, "resolve_language_model", lambda whole: whole.model)
    try:
        inner = resolve(model)
    except AttributeError:
        return False
    wrapped = getattr(model, "language_model", None)
    return any(
        hasattr(place, "layers") for place in (inner, wrapped, getattr(wrapped, "model", None))
    )


def is_first_rank(runner: Any) -> bool:
    """Whether this process is the one that logs for its server."""
    return not any(ranks(runner).values())


def ranks(runner: Any) -> dict[str, int]:
    """A ModelRunner's place among those of its server, by "tp", "pp", "dp" and "moe_ep"."""
    names = ("tp", "pp", "dp", "moe_ep")
    found = {name: getattr(_ranks(runner), f"{name}_rank", None) for name in names}
    return {name: rank for name, rank in found.items() if isinstance(rank, int)}


def leads_its_layers(runner: Any) -> bool:
    """Whether this process is the first of those that hold the same layers."""
    return not getattr(_ranks(runner), "tp_rank", None)


def _ranks(runner: Any) -> Any:
    """What has tp_rank and so on: the runner up to 0.5.15 and in 0.5.21, its `ps` from 0.5.16 to
    0.5.20, then one object per process."""
    if hasattr(runner, "tp_rank"):
        return runner
    if hasattr(runner, "ps"):
        return runner.ps
    try:
        return importlib.import_module("sglang.srt.runtime_context").get_parallel()
    except ImportError:
        return runner


def out_of_reach(runner: Any, owner: Any) -> str | None:
    """Why this release leaves a model eager although its layers were found, in `owner`, or None.
    0.5.14 and 0.5.15 capture no wrapper without `model`, and compile language_model.model alone."""
    if not defines(_RUNNER, "resolve_language_model"):
        return None
    model = runner.model
    if not hasattr(model, "model") and not hasattr(model, "get_layer_stack"):
        return "this release captures no wrapper that has no `model`"
    compiled = getattr(getattr(model, "language_model", model), "model", None)
    graphs = getattr(runner.server_args, "cuda_graph_config", None)
    if graphs is not None and graphs.prefill.backend == "tc_piecewise" and compiled is not owner:
        return "the tc_piecewise backend of this release only compiles language_model.model"
    return None


def attention_layers(runner: Any, owner: Any) -> list[Any]:
    """What a release from 0.5.14 on makes its breaks for, in the layer stack `owner`; None stands
    for a layer without."""
    setup = "sglang.srt.model_executor.model_runner_components.layer_setup"
    if not has(setup):
        return runner.attention_layers
    collect = (
        getattr(runner, "get_cuda_graph_layers", None)
        or importlib.import_module(setup).compute_attention_and_moe_layers
    )
    return collect(owner)[0]


def free_memory(runner: Any) -> float:
    """GB that the runner's device has left."""
    return vars(sys.modules[type(runner).__module__])["get_available_gpu_memory"](
        runner.device, runner.gpu_id
    )


def graph_runner(runner: Any) -> Any:
    """The prefill graph's runner, or None: from 0.5.14 on an eager runner can be in its place."""
    if not has_eager_runner():
        return getattr(runner, "piecewise_cuda_graph_runner", None)
    found = getattr(runner, "prefill_cuda_graph_runner", None)
    return None if found is getattr(runner, "eager_runner", None) else found


@functools.lru_cache(maxsize=1)
def has_eager_runner() -> bool:
    """Whether one runner of the release runs what no graph takes (from 0.5.14)."""
    return has("sglang.srt.model_executor.runner.eager_runner")


def refused(
    runner: Any,
    reason: str,
    text: str = EAGER,
    speaks: Callable[[Any], bool] = is_first_rank,
) -> None:
    """Leave with a ModelRunner why this package has it prefill eagerly, for the report; a process
    that speaks for its ranks warns of it with `text`."""
    runner.prefill_graph_refusal = reason
    if speaks(runner):
        logger.warning(text, reason)


def capture_sizes(graph: Any) -> tuple[int, ...]:
    """The token counts that a graph runner captured, ascending."""
    return tuple(sorted(getattr(graph, "capture_num_tokens", ())))


def never_runs(graph: Any) -> bool:
    """Whether a graph runner refuses every batch: a breakable one without an inner model (0.5.12,
    0.5.13). Later ones have a `backend`."""
    return getattr(graph, "layer_model", graph) is None and not hasattr(graph, "backend")


def tracks_states(runner: Any) -> bool:
    """Whether prefills also leave recurrent states in the prefix cache's own slots
    (extra_buffer)."""
    asked = getattr(runner.server_args, "enable_mamba_extra_buffer", None)
    if asked is None:
        return bool(getattr(runner.req_to_token_pool, "enable_mamba_extra_buffer", False))
    return bool(asked()) and not runner.server_args.disable_radix_cache


def fetches_states(runner: Any) -> bool:
    """Whether a cache of the host, or another store, brings recurrent states layer by layer. Its
    counter is set behind the capture; the arguments say so before."""
    counter = getattr(runner.req_to_token_pool, "layer_transfer_counter", None)
    stores = "enable_hierarchical_cache", "enable_unified_cache_external_linker"
    return counter is not None or any(getattr(runner.server_args, one, False) for one in stores)


def drafts(runner: Any) -> bool:
    """Whether the server speculates."""
    kind = getattr(runner, "spec_algorithm", None)
    return kind is not None and not kind.is_none()


def spreads_requests(runner: Any) -> bool:
    """Whether ranks have requests of their own, so that a rank may have none."""
    return bool(getattr(runner.server_args, "enable_dp_attention", False))
