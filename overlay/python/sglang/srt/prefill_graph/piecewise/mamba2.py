"""NemotronH's Mamba2 layers in the piecewise graph (upstream sglang#19903 and #21436, in releases
from 0.5.10)."""

from __future__ import annotations

from typing import Any

import torch

from ..compat import ops
from .split_op import in_prefill_graph, split_op


@split_op("nemotron_mamba2_with_output", tokens=ops.mamba2_tokens)
def nemotron_mamba2_with_output(
    layer: Any, hidden_states: torch.Tensor, output: torch.Tensor, forward_batch: Any
) -> None:
    """Run the mixer of a NemotronHMambaDecoderLayer on normed hidden_states, [tokens, hidden]."""
    forward_batch.attn_backend.linear_attn_backend.forward(
        mixer=layer.mixer,
        layer_id=layer.layer_id,
        hidden_states=hidden_states,
        output=output,
        use_triton_causal_conv=True,
    )


def ran_as_split_op(hidden_states: torch.Tensor, output: torch.Tensor, layer_id: int) -> bool:
    """Whether the forward under way is the prefill graph's. Then `output` has the layer's result,
    out of the op: the scan depends on the batch, so it runs between two captured pieces."""
    if not in_prefill_graph():
        return False
    nemotron_mamba2_with_output(hidden_states, output, layer_id)
    return True
