"""What keeps a server from a prefill graph, or makes one costly: sizes beyond the context (0.5.14
to 0.5.16), too little memory beside it (from 0.5.14), answers that GPUs showed to differ."""

from __future__ import annotations

import logging
from typing import Any

from . import prefill_config
from .features import micro
from .model_runner import DISABLED, is_first_rank, refused

logger = logging.getLogger(__name__)


def some_size_fits(runner: Any) -> bool:
    """Leave out a ModelRunner's sizes beyond the context, where a request has no place in
    req_to_token, and say whether one is left. If not, the first rank logs one warning."""
    prefill, context = runner.server_args.cuda_graph_config.prefill, runner.model_config.context_len
    fitting = [size for size in prefill.bs if size <= context]
    if not fitting:
        reason = (
            f"no capture size fits: asked for were {sorted(prefill.bs)}, the context has"
            f" {context} tokens"
        )
        refused(runner, reason)
    prefill.bs = fitting
    return bool(fitting)


def shortage(graph_gb: float, free_gb: float) -> str | None:
    """The warning where a prefill graph took graph_gb and left free_gb; None where that is enough
    for a prefill that runs eagerly, and needs as much. With less the server stalls (sglang#40094).
    Upstream dropped a rule by memory alone (sglang#33352)."""
    if free_gb >= graph_gb:
        return None
    return (
        f"The prefill CUDA graph took {graph_gb:.2f} GB, and {free_gb:.2f} GB are left. A prefill"
        " that runs eagerly needs about as much as the graph of its size, and may wait for memory,"
        " or fail. More is left with a smaller --mem-fraction-static, --chunked-prefill-size or"
        " --cuda-graph-max-bs-prefill, and with --cuda-graph-backend-prefill disabled."
    )


def warn_if_short(runner: Any, graph_gb: float, free_gb: float) -> None:
    """Log one warning on the first rank of a ModelRunner whose prefill graph left too little."""
    told = shortage(graph_gb, free_gb)
    if told and is_first_rank(runner):
        logger.warning(told)


def answers_otherwise(runner: Any) -> str | None:
    """Why a ModelRunner must not have the release's piecewise graph, as GPUs showed
    (docs/proof.md), or None."""
    if type(runner.model).__name__ != "Qwen3NextForCausalLM" or not 7 <= micro() <= 15:
        return None
    what, instead = "Qwen3-Next", "use the breakable graph"
    if micro() < 15:
        if prefill_config.compiler(runner.server_args) != "inductor":
            return None
        what = f"{what} with inductor"
        instead = "use the eager compiler" + (" or the breakable graph" if micro() > 8 else "")
    return f"the piecewise graph of {what} answers otherwise than eager prefill here: {instead}"


def refuses_piecewise(runner: Any) -> bool:
    """Whether a ModelRunner (0.5.14, 0.5.15) is set to a graph that `answers_otherwise`; the first
    rank logs why."""
    is_piecewise = prefill_config.prefill(runner.server_args).backend == "tc_piecewise"
    if reason := answers_otherwise(runner) if is_piecewise else None:
        refused(runner, reason, DISABLED)
    return reason is not None
