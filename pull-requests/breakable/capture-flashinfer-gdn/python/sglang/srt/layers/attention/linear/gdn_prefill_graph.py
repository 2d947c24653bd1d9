"""GDN extend captured inside breakable prefill CUDA graphs, with FlashInfer's kernel.

Same static tables as KDA (kda_prefill_graph.py). On SM90, FlashInfer's kernel reads on the
device where sequences begin, and programs of an empty sequence return at once: one launch
serves any batch of a bucket. It leaves three things to the caller: states are packed by
sequence, an empty sequence writes none, and the rows of the last sequence's last tile that
are behind the batch must be finite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from sglang.kernels.ops.attention.fla.l2norm import gdn_prefill_qkv_prepare_fwd
from sglang.kernels.ops.attention.linear.fused_gdn_gating import fused_gdn_gating
from sglang.kernels.ops.mamba.causal_conv1d_triton import causal_conv1d_fn
from sglang.kernels.ops.mamba.kda_prefill_track import (
    TRACK_CHUNK_STATE,
    TRACK_FINAL_STATE,
    kda_track_conv_window,
)
from sglang.srt.runtime_context import mamba_cache_chunk_size

if TYPE_CHECKING:
    from sglang.srt.layers.attention.linear.kda_prefill_graph import (
        KDAPrefillGraphMetadata,
    )
    from sglang.srt.layers.radix_linear_attention import RadixLinearAttention
    from sglang.srt.mem_cache.memory_pool import MambaPool

# Tokens of a chunk in KDAPrefillGraphMetadata.track_chunk_idx.
_CHUNK_SIZE = 64


@triton.jit
def _copy_states_kernel(
    src,
    src_rows,  # [rows] int32; negative: nothing is copied
    dst,
    dst_rows,  # [rows]
    stride_src,
    stride_dst,
    numel,
    BLOCK: tl.constexpr,
):
    r = tl.program_id(0)
    src_row = tl.load(src_rows + r).to(tl.int64)
    dst_row = tl.load(dst_rows + r).to(tl.int64)
    if src_row < 0 or dst_row < 0:
        return
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < numel
    val = tl.load(src + src_row * stride_src + offs, mask=mask)
    tl.store(
        dst + dst_row * stride_dst + offs, val.to(dst.dtype.element_ty), mask=mask
    )


def _copy_states(
    src: torch.Tensor,
    src_rows: torch.Tensor,
    dst: torch.Tensor,
    dst_rows: torch.Tensor,
) -> None:
    """``dst[dst_rows[r]] = src[src_rows[r]]`` where both are not negative."""
    numel, block = dst[0].numel(), 1024
    _copy_states_kernel[(src_rows.shape[0], triton.cdiv(numel, block))](
        src,
        src_rows,
        dst,
        dst_rows,
        src.stride(0),
        dst.stride(0),
        numel,
        BLOCK=block,
    )


class FlashInferGDNPrefillGraph:
    """What FlashInfer's kernel reads besides the tables of a bucket."""

    def __init__(self, *, wrapper_cls, num_tokens, max_seqs, track, device):
        self.prefill_fn = wrapper_cls
        self.checkpoint_size = mamba_cache_chunk_size()
        self.num_checkpoints = num_tokens // self.checkpoint_size if track else 0
        self.rows = torch.arange(max_seqs, dtype=torch.int32, device=device)
        self.cu_seqlens = torch.zeros(max_seqs + 1, dtype=torch.int64, device=device)
        self.checkpoint_starts = torch.zeros_like(self.cu_seqlens)
        # By sequence: the row that the prefix cache keeps, -1 for none.
        self.final_rows = torch.full_like(self.rows, -1)
        self.checkpoint_rows = torch.full_like(self.rows, -1)

    def fill(self, meta: KDAPrefillGraphMetadata, extend_seq_lens, track_rows) -> None:
        self.cu_seqlens.copy_(meta.cu_seqlens)
        if not meta.track:
            return
        counts = self.cu_seqlens.diff() // self.checkpoint_size
        torch.cumsum(counts, 0, out=self.checkpoint_starts[1:])
        self.final_rows.copy_(
            self.rows.where(meta.track_mode == TRACK_FINAL_STATE, -1)
        )
        # Triton names the state before a chunk, FlashInfer the one after an interval.
        interval = meta.track_chunk_idx * _CHUNK_SIZE // self.checkpoint_size - 1
        self.checkpoint_rows.copy_(
            (self.checkpoint_starts[:-1] + interval).where(
                meta.track_mode == TRACK_CHUNK_STATE, -1
            )
        )

    def run(self, meta: KDAPrefillGraphMetadata, ssm_states, q, k, v, g, beta):
        slots = meta.cache_indices
        states = ssm_states.new_empty(
            (meta.max_seqs, *ssm_states.shape[1:]), dtype=torch.float32
        )
        _copy_states(ssm_states, slots, states, self.rows)
        checkpoints, kwargs = None, {}
        if self.num_checkpoints:
            checkpoints = states.new_empty((self.num_checkpoints, *states.shape[1:]))
            kwargs = dict(
                state_checkpoints=checkpoints,
                checkpoint_cu_starts=self.checkpoint_starts,
                checkpoint_every_n_tokens=self.checkpoint_size,
            )
        output, _ = self.prefill_fn(
            q=q,
            k=k,
            v=v,
            g=g.exp(),
            beta=beta,
            initial_state=states,
            output_final_state=True,
            output_state=states,
            cu_seqlens=self.cu_seqlens,
            use_qk_l2norm_in_kernel=False,
            # Context parallelism launches grids that depend on the batch.
            use_cp=False,
            **kwargs,
        )
        _copy_states(states, self.rows, ssm_states, slots)
        if meta.track:
            _copy_states(states, self.final_rows, ssm_states, meta.track_dst)
        if checkpoints is not None:
            _copy_states(checkpoints, self.checkpoint_rows, ssm_states, meta.track_dst)
        return output


def gdn_extend_in_graph(
    *,
    layer: RadixLinearAttention,
    meta: KDAPrefillGraphMetadata,
    layer_cache: MambaPool.State,
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
) -> torch.Tensor:
    """GDNAttnBackend.forward_extend with launch grids that depend only on the bucket.
    Returns [1, num_tokens, HV, V]; rows past the batch's tokens are zero."""
    conv_states = layer_cache.conv[0]
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
    mixed_qkv = causal_conv1d_fn(
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
    is_padding = meta.token_index >= meta.num_logical_tokens
    mixed_qkv = mixed_qkv.masked_fill(is_padding[:, None], 0)
    q, k, v = mixed_qkv.split([layer.q_dim, layer.k_dim, layer.v_dim], dim=-1)
    q, k, v = gdn_prefill_qkv_prepare_fwd(
        q.unflatten(-1, (-1, layer.head_q_dim)),
        k.unflatten(-1, (-1, layer.head_k_dim)),
        v.unflatten(-1, (-1, layer.head_v_dim)),
    )
    g, beta = fused_gdn_gating(layer.A_log, a, b, layer.dt_bias)
    output = meta.flashinfer.run(
        meta, layer_cache.temporal, q, k, v, g[0].float(), beta[0].float()
    )
    return output.masked_fill_(is_padding[:, None, None], 0).unsqueeze(0)
