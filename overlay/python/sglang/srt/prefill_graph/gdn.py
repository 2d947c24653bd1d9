"""Qwen3-Next's gated delta net layers in the piecewise graph (upstream sglang#13081, in releases from 0.5.6)."""

from __future__ import annotations

from typing import Any

import torch

from .split_op import split_op


def real_tokens(forward_batch: Any) -> int:
    """Tokens of the batch before padding: those it extends by, or the drafts of each request when verifying them.

    The runner of 0.5.5 hands the real batch's extend_num_tokens on to the padded one (model_executor/
    piecewise_cuda_graph_runner.py, replay_prepare); a batch of drafts has none.
    """
    if forward_batch.extend_num_tokens is not None:
        return forward_batch.extend_num_tokens
    return forward_batch.batch_size * forward_batch.spec_info.draft_token_num


@split_op("gdn_with_output", tokens=real_tokens, upstream="sglang.srt.models.qwen3_next")
def gdn_with_output(layer: Any, hidden_states: torch.Tensor, output: torch.Tensor, forward_batch: Any) -> None:
    """Run one Qwen3GatedDeltaNet on normed hidden_states, [tokens, hidden] -> [tokens, hidden].

    layer: its `_forward(hidden_states, forward_batch)`, the eager forward, gives the result. Updates the layer's
    convolution and recurrent state in the request pool.
    """
    output.copy_(layer._forward(hidden_states, forward_batch))
