"""GDN's extend on the static tables of a breakable prefill graph. No GPU."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.layers.attention.linear import gdn_backend, gdn_prefill_graph
from sglang.srt.layers.attention.linear.kda_prefill_graph import (
    KDAPrefillGraphMetadata,
    KDAPrefillTrackRows,
)
from sglang.srt.model_executor.forward_batch_info import ForwardMode

register_cpu_ci(est_time=15, suite="base-a-test-cpu")

SLOTS, HEADS, SIZE, STEP = 8, 2, 4, 64


def _copy(src, src_rows, dst, dst_rows):
    for i, j in zip(src_rows.tolist(), dst_rows.tolist()):
        if i >= 0 and j >= 0:
            dst[j] = src[i]


def _add_tokens(*, initial_state, output_state, cu_seqlens, **given):
    """A rule whose state is the first one plus the sequence's tokens. Like FlashInfer's, it
    writes no state of an empty sequence, and one after each interval."""
    kept, step = (
        given.get("state_checkpoints"),
        given.get("checkpoint_every_n_tokens", 0),
    )
    for row, count in enumerate(cu_seqlens.diff().tolist()):
        begun = initial_state[row].clone()
        if count:
            output_state[row] = begun + count
        for i in range(count // step if step else 0):
            start = int(given["checkpoint_cu_starts"][row])
            kept[start + i] = begun + (i + 1) * step
    return given["v"].clone(), output_state


class TestGDNPrefillGraph(CustomTestCase):
    def setUp(self):
        for patched in (
            patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor),
            patch.object(gdn_prefill_graph, "mamba_cache_chunk_size", lambda: STEP),
            patch.object(gdn_prefill_graph, "_copy_states", _copy),
        ):
            patched.start()
            self.addCleanup(patched.stop)

    def _filled(self, *, track):
        """Three sequences of 130, 5 and 128 tokens in a bucket of 512."""
        meta = KDAPrefillGraphMetadata.allocate(
            num_tokens=512,
            max_seqs_cap=6,
            track=track,
            cache_index_dtype=torch.int32,
            device=torch.device("cpu"),
            flashinfer_wrapper_cls=_add_tokens,
            flashinfer_graph_cls=gdn_prefill_graph.FlashInferGDNPrefillGraph,
        )
        rows = KDAPrefillTrackRows(
            chunk_rows=[(0, 2)],
            final_rows=[2],
            conv_rows=[(0, 128), (2, 128)],
            conv_len=3,
            dst=torch.tensor([4, 0, 5]),
        )
        meta.fill(
            extend_seq_lens=[130, 5, 128],
            cache_indices=torch.tensor([3, 1, 2], dtype=torch.int32),
            extend_prefix_lens=torch.tensor([0, 0, 64]),
            track_rows=rows if track else None,
        )
        return meta

    def _run(self, meta):
        pool = torch.arange(SLOTS).float().view(-1, 1, 1, 1) * 1000
        pool = pool.expand(SLOTS, HEADS, SIZE, SIZE).contiguous()
        value = torch.zeros(512, HEADS, SIZE)
        gate = torch.zeros(512, HEADS)
        meta.flashinfer.run(meta, pool, value, value, value, gate, gate)
        return pool[:, 0, 0, 0].tolist()

    def test_each_sequence_fills_its_own_slot(self):
        pool = self._run(self._filled(track=False))
        self.assertEqual(pool, [0, 1005, 2128, 3130, 4000, 5000, 6000, 7000])

    def test_the_prefix_cache_keeps_the_state_of_a_chunk_or_the_last_one(self):
        pool = self._run(self._filled(track=True))
        self.assertEqual(pool, [0, 1005, 2128, 3130, 3128, 2128, 6000, 7000])

    def test_a_later_batch_keeps_nothing_of_the_one_before(self):
        meta = self._filled(track=True)
        meta.fill(
            extend_seq_lens=[7],
            cache_indices=torch.tensor([6], dtype=torch.int32),
            extend_prefix_lens=torch.tensor([0]),
            track_rows=None,
        )
        self.assertEqual(
            self._run(meta), [0, 1000, 2000, 3000, 4000, 5000, 6007, 7000]
        )

    def _backend(self, kernel):
        backend = gdn_backend.GDNAttnBackend.__new__(gdn_backend.GDNAttnBackend)
        cache = SimpleNamespace(
            conv=[torch.empty(1, 2, 12, 3)], temporal=torch.empty(1, 2, 1, 4, 4)
        )
        backend.kernel_dispatcher = SimpleNamespace(extend_kernel=kernel)
        backend.enable_mis = False
        backend.req_to_token_pool = SimpleNamespace(
            mamba_pool=SimpleNamespace(mamba_cache=cache),
            mamba2_layer_cache=lambda layer_id: "cache",
        )
        return backend

    def test_only_flashinfers_kernel_without_host_states_is_captured(self):
        memory = SimpleNamespace(
            enable_hierarchical_cache=False, enable_unified_cache_external_linker=False
        )
        kernel = SimpleNamespace(prefill_graph_wrapper_cls=_add_tokens)
        with patch.object(gdn_backend, "get_memory", lambda: memory):
            backend = self._backend(kernel)
            self.assertTrue(backend.supports_prefill_graph_extend())
            triton_kernel = SimpleNamespace()
            self.assertFalse(
                self._backend(triton_kernel).supports_prefill_graph_extend()
            )
            backend.enable_mis = True
            self.assertFalse(backend.supports_prefill_graph_extend())
            for loads in vars(memory).copy():
                setattr(memory, loads, True)
                self.assertFalse(self._backend(kernel).supports_prefill_graph_extend())
                setattr(memory, loads, False)
            with gdn_backend.envs.SGLANG_DISABLE_GDN_PREFILL_GRAPH_EXTEND.override(
                True
            ):
                self.assertFalse(self._backend(kernel).supports_prefill_graph_extend())

    def test_only_an_extend_runs_on_the_tables(self):
        backend = self._backend(None)
        backend.prefill_graph_metadata, backend.forward_metadata = "tables", None
        given = dict(layer=SimpleNamespace(layer_id=0), mixed_qkv=torch.zeros(2, 12))
        with patch.object(
            gdn_backend,
            "gdn_extend_in_graph",
            lambda *, meta, layer_cache, **_: (meta, layer_cache),
        ):
            extend = SimpleNamespace(forward_mode=ForwardMode.EXTEND)
            result = backend.forward_extend(
                forward_batch=extend, a=None, b=None, **given
            )
            self.assertEqual(result, ("tables", "cache"))
            verify = SimpleNamespace(forward_mode=ForwardMode.TARGET_VERIFY)
            with self.assertRaises(AttributeError):
                backend.forward_extend(forward_batch=verify, a=None, b=None, **given)


if __name__ == "__main__":
    unittest.main()
