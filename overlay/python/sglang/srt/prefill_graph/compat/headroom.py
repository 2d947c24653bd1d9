"""Whether prefills that run eagerly still have memory beside the prefill graph, from 0.5.14 on.

The graph keeps what its largest size needs, in a pool of its own. A prefill that no graph takes
needs about as much again, from what is left: if that is less, the allocator gives back and asks
again in every layer, or fails. A server then starts, and stalls (sglang#40094). Memory alone does
not decide for the user: upstream left such a rule again (sglang#33352). Importing this module
imports neither torch nor any other part of sglang.
"""

from __future__ import annotations

import logging
from typing import Any

from .model_runner import is_first_rank

logger = logging.getLogger(__name__)


def shortage(graph_gb: float, free_gb: float) -> str | None:
    """What to tell the user whose prefill graph took graph_gb and left free_gb; None where that is
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
    """Log one warning on the first rank of a ModelRunner that has captured its prefill graph, where
    too little is left."""
    told = shortage(graph_gb, free_gb)
    if told and is_first_rank(runner):
        logger.warning(told)
