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
from collections.abc import Callable
from typing import Any

from ..compat import eager, model_runner
from ..kernels import tracked_states
from . import layers, tables
from .states import States

logger = logging.getLogger(__name__)
CAPTURE = "capture"  # what layers.SWITCH has to say
ASKING = CAPTURE, "all"
BREAKS = "Layers with recurrent states run between the prefill graph's segments: %s"
_KEPT = "captured_states"  # where a runner keeps its States


def of(graph_runner: Any) -> States | str | None:
    """What a graph runner is to capture, or why such layers break; None where nobody asks, or where
    there are none."""
    runner = graph_runner.model_runner
    asked = layers.asked()
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
    reason: str | None = states.why_not(forward_batch)
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
    states.describe(forward_batch, size)
    setattr(forward_batch, tracked_states.IN_TABLES, True)
    return getattr(backend, "full_attn_backend", backend)
