"""Gated delta nets' prefills through upstream's own hook for linear attention inside a graph
(0.5.23), where they are asked for.

SGLANG_PREFILL_GRAPH_STATES=all in the environment asks. The tables of each size, and what fills
them before each replay, are those of upstream's KDA backend
(layers/attention/linear/kda_prefill_graph.py): both cut sequences into chunks of 64 tokens, and
convolve blocks of 8. The kernels are the release's own, which read the tables.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from sglang.kernels.ops.mamba.causal_conv1d_triton import causal_conv1d_fn
from sglang.kernels.ops.mamba.kda_prefill_track import kda_track_conv_window
from sglang.srt.layers.attention.linear.kda_backend import KDAAttnBackend

from ..compat import model_runner
from ..kernels import delta_states
from . import layers, own_runner
from .tables import MOST_REQUESTS

logger = logging.getLogger(__name__)
ASKED, KERNEL = "all", "TritonGDNKernel"


class GatedDeltaPrefill:
    """What GDNAttnBackend inherits in front of its own base. Methods are named as upstream calls
    them."""

    prefill_graph_max_seqs = MOST_REQUESTS  # a batch of more runs eagerly
    prefill_graph_metadata: Any = None  # KDAPrefillGraphMetadata of the size at hand

    # They ask nothing that KDA alone has.
    prefill_graph_extend_active = KDAAttnBackend.prefill_graph_extend_active
    init_prefill_graph_metadata = KDAAttnBackend.init_prefill_graph_metadata
    refresh_prefill_graph_metadata = KDAAttnBackend.refresh_prefill_graph_metadata
    _prefill_graph_cache_indices = KDAAttnBackend._prefill_graph_cache_indices
    _fill_prefill_graph_metadata = KDAAttnBackend._fill_prefill_graph_metadata
    _prefill_graph_track_rows = KDAAttnBackend._prefill_graph_track_rows

    def supports_prefill_graph_extend(self) -> bool:
        if layers.asked() != ASKED:
            return False
        reason = why_not(self)
        if reason and model_runner.is_first_rank(self._model_runner):
            logger.info(own_runner.BREAKS, reason)
        return reason is None

    def extend_in_graph(
        self, layer: Any, mixed_qkv: torch.Tensor, a: torch.Tensor, b: torch.Tensor
    ) -> torch.Tensor:
        """A layer's prefill as launches that any batch can replay.

        mixed_qkv: [tokens, channels]; a, b: [tokens, value heads]; rows behind the batch may hold
        anything. Returns [1, tokens, value heads, head size], with zeros in rows behind the batch.
        """
        tables = self.prefill_graph_metadata
        cache = self.req_to_token_pool.mamba2_layer_cache(layer.layer_id)
        windows, states = cache.conv[0], cache.temporal
        if tables.track:
            _keep_windows(tables, windows, mixed_qkv)
        query, key, value = _heads(layer, _convolved(layer, tables, windows, mixed_qkv))
        decay, beta = self._prefill_gates(layer, a, b)
        output, _, before = self.kernel_dispatcher.extend(
            q=query,
            k=key,
            v=value,
            g=decay,
            beta=beta,
            ssm_states=states,
            cache_indices=tables.cache_indices,
            query_start_loc=tables.cu_seqlens,
            static_tables=dict(
                chunk_indices=tables.chunk_indices, chunk_offsets=tables.chunk_offsets
            ),
        )
        if tables.track:
            delta_states.keep(states, before[0], tables)
        behind = tables.token_index >= tables.num_logical_tokens
        return output.masked_fill_(behind.view(1, -1, 1, 1), 0)


def why_not(backend: Any) -> str | None:
    """Why the gated delta nets of a GDNAttnBackend stay breaks, or None."""
    kernel = type(backend.kernel_dispatcher.extend_kernel).__name__
    if kernel != KERNEL:
        return (
            f"{kernel} computes their prefills; --linear-attn-prefill-backend triton captures them"
        )
    if backend.enable_mis:
        return "--enable-mis cuts prompts into items"
    kept = backend.req_to_token_pool.mamba_pool.mamba_cache
    if not all(part.is_contiguous() for part in (*kept.conv, kept.temporal)):
        return "states do not lie one behind the other in their pool"
    runner = backend._model_runner
    if model_runner.fetches_states(runner):
        return "the hierarchical cache brings states layer by layer"
    if model_runner.spreads_requests(runner):
        return "layers gather tokens of other ranks, which may be idle"
    return None


def _keep_windows(tables: Any, windows: torch.Tensor, mixed_qkv: torch.Tensor) -> None:
    """The windows that the prefix cache keeps. The convolution overwrites the pool's afterwards."""
    kda_track_conv_window(
        conv_pool=windows.transpose(-1, -2),
        x=mixed_qkv,
        track_mode=tables.track_mode,
        track_conv_start=tables.track_conv_start,
        track_dst=tables.track_dst,
        num_tokens=tables.num_logical_tokens,
    )


def _convolved(
    layer: Any, tables: Any, windows: torch.Tensor, mixed_qkv: torch.Tensor
) -> torch.Tensor:
    return causal_conv1d_fn(
        mixed_qkv.transpose(0, 1),
        layer.conv_weights,
        layer.bias,
        activation=layer.activation,
        conv_states=windows,
        has_initial_state=tables.has_initial_state,
        cache_indices=tables.cache_indices,
        query_start_loc=tables.cu_seqlens,
        seq_lens_cpu=None,
        block_table=tables.conv_block_table,
    ).transpose(0, 1)


def _heads(layer: Any, qkv: torch.Tensor) -> Sequence[torch.Tensor]:
    """Queries, keys and values, [1, tokens, heads, head size] each."""
    from sglang.srt.layers.attention.linear import gdn_backend  # it imports this file

    if qkv.is_cuda and qkv.shape[-1] <= gdn_backend.MAX_FUSED_QKV_SPLIT_DIM:
        heads = layer.num_q_heads, layer.num_k_heads, layer.num_v_heads
        widths = layer.head_q_dim, layer.head_k_dim, layer.head_v_dim
        return gdn_backend.fused_qkv_split_gdn_prefill(qkv, *heads, *widths)
    parts = qkv.split([layer.q_dim, layer.k_dim, layer.v_dim], dim=-1)
    sizes = layer.head_q_dim, layer.head_k_dim, layer.head_v_dim
    return [
        part.unflatten(-1, (-1, size)).unsqueeze(0) for part, size in zip(parts, sizes, strict=True)
    ]
