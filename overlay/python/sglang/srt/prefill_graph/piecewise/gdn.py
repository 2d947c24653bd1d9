"""Qwen3-Next's gated delta net layers in the piecewise graph (upstream sglang#13081, in releases
from 0.5.6)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..compat import ops
from .split_op import in_prefill_graph, split_op


@split_op("gdn_with_output", tokens=ops.new_tokens)
def gdn_with_output(
    layer: Any, hidden_states: torch.Tensor, output: torch.Tensor, forward_batch: Any
) -> None:
    """Run one Qwen3GatedDeltaNet on normed hidden_states, [tokens, hidden] -> [tokens, hidden].

    layer: what its forward was before `split_in_graph` gives the result. Updates the layer's
    convolution and recurrent state in the request pool.
    """
    output.copy_(type(layer).forward.__wrapped__(layer, hidden_states, forward_batch))


def split_in_graph(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A Qwen3GatedDeltaNet's forward, which is the split op in the prefill graph: the recurrence
    depends on the batch, so it runs between two captured pieces."""

    @functools.wraps(forward)
    def run(self: Any, hidden_states: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        if not in_prefill_graph():
            return forward(self, hidden_states, forward_batch)
        output = torch.empty_like(hidden_states)
        gdn_with_output(hidden_states, output, self.layer_id)
        return output

    return run
