"""NemotronH's Mamba2 layers in the piecewise graph (upstream sglang#19903 and #21436, in releases from 0.5.10)."""

from __future__ import annotations

from typing import Any

import torch

from .split_op import split_op


def real_tokens(forward_batch: Any) -> int:
    """Rows that Mamba2's metadata accounts for: prefill tokens, then one per decode, or its drafts when verifying them.

    The fields are those of Mamba2Metadata (layers/attention/mamba/mamba2_metadata.py); is_target_verify and
    draft_token_num begin in 0.5.6. MambaMixer2 asserts that it is given exactly so many rows.
    """
    metadata = forward_batch.attn_backend.linear_attn_backend.forward_metadata
    per_decode = metadata.draft_token_num if getattr(metadata, "is_target_verify", False) else 1
    return metadata.num_prefill_tokens + metadata.num_decodes * per_decode


@split_op("nemotron_mamba2_with_output", tokens=real_tokens, upstream="sglang.srt.models.nemotron_h")
def nemotron_mamba2_with_output(layer: Any, hidden_states: torch.Tensor, output: torch.Tensor, forward_batch: Any) -> None:
    """Run one NemotronHMambaDecoderLayer's mixer on normed hidden_states, [tokens, hidden] -> [tokens, hidden].

    layer: `mixer` (MambaMixer2) and `layer_id`. Updates the layer's convolution and SSM state in the request pool.
    """
    forward_batch.attn_backend.linear_attn_backend.forward(
        mixer=layer.mixer,
        layer_id=layer.layer_id,
        hidden_states=hidden_states,
        output=output,
        use_triton_causal_conv=True,
    )
