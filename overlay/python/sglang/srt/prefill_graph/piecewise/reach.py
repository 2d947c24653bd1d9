"""Whether a release's piecewise runner reaches a model's decoder layers."""

from __future__ import annotations

import logging
from typing import Any

from ..compat import arguments, model_runner
from ..model import stack

logger = logging.getLogger(__name__)


def has_layer_stack(runner: Any) -> bool:
    """Whether the model's decoder layers are where the release looks for them. If not, the first
    rank logs one warning that lists what was probed. Yes, too, where no graph comes into question:
    then the release itself says why."""
    if not arguments.wants_graph(runner):
        return True
    try:
        found = stack.find(runner.model)
        reason = (
            ""
            if model_runner.sees_layers(runner.model)
            else (
                "the release does not look for decoder layers in"
                f" {found.path or 'the model itself'}"
            )
        )
    except stack.NoStack as error:
        reason = str(error)
    if reason and model_runner.is_first_rank(runner):
        logger.warning("Prefill runs without a CUDA graph: %s", reason)
    return not reason
