"""The hooks that fill the tables of a breakable prefill graph. No GPU."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.kernels.ops.mamba.kda_prefill_track import kda_track_conv_window
from sglang.srt.layers.attention import hybrid_linear_attn_backend as hybrid
from sglang.srt.layers.attention.linear import kda_backend
from sglang.srt.layers.attention.linear.kda_prefill_graph import (
    KDAPrefillGraphMetadata,
)
from sglang.srt.model_executor.forward_batch_info import ForwardMode

register_cpu_ci(est_time=15, suite="base-a-test-cpu")

EXECUTION = SimpleNamespace(mamba=SimpleNamespace(enable_mamba_extra_buffer=True))


class Mixer(hybrid.MambaAttnBackendBase):
    """A backend that is not KDA's."""

    prefill_graph_max_seqs = 4
    prefill_graph_cache_chunk_size = 64


def _backend(kind):
    backend = kind.__new__(kind)
    backend.device = "cpu"
    backend.req_to_token_pool = SimpleNamespace(
        get_mamba_indices=lambda reqs: reqs.to(torch.int32),
        translate_mamba_indices=lambda slots: slots + 100,
    )
    backend.conv_states_shape = (1, 8, 3)
    backend._mamba_chunk_size = 64
    backend.prefill_graph_max_seqs = 4
    backend.kernel_dispatcher = SimpleNamespace(extend_kernel=None)
    return backend


def _batch(lens, prefixes, track=None, on_host=True, real=None):
    batch = SimpleNamespace(
        forward_mode=ForwardMode.EXTEND,
        batch_size=len(lens),
        req_pool_indices=torch.arange(1, len(lens) + 1),
        extend_num_tokens=sum(lens),
        extend_seq_lens_cpu=lens,
        extend_prefix_lens_cpu=prefixes,
        extend_prefix_lens=torch.tensor(prefixes),
        mamba_track_indices=None,
        mamba_track_mask=None,
        mamba_prefill_track_mask_cpu=None,
        mamba_track_seqlens_cpu=None,
        _original_batch_size=real,
    )
    if track is not None:
        mask, ends = [n > 0 for n in track], [p + n for p, n in zip(prefixes, track)]
        batch.mamba_track_mask = torch.tensor(mask)
        batch.mamba_track_seqlens = torch.tensor(ends)
        batch.mamba_track_indices = torch.arange(len(lens)) + 20
        if on_host:
            batch.mamba_prefill_track_mask_cpu = mask
            batch.mamba_track_seqlens_cpu = ends
    return batch


class TestPrefillGraphHooks(CustomTestCase):
    def setUp(self):
        for module in (hybrid, kda_backend):
            self._patch(module, "get_exec", lambda: EXECUTION)
        self._patch(kda_backend, "mamba_cache_chunk_size", lambda: 64)
        self._patch(torch.Tensor, "pin_memory", lambda tensor: tensor)

    def _patch(self, *where):
        patched = patch.object(*where)
        patched.start()
        self.addCleanup(patched.stop)

    def _check_tables(self, backend, **given):
        meta = backend.init_prefill_graph_metadata(_batch([256], [0]))
        self.assertTrue(backend.prefill_graph_extend_active())
        self.assertIs(backend.prefill_graph_metadata, meta)
        self.assertEqual(tuple(meta.chunk_indices.shape), (4 + 4, 2))
        self.assertTrue(meta.track and meta.flashinfer is None)
        lens, prefixes = [100, 5, 64], [0, 7, 64]
        batch = _batch(lens, prefixes, track=[100, 0, 64], **given)
        backend.refresh_prefill_graph_metadata(meta, batch)
        self.assertIs(backend.prefill_graph_metadata, meta)
        self.assertEqual(meta.cu_seqlens.tolist(), [0, 100, 105, 169, 169])
        chunks = [[0, 0], [0, 1], [1, 0], [2, 0]]
        self.assertEqual(meta.chunk_indices[:4].tolist(), chunks)
        self.assertEqual(meta.chunk_offsets.tolist(), [0, 2, 3, 4, 4])
        self.assertEqual(meta.num_logical_tokens.tolist(), [169])
        warm = [False, True, True, False]
        self.assertEqual(meta.has_initial_state.tolist(), warm)
        # The state before the second chunk, none, and the last one.
        self.assertEqual(meta.track_mode.tolist(), [2, 0, 1, 0])
        self.assertEqual(meta.track_chunk_idx[:1].tolist(), [1])
        self.assertEqual(meta.track_dst[[0, 2]].tolist(), [120, 122])
        self.assertEqual(meta.track_conv_start[[0, 2]].tolist(), [61, 166])
        return meta

    def test_kda_has_its_tables(self):
        meta = self._check_tables(_backend(kda_backend.KDAAttnBackend))
        self.assertEqual(meta.cache_indices.tolist(), [101, 102, 103, -1])

    def test_another_mixer_has_the_same_tables(self):
        for given in (dict(), dict(on_host=False), dict(real=2)):
            meta = self._check_tables(_backend(Mixer), **given)
            slots = [101, 102, -1 if given.get("real") else 103, -1]
            self.assertEqual(meta.cache_indices.tolist(), slots)

    def test_a_mixer_without_tables_is_not_in_the_graph(self):
        for kind in (Mixer, kda_backend.KDAAttnBackend):
            self.assertFalse(_backend(kind).prefill_graph_extend_active())

    def test_kda_gives_its_tables_flashinfers_wrapper(self):
        backend = _backend(kda_backend.KDAAttnBackend)
        kernel = SimpleNamespace(prefill_graph_wrapper_cls="wrapper")
        backend.kernel_dispatcher.extend_kernel = kernel
        seen = []

        def allocate(**given):
            seen.append(given["flashinfer_wrapper_cls"])
            return SimpleNamespace(fill=lambda **_: None)

        with patch.object(KDAPrefillGraphMetadata, "allocate", allocate):
            backend.init_prefill_graph_metadata(_batch([64], [0]))
        self.assertEqual(seen, ["wrapper"])

    def test_windows_are_kept_in_pools_of_either_layout(self):
        """KDA's has [window, dim] in a slot, Mamba2's and GDN's [dim, window]."""
        rows, given = (
            torch.arange(80.0).view(10, 8),
            dict(
                track_mode=torch.tensor([2, 0, 1], dtype=torch.int32),
                track_conv_start=torch.tensor([1, 0, 6], dtype=torch.int32),
                track_dst=torch.tensor([3, 0, 1]),
                num_tokens=torch.tensor([10], dtype=torch.int32),
            ),
        )
        for pool in (torch.zeros(5, 3, 8), torch.zeros(5, 8, 3).transpose(1, 2)):
            kda_track_conv_window(conv_pool=pool, x=rows, **given)
            self.assertTrue(pool[3].equal(rows[1:4]) and pool[1].equal(rows[6:9]))
            self.assertTrue(pool[[0, 2, 4]].eq(0).all())


if __name__ == "__main__":
    unittest.main()
