"""Hooks of the breakable prefill CUDA graph for chunked delta-rule backends.

KDA and GDN cut sequences into the same chunks and run the same convolution, so
one set of static tables serves both (kda_prefill_graph.py).
"""

from typing import Optional

import torch

from sglang.srt.environ import envs
from sglang.srt.layers.attention.linear.kda_prefill_graph import (
    KDAPrefillGraphMetadata,
    KDAPrefillTrackRows,
    build_track_rows,
)
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.runtime_context import get_exec


class DeltaRulePrefillGraphMixin:
    # Set while a breakable prefill CUDA graph captures or replays a bucket:
    # forward_extend then runs the graph-safe chain on these static tables.
    prefill_graph_metadata: Optional[KDAPrefillGraphMetadata] = None
    # Tokens between two states that the prefix cache keeps.
    prefill_graph_cache_chunk_size: int

    @property
    def prefill_graph_max_seqs(self) -> int:
        return envs.SGLANG_KDA_PREFILL_GRAPH_MAX_SEQS.get()

    def prefill_graph_extend_active(self) -> bool:
        return self.prefill_graph_metadata is not None

    def init_prefill_graph_metadata(
        self, forward_batch: ForwardBatch
    ) -> KDAPrefillGraphMetadata:
        cache_indices = self._prefill_graph_cache_indices(forward_batch)
        meta = KDAPrefillGraphMetadata.allocate(
            # KDA sees global sequence order, even when CP positions are local.
            num_tokens=forward_batch.extend_num_tokens,
            max_seqs_cap=self.prefill_graph_max_seqs,
            # Any replay of this bucket may carry prefix-cache snapshots (the
            # extra buffer is only on with the radix cache).
            track=get_exec().mamba.enable_mamba_extra_buffer,
            cache_index_dtype=cache_indices.dtype,
            device=self.device,
            flashinfer_wrapper_cls=getattr(
                self.kernel_dispatcher.extend_kernel, "prefill_graph_wrapper_cls", None
            ),
        )
        self._fill_prefill_graph_metadata(
            meta=meta, forward_batch=forward_batch, cache_indices=cache_indices
        )
        return meta

    def refresh_prefill_graph_metadata(
        self, meta: KDAPrefillGraphMetadata, forward_batch: ForwardBatch
    ) -> None:
        self._fill_prefill_graph_metadata(
            meta=meta,
            forward_batch=forward_batch,
            cache_indices=self._prefill_graph_cache_indices(forward_batch),
        )

    def _prefill_graph_cache_indices(self, forward_batch: ForwardBatch):
        # Same slot resolution as MambaAttnBackendBase._forward_metadata.
        cache_indices = self._translate_mamba_indices(
            self.req_to_token_pool.get_mamba_indices(forward_batch.req_pool_indices)
        )
        real_bs = forward_batch._original_batch_size
        if real_bs is not None and real_bs < cache_indices.shape[0]:
            cache_indices = cache_indices.clone()
            cache_indices[real_bs:] = -1
        return cache_indices

    def _fill_prefill_graph_metadata(
        self,
        *,
        meta: KDAPrefillGraphMetadata,
        forward_batch: ForwardBatch,
        cache_indices: torch.Tensor,
    ) -> None:
        if forward_batch.mamba_track_indices is not None:
            # Same one-time in-place translation as the eager metadata path.
            forward_batch.mamba_track_indices = self._translate_mamba_indices(
                forward_batch.mamba_track_indices
            )
        track_rows = None
        if forward_batch.mamba_track_mask is not None:
            assert meta.track, (
                "prefix-cache track batch replayed on a bucket captured without "
                "track tables"
            )
            track_rows = self._prefill_graph_track_rows(forward_batch)
        meta.fill(
            extend_seq_lens=list(forward_batch.extend_seq_lens_cpu),
            cache_indices=cache_indices,
            extend_prefix_lens=forward_batch.extend_prefix_lens,
            track_rows=track_rows,
        )
        self.prefill_graph_metadata = meta

    def _prefill_graph_track_rows(
        self, forward_batch: ForwardBatch
    ) -> Optional[KDAPrefillTrackRows]:
        bs = forward_batch.batch_size
        if self._has_cpu_prefill_track_metadata(forward_batch):
            track_mask = list(forward_batch.mamba_prefill_track_mask_cpu)
            track_seq_lens = list(forward_batch.mamba_track_seqlens_cpu)
            extend_prefix_lens = list(forward_batch.extend_prefix_lens_cpu)
        else:
            # The same host copies the eager path takes without CPU metadata.
            track_mask = forward_batch.mamba_track_mask[:bs].tolist()
            track_seq_lens = forward_batch.mamba_track_seqlens[:bs].tolist()
            extend_prefix_lens = forward_batch.extend_prefix_lens[:bs].tolist()
        return build_track_rows(
            track_mask=track_mask,
            track_seq_lens=track_seq_lens,
            extend_seq_lens=list(forward_batch.extend_seq_lens_cpu),
            extend_prefix_lens=extend_prefix_lens,
            state_chunk_size=self.mamba_chunk_size,
            cache_chunk_size=self.prefill_graph_cache_chunk_size,
            conv_len=self.conv_states_shape[-1],
            dst=forward_batch.mamba_track_indices,
        )
