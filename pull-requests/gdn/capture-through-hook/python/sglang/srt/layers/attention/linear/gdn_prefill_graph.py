"""GDN extend captured inside breakable prefill CUDA graphs.

Same static tables as KDA (kda_prefill_graph.py): both run 64-token delta-rule
chunks and the same convolution blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sglang.kernels.ops.mamba.causal_conv1d_triton import causal_conv1d_fn
from sglang.kernels.ops.mamba.kda_prefill_track import (
    kda_track_conv_window,
    kda_track_ssm_state,
)
from sglang.srt.layers.attention.linear.kda_prefill_graph import (
    KDAPrefillGraphMetadata,
)

if TYPE_CHECKING:
    from sglang.srt.layers.radix_linear_attention import RadixLinearAttention


def gdn_conv_in_graph(
    *,
    layer: RadixLinearAttention,
    meta: KDAPrefillGraphMetadata,
    conv_states: torch.Tensor,
    mixed_qkv: torch.Tensor,
) -> torch.Tensor:
    """Convolve [tokens, dim] on the tables; conv_states: [slots, dim, kernel-1]."""
    if meta.track:
        # Before the conv kernel updates the cache, as in kda_extend_in_graph.
        kda_track_conv_window(
            conv_pool=conv_states.transpose(-1, -2),
            x=mixed_qkv,
            track_mode=meta.track_mode,
            track_conv_start=meta.track_conv_start,
            track_dst=meta.track_dst,
            num_tokens=meta.num_logical_tokens,
        )
    return causal_conv1d_fn(
        mixed_qkv.transpose(0, 1),
        layer.conv_weights,
        layer.bias,
        activation=layer.activation,
        conv_states=conv_states,
        has_initial_state=meta.has_initial_state,
        cache_indices=meta.cache_indices,
        query_start_loc=meta.cu_seqlens,
        seq_lens_cpu=None,
        block_table=meta.conv_block_table,
    ).transpose(0, 1)


def finish_extend_in_graph(
    *,
    meta: KDAPrefillGraphMetadata,
    ssm_states: torch.Tensor,
    h: torch.Tensor,
    output: torch.Tensor,
) -> torch.Tensor:
    """Snapshot the tracked states, from ``h`` as the eager path does, and zero the
    rows past the batch. h: [1, chunks, ...]."""
    if meta.track:
        kda_track_ssm_state(
            ssm_pool=ssm_states,
            h_track=h[0],
            track_mode=meta.track_mode,
            track_dst=meta.track_dst,
            cache_indices=meta.cache_indices,
            chunk_offsets=meta.chunk_offsets,
            track_chunk_idx=meta.track_chunk_idx,
        )
    padding = meta.token_index >= meta.num_logical_tokens
    return output.masked_fill_(padding.view(1, -1, 1, 1), 0)
