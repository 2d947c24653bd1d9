"""Layers with recurrent states inside the graph of the release's own PrefillCudaGraphRunner (from
0.5.14), which has attention backends make metadata for each size's capture, and fill it before each
replay. `offer` lets a hybrid backend answer with the tables of the captured layers.
SGLANG_PREFILL_GRAPH_STATES=break in the environment turns this off."""

from __future__ import annotations

import functools
import logging
from typing import Any

from ..compat import capture, eager, model_runner
from ..kernels import tracked_states
from . import layers, tables

logger = logging.getLogger(__name__)
BREAKS = "Layers with recurrent states run between the prefill graph's segments: %s"
BACKEND = "BreakableCudaGraphBackend"


def offer(graph_runner: Any) -> None:
    """Capture what `of` finds in the graphs of a runner, which has set
    `use_captured_attn_metadata`. The first rank logs why layers break."""
    states = of(graph_runner)
    if isinstance(states, str) and model_runner.is_first_rank(graph_runner.model_runner):
        logger.log(logging.WARNING if layers.asked() else logging.INFO, BREAKS, states)
    graph_runner.captured_states = states if isinstance(states, layers.Captured) else None
    if not graph_runner.captured_states:
        return
    graph_runner.use_captured_attn_metadata = True
    backend = graph_runner.model_runner.attn_backend
    backend.prefill_cuda_graph_max_batch_size = tables.MOST_REQUESTS  # read from 0.5.22 on
    for name, answer in (
        ("init_forward_metadata_for_breakable_cuda_graph_capture", _capture),
        ("prepare_forward_metadata_for_breakable_cuda_graph_replay", _replay),
    ):
        setattr(backend, name, functools.partial(answer, states, backend))


def of(graph_runner: Any) -> layers.Captured | str | None:
    """What a graph runner captures, or why such layers break; None where there are none."""
    runner = graph_runner.model_runner
    states = layers.of(runner)
    if not isinstance(states, layers.Captured):
        return states
    if type(graph_runner.backend).__name__ != BACKEND:
        return f"the graph is captured by a {type(graph_runner.backend).__name__}"
    if model_runner.spreads_requests(runner):
        return "layers gather tokens of other ranks, which may be idle"
    if getattr(graph_runner, "enable_cp_bcg_capture", False):
        return "context parallelism gives each rank a part of the rows"
    if graph_runner.use_captured_attn_metadata:
        return "the attention backend has metadata of its own for the graph"
    if not hasattr(runner.attn_backend, "full_attn_backend"):
        return f"a {type(runner.attn_backend).__name__} has no half with full attention"
    return states


def tables_for(states: layers.Captured, forward_batch: Any) -> tables.Tables:
    """The tables of a size, with the batch of its capture, whose states go to the slot that no
    request owns. Layers find the tables through the batch."""
    tokens, device = forward_batch.extend_num_tokens, forward_batch.input_ids.device
    made = states.tables(tokens, device)
    lengths = [int(length) for length in forward_batch.extend_seq_lens_cpu]
    made.fill(lengths, [False] * len(lengths), made.slots)
    setattr(forward_batch, layers.CAPTURED_INTO, tables.Current(made, states.states))
    return made


def _capture(states: layers.Captured, backend: Any, forward_batch: Any) -> tables.Tables:
    backend.full_attn_backend.init_forward_metadata(forward_batch)
    return tables_for(states, forward_batch)


def _replay(
    states: layers.Captured,
    backend: Any,
    made: tables.Tables,
    forward_batch: Any,
    *,
    static_forward_batch: Any = None,
) -> None:
    """Describe a batch to the launches captured with `made`. The linear half prepares no plan: its
    plan waits for the device, and no layer would read it."""
    capture.begin_states(backend, forward_batch)
    states.describe(made, forward_batch)
    setattr(forward_batch, tracked_states.IN_TABLES, True)
    backend.full_attn_backend.init_forward_metadata(forward_batch)
    snapshot = getattr(backend, "prepare_prefill_shared_read_snapshot", None)  # from 0.5.19
    if snapshot:
        snapshot(forward_batch, num_qo_tokens=made.tokens)


def why_not(graph_runner: Any, forward_batch: Any) -> str | None:
    """Why a batch that the runner would replay has to run eagerly, or None; noted for the
    report."""
    states = getattr(graph_runner, "captured_states", None)
    if states is None:
        return None
    reason = layers.why_not(forward_batch, states)
    setattr(graph_runner, eager.LEFT, reason)
    return reason
