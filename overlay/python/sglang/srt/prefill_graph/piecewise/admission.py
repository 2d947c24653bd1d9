"""What keeps a server out of the release's own piecewise graph (up to 0.5.13), and the sizes that
it is captured for."""

from __future__ import annotations

import logging
from typing import Any

from ..compat import arguments, capture, model_runner
from ..model import layers
from ..model.layers import Refusal

logger = logging.getLogger(__name__)


def admits(runner: Any) -> bool:
    """Whether the release may go on to capture its piecewise graph. If not, the first rank logs one
    warning.

    runner: ModelRunner whose layers are collected. Sizes beyond the context and the cache are left
    out. The reason stays with the runner as `prefill_graph_refusal`, for the report.
    """
    refusal = refuse(runner)
    runner.prefill_graph_refusal = refusal
    if refusal is None:
        runner.server_args.piecewise_cuda_graph_tokens = arguments.sizes_that_fit(runner)
    elif model_runner.is_first_rank(runner):
        logger.warning("Prefill runs without a CUDA graph: %s", refusal.reason)
    return refusal is None


def refuse(runner: Any) -> Refusal | None:
    """Why the piecewise graph of this server must not be captured, or None."""
    if capture.starves_drafts(runner):
        algorithm = runner.server_args.speculative_algorithm
        return Refusal(
            f"drafts ({algorithm}) want hidden states of every prefill, and the piecewise graph is"
            " captured without: no batch would replay it"
        )
    if not arguments.sizes_that_fit(runner):
        return Refusal(arguments.no_size_fits(runner))
    offender = layers.uncovered_mixer(runner)
    return offender and Refusal(str(offender), offender)
