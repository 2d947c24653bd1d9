"""Layers with recurrent states inside the graph of the release's own prefill runner (from 0.5.14),
where they are asked for.

SGLANG_PREFILL_GRAPH_STATES=capture in the environment asks for Mamba2 layers, and =all for gated
delta nets too. The runner is PrefillCudaGraphRunner
(model_executor/runner/prefill_cuda_graph_runner.py), with the breakable backend. Its hooks are, in
the order of their calls: `with_states` around each size's forward; `why_not` before each batch;
`padded` and `prepared` before each replay.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..compat import eager, model_runner
from ..kernels import tracked_states
from . import layers, tables

logger = logging.getLogger(__name__)
CAPTURE = "capture"  # what layers.SWITCH has to say
ASKING = CAPTURE, "all"
BREAKS = "Layers with recurrent states run between the prefill graph's segments: %s"
_KEPT = "captured_states"  # where a runner keeps its States


@dataclass(frozen=True)
class States:
    """What a runner captures of such layers, and the tables of each size."""

    captured: layers.Captured
    tables: dict[int, tables.Tables] = field(default_factory=dict)

    def placeholder(self, size: int, device: Any) -> tables.Tables:
        """The tables of a size, with the batch of its capture: one request, whose state is in the
        slot that no request owns, and none that the prefix cache keeps."""
        made = self.tables.get(size) or self.captured.tables(size, device)
        self.tables[size] = made
        made.slots.zero_()
        made.fill([size], [False], made.slots)
        if made.plan.track_rows is not None:
            made.track(made.slots[:0], made.slots[:0])
        return made

    def size_for(self, forward_batch: Any) -> int | None:
        """The smallest size that has room for a batch's tokens, and for the states of its
        requests."""
        tokens, requests = len(forward_batch.input_ids), forward_batch.batch_size
        fitting = (
            made
            for made in self.tables.values()
            if tokens <= made.tokens and requests <= made.requests
        )
        return min((made.tokens for made in fitting), default=None)


def of(graph_runner: Any) -> States | str | None:
    """What a graph runner is to capture, or why such layers break; None where nobody asks, or where
    there are none."""
    runner = graph_runner.model_runner
    asked = os.environ.get(layers.SWITCH)
    if asked not in ASKING:
        return None
    if asked == CAPTURE and layers.linear(runner):
        return f"gated delta nets are captured with {layers.SWITCH}=all alone"
    found = layers.of(runner)
    if not isinstance(found, layers.Captured):
        return found
    if graph_runner.prefill_backend_name != "breakable":
        return f"the backend is {graph_runner.prefill_backend_name}"
    if model_runner.spreads_requests(runner):
        return "layers gather tokens of other ranks, which may be idle"
    return States(found)


def with_states(graph_runner: Any, size: int, forward: Callable[[], Any]) -> Callable[[], Any]:
    """`forward`, a forward of the placeholder of `size` rows, with the layers that are captured
    reading that size's tables.

    Called before the graph of each size is captured.
    """
    if not hasattr(graph_runner, _KEPT):
        setattr(graph_runner, _KEPT, _settled(graph_runner))
    states = getattr(graph_runner, _KEPT)
    if states is None:
        return forward
    made = states.placeholder(size, graph_runner.device)

    def run() -> Any:
        with tables.capturing_into(made, states.captured.states):
            return forward()

    return run


def _settled(graph_runner: Any) -> States | None:
    """`of`, once for all sizes. The first rank says why not."""
    found = of(graph_runner)
    if isinstance(found, str) and model_runner.is_first_rank(graph_runner.model_runner):
        logger.warning(BREAKS, found)
    return found if isinstance(found, States) else None


def why_not(graph_runner: Any, forward_batch: Any) -> str | None:
    """Why a batch that the runner would replay has to run eagerly, or None. The words stay with the
    runner, for the report."""
    states = getattr(graph_runner, _KEPT, None)
    if states is None:
        return None
    if states.size_for(forward_batch) is None:
        places = max(made.requests for made in states.tables.values())
        reason = f"more requests than the tables of states have places, {places}"
    else:
        reason = layers.why_not(forward_batch, states.captured)
    setattr(graph_runner, eager.LEFT, reason)
    return reason


def padded(graph_runner: Any, forward_batch: Any, size: int) -> int:
    """The size that a batch is replayed in. size: the one that the runner chose, by its tokens
    alone."""
    states = getattr(graph_runner, _KEPT, None)
    return (states and states.size_for(forward_batch)) or size


def prepared(graph_runner: Any, forward_batch: Any, size: int) -> Any:
    """The attention backend that has to prepare a batch for its replay in `size` rows.

    Where states are captured, their tables describe the batch from here on: of a hybrid backend the
    half with full attention is left. The other half's plan waits for the device, and no layer would
    read it.
    """
    backend = graph_runner.model_runner.attn_backend
    states = getattr(graph_runner, _KEPT, None)
    if states is None:
        return backend
    made = states.tables[size]
    made.fill(*states.captured.batch(forward_batch))
    states.captured.track(made, forward_batch)
    setattr(forward_batch, tracked_states.IN_TABLES, True)
    return getattr(backend, "full_attn_backend", backend)
