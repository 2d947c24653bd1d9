"""Whether prefills that run eagerly, and need as much memory as the graph holds, find it beside the
prefill graph (from 0.5.14). With less the server stalls (sglang#40094). It is only a warning:
upstream dropped a rule by memory alone (sglang#33352)."""

from __future__ import annotations

import logging
from typing import Any

from .model_runner import is_first_rank

logger = logging.getLogger(__name__)


def shortage(graph_gb: float, free_gb: float) -> str | None:
    """The warning where a prefill graph took graph_gb and left free_gb; None where that is
    enough."""
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
