"""Qwen3-Next's gated delta net layers in the piecewise graph (upstream sglang#13081, in releases from 0.5.6)."""

from __future__ import annotations

from typing import Any

import torch

from ..compat import ops
from .split_op import split_op


@split_op("gdn_with_output", tokens=ops.new_tokens)
def gdn_with_output(layer: Any, hidden_states: torch.Tensor, output: torch.Tensor, forward_batch: Any) -> None:
    """Run one Qwen3GatedDeltaNet on normed hidden_states, [tokens, hidden] -> [tokens, hidden].

    layer: its `_forward(hidden_states, forward_batch)`, the eager forward, gives the result. Updates the layer's
    convolution and recurrent state in the request pool.
    """
    output.copy_(layer._forward(hidden_states, forward_batch))
