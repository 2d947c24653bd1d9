"""Mamba2 extend captured inside breakable prefill CUDA graphs.

Same static tables as KDA (linear/kda_prefill_graph.py), with Mamba2's chunk size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

import torch

from sglang.kernels.ops.mamba.causal_conv1d_triton import causal_conv1d_fn
from sglang.kernels.ops.mamba.kda_prefill_track import kda_track_conv_window
from sglang.kernels.ops.mamba.triton_ops.ssd_varlen import (
    SSDTiles,
    get_hopper_tiles,
    ssd_varlen_fwd,
)

if TYPE_CHECKING:
    from sglang.srt.layers.attention.linear.kda_prefill_graph import (
        KDAPrefillGraphMetadata,
    )
    from sglang.srt.layers.attention.mamba.mamba import MambaMixer2
    from sglang.srt.mem_cache.memory_pool import MambaPool


def get_tiles(
    conv_states: torch.Tensor, ssm_states: torch.Tensor
) -> Optional[SSDTiles]:
    """Tiles of a rank's layers, whose sizes are those of its state pool."""
    nheads, headdim, dstate = ssm_states.shape[-3:]
    ngroups, odd = divmod(conv_states.shape[-2] - nheads * headdim, 2 * dstate)
    if odd or ngroups < 1 or nheads % ngroups or ssm_states.stride(-1) != 1:
        return None
    return get_hopper_tiles(
        nheads=nheads, ngroups=ngroups, headdim=headdim, dstate=dstate
    )


def mamba2_extend_in_graph(
    *,
    mixer: MambaMixer2,
    meta: KDAPrefillGraphMetadata,
    layer_cache: MambaPool.State,
    hidden_states: torch.Tensor,
    mup_vector: Optional[torch.Tensor],
) -> torch.Tensor:
    """MambaMixer2.forward for an extend, with launch grids that depend only on the
    bucket. Rows past the batch's tokens reach no state."""
    conv_states, ssm_states = layer_cache.conv[0], layer_cache.temporal
    nheads, headdim, dstate = ssm_states.shape[1:]
    intermediate, conv_dim = nheads * headdim, conv_states.shape[1]
    projected, _ = mixer.in_proj(hidden_states)
    if mup_vector is not None:
        projected = projected * mup_vector
    gate, xBC, dt = projected.split([intermediate, conv_dim, nheads], dim=-1)

    if meta.track:
        # Before the conv kernel updates the cache, as in kda_extend_in_graph.
        kda_track_conv_window(
            conv_pool=conv_states.transpose(-1, -2),
            x=xBC,
            track_mode=meta.track_mode,
            track_conv_start=meta.track_conv_start,
            track_dst=meta.track_dst,
            num_tokens=meta.num_logical_tokens,
        )
    xBC = causal_conv1d_fn(
        xBC.transpose(0, 1),
        mixer.conv1d.weight.squeeze(1),
        mixer.conv1d.bias,
        activation=mixer.activation,
        conv_states=conv_states,
        has_initial_state=meta.has_initial_state,
        cache_indices=meta.cache_indices,
        query_start_loc=meta.cu_seqlens,
        seq_lens_cpu=None,
        block_table=meta.conv_block_table,
    ).transpose(0, 1)
    groups_dim = (conv_dim - intermediate) // 2
    x, B, C = xBC.split([intermediate, groups_dim, groups_dim], dim=-1)
    out = ssd_varlen_fwd(
        x=x.unflatten(-1, (nheads, headdim)),
        dt=dt,
        A=mixer.A,
        B=B.unflatten(-1, (-1, dstate)),
        C=C.unflatten(-1, (-1, dstate)),
        D=mixer.D,
        dt_bias=mixer.dt_bias,
        ssm_states=ssm_states,
        cache_indices=meta.cache_indices,
        has_initial_state=meta.has_initial_state,
        cu_seqlens=meta.cu_seqlens,
        chunk_indices=meta.chunk_indices,
        chunk_offsets=meta.chunk_offsets,
        chunk_size=meta.chunk_size,
        tiles=get_tiles(conv_states, ssm_states),
        track_mode=meta.track_mode if meta.track else None,
        track_chunk_idx=meta.track_chunk_idx if meta.track else None,
        track_dst=meta.track_dst if meta.track else None,
    )
    mixer_out, _ = mixer.out_proj(mixer.norm(out.flatten(-2), gate))
    return mixer_out
