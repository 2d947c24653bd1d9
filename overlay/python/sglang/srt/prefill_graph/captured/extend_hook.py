"""Mamba2 prefills through upstream's own hook for linear attention inside a graph (0.5.23), where
they are asked for.

SGLANG_PREFILL_GRAPH_STATES=capture (or all) in the environment asks. HybridLinearAttnBackend asks
its linear half whether it can capture (`supports_prefill_graph_extend`), has it make the tables of
each size and fill them before each replay. Layers ask whether they are to break
(`linear_extend_in_graph`).
Upstream has KDA answer (layers/attention/linear/kda_prefill_graph.py); Mamba2Prefill answers for
Mamba2AttnBackend.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from ..compat import model_runner, ops
from ..kernels import tiles
from . import layers, mamba2, own_runner
from .tables import MOST_REQUESTS, Tables

logger = logging.getLogger(__name__)
# the only layer that asks, and its mixer
LAYER, MIXER = ("NemotronHMambaDecoderLayer", "MambaMixer2")


def why_not(runner: Any) -> str | None:
    """Why the Mamba2 layers of a ModelRunner stay breaks, or None."""
    model = getattr(runner, "model", None)
    if model is None:
        return "there is no model yet"
    owners = [part for part in model.modules() if type(part).__name__ == LAYER]
    mixers = [part for part in model.modules() if type(part).__name__ == MIXER]
    if not owners or {id(owner.mixer) for owner in owners} != {id(mixer) for mixer in mixers}:
        return "it has layers that do not ask"
    if reason := layers.other_steps(layers.step_of(runner)):
        return reason
    if model_runner.fetches_states(runner):
        return "the hierarchical cache brings states layer by layer"
    if model_runner.spreads_requests(runner):
        return "layers gather tokens of other ranks, which may be idle"
    for owner in owners:
        cache = runner.req_to_token_pool.mamba2_layer_cache(owner.layer_id)
        if reason := mamba2.why_not(owner.mixer, cache, runner.dtype):
            return f"layer {owner.layer_id}: {reason}"
    return None


class Mamba2Prefill:
    """What Mamba2AttnBackend inherits in front of its own base. Methods are named as upstream calls
    them."""

    prefill_graph_max_seqs = MOST_REQUESTS  # a batch of more runs eagerly
    prefill_graph_metadata: Tables | None = None  # of the size that is captured or replayed

    def supports_prefill_graph_extend(self) -> bool:
        if layers.asked() not in own_runner.ASKING:
            return False
        reason = why_not(self._model_runner)
        if reason and model_runner.is_first_rank(self._model_runner):
            logger.info(own_runner.BREAKS, reason)
        return reason is None

    def prefill_graph_extend_active(self) -> bool:
        return self.prefill_graph_metadata is not None

    def init_prefill_graph_metadata(self, forward_batch: Any) -> Tables:
        """The tables of a size, with the batch of its capture, whose states go to the slot that no
        request owns."""
        tokens, tracks = forward_batch.extend_num_tokens, self._states().step is not None
        places, device = min(tokens, MOST_REQUESTS), torch.device(self.device)
        made = Tables(tokens, places, tiles.CHUNK, device, tracks)
        lengths = [int(length) for length in forward_batch.extend_seq_lens_cpu]
        made.fill(lengths, [False] * len(lengths), made.slots)
        self.prefill_graph_metadata = made
        return made

    def refresh_prefill_graph_metadata(self, meta: Tables, forward_batch: Any) -> None:
        """Describe a batch to the launches that were captured with `meta`."""
        states = self._states()
        meta.fill(*states.batch(forward_batch))
        states.track(meta, forward_batch)
        self.prefill_graph_metadata = meta

    def _states(self) -> layers.Captured:
        return layers.Captured(self.req_to_token_pool, layers.step_of(self._model_runner))

    def extend_in_graph(self, layer: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        """A layer's prefill as launches that any batch can replay; its output, before the sum over
        the ranks."""
        cache = self.req_to_token_pool.mamba2_layer_cache(layer.layer_id)
        return mamba2.run(layer.mixer, cache, self.prefill_graph_metadata, hidden_states)


def captures(forward_batch: Any) -> Any | None:
    """The backend that captures this forward's Mamba2 layers, or None where they break.

    Called by a layer inside of a breakable graph.
    """
    backend = ops.attention_backend()
    plain = forward_batch.forward_mode.is_extend_without_speculative()
    asked = plain and getattr(backend, "linear_extend_in_graph", None)
    return backend.linear_attn_backend if asked and asked() else None
