"""The release's piecewise graph with its layers with recurrent states inside (0.5.9 to 0.5.13).

The release compiles the layer stack once, splits it at every op of a list, and captures the pieces.
The ops of these layers are left off the list. While a size is captured, they are launches that read
that size's tables; before a replay the tables get the batch.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from ..captured import layers, tables
from ..compat import capture, eager, model_runner, ops

logger = logging.getLogger(__name__)


def of(runner: Any) -> layers.Captured | None:
    """What the piecewise graph of a ModelRunner captures of such layers; None where it is split at
    them, or has none. The first rank logs why it is split."""
    found = layers.of(runner)
    if isinstance(found, layers.Captured) and model_runner.spreads_requests(runner):
        found = "layers gather tokens of other ranks, which may be idle"
    if isinstance(found, str) and model_runner.is_first_rank(runner):
        logger.info("The prefill graph is split at layers with recurrent states: %s", found)
    return found if isinstance(found, layers.Captured) else None


def make_runner(runner: Any, states: layers.Captured) -> Any:
    """The release's runner of the piecewise graph for a ModelRunner, with `states` inside."""
    return _class(capture.piecewise_runner())(runner, states)


@functools.cache
def _class(release: type) -> type:
    class WithStates(release):
        """states: what is captured. Everything else is the release's."""

        def __init__(self, runner: Any, states: layers.Captured) -> None:
            self.states = states
            with ops.not_split_at(ops.RECURRENT):
                super().__init__(runner)

        def capture_one_batch_size(self, num_tokens: int) -> None:
            made = self.states.placeholder(num_tokens, self.device)
            with tables.capturing_into(made, self.states.states):
                super().capture_one_batch_size(num_tokens)

        def can_run(self, forward_batch: Any) -> bool:
            if not super().can_run(forward_batch):
                return False
            reason = layers.why_not(forward_batch, self.states)
            setattr(self, eager.LEFT, reason)
            return reason is None

        def replay(self, forward_batch: Any, **kwargs: Any) -> Any:
            self.states.describe_smallest(forward_batch)
            with capture.without_linear_plan(self.model_runner, forward_batch):
                return super().replay(forward_batch, **kwargs)

    return WithStates
