"""Layers with recurrent states through upstream's hook for linear attention inside a graph (from
0.5.22): HybridLinearAttnBackend has its linear half make the tables of each size, and fill them
before each replay. Here Mamba2AttnBackend and GDNAttnBackend answer.
SGLANG_PREFILL_GRAPH_STATES=break in the environment turns this off."""

from __future__ import annotations

import logging
from typing import Any

import torch

from ..compat import model_runner
from ..model.layers import breaks_at_mixer
from . import layers, own_runner
from .tables import MOST_REQUESTS, Tables

logger = logging.getLogger(__name__)
MIXER = "MambaMixer2"
ASK = "NemotronHMambaDecoderLayer", "RadixLinearAttention"  # beside layers that break_at_mixer


def of(backend: Any) -> layers.Captured | str | None:
    """What a linear backend captures, or why its layers stay breaks; None where there are none."""
    runner = backend._model_runner
    model = getattr(runner, "model", None)
    if model is None:
        return "there is no model yet"
    parts = list(model.modules())
    owners = [part for part in parts if type(part).__name__ in ASK or breaks_at_mixer(part)]
    mixers = {id(part) for part in parts if type(part).__name__ == MIXER}
    if mixers - {id(layers.mixer_of(owner)) for owner in owners}:
        return "it has layers that do not ask"
    if model_runner.spreads_requests(runner):
        return "layers gather tokens of other ranks, which may be idle"
    return layers.of(runner, {owner.layer_id: owner for owner in owners}, backend)


class StatesPrefill:
    """What a linear backend inherits in front of its own base; methods are named by upstream."""

    prefill_graph_max_seqs = MOST_REQUESTS  # a batch of more runs eagerly
    prefill_graph_metadata: Tables | None = None  # of the size that is captured or replayed
    prefill_graph_states: layers.Captured | str | None = None  # of()

    def supports_prefill_graph_extend(self) -> bool:
        self.prefill_graph_states = found = of(self)
        if isinstance(found, str) and model_runner.is_first_rank(self._model_runner):
            logger.info(own_runner.BREAKS, found)
        return isinstance(found, layers.Captured)

    def prefill_graph_extend_active(self) -> bool:
        return self.prefill_graph_metadata is not None

    def init_prefill_graph_metadata(self, forward_batch: Any) -> Tables:
        made = own_runner.tables_for(self.prefill_graph_states, forward_batch)
        self.prefill_graph_metadata = made
        return made

    def refresh_prefill_graph_metadata(self, meta: Tables, forward_batch: Any) -> None:
        """Describe a batch to the launches that were captured with `meta`."""
        self.prefill_graph_states.describe(meta, forward_batch)
        self.prefill_graph_metadata = meta


class GatedDeltaPrefill(StatesPrefill):
    """What GDNAttnBackend inherits."""

    def extend_in_graph(
        self, layer: Any, mixed_qkv: torch.Tensor, a: torch.Tensor, b: torch.Tensor
    ) -> torch.Tensor:
        """As gdn.run has it."""
        from . import gdn  # as in layers._nets_module

        cache = self.prefill_graph_states.states(layer.layer_id)
        return gdn.run(layer, cache, self.prefill_graph_metadata, mixed_qkv, a, b)
