"""Mamba2's extend on the static tables of a breakable prefill graph. No GPU."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.layers.attention import hybrid_linear_attn_backend as hybrid
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.models import nemotron_h

register_cpu_ci(est_time=15, suite="base-a-test-cpu")


def _backend(*, nheads=128, ngroups=8, headdim=80, dstate=128, chunk=128):
    dim = nheads * headdim + 2 * ngroups * dstate
    cache = SimpleNamespace(
        conv=[torch.empty(1, 1, dim, 3)],
        temporal=torch.empty(1, 1, nheads, headdim, dstate),
    )
    backend = hybrid.Mamba2AttnBackend.__new__(hybrid.Mamba2AttnBackend)
    backend.device = "cpu"
    backend.req_to_token_pool = SimpleNamespace(
        mamba_pool=SimpleNamespace(mamba_cache=cache),
        mamba2_layer_cache=lambda layer_id: "cache",
        get_mamba_indices=lambda reqs: reqs.to(torch.int32),
        translate_mamba_indices=lambda slots: slots,
    )
    backend.conv_states_shape = cache.conv[0].shape
    backend._model_runner = SimpleNamespace(dtype=torch.bfloat16)
    backend._mamba_chunk_size = chunk
    return backend


def _batch(lens, prefixes, track=None):
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
        _original_batch_size=None,
    )
    if track is not None:
        batch.mamba_prefill_track_mask_cpu = [n > 0 for n in track]
        batch.mamba_track_seqlens_cpu = [p + n for p, n in zip(prefixes, track)]
        batch.mamba_track_mask = torch.tensor(batch.mamba_prefill_track_mask_cpu)
        batch.mamba_track_indices = torch.arange(len(lens)) + 20
    return batch


class TestMamba2PrefillGraph(CustomTestCase):
    def test_a_layer_breaks_only_where_its_backend_has_no_tables(self):
        linear = SimpleNamespace()
        backend = hybrid.HybridLinearAttnBackend.__new__(hybrid.HybridLinearAttnBackend)
        backend.linear_attn_backend = linear
        layer = nemotron_h.NemotronHMambaDecoderLayer.__new__(
            nemotron_h.NemotronHMambaDecoderLayer
        )
        torch.nn.Module.__init__(layer)
        layer.layer_id = 0
        broken = []
        with (
            patch.object(nemotron_h, "is_in_breakable_cuda_graph", return_value=True),
            patch.object(
                nemotron_h,
                "breakable_nemotron_mamba2_with_output",
                lambda *given: broken.append(given),
            ),
            patch.object(nemotron_h, "get_attn_backend", return_value=backend),
            patch.object(layer, "_forward_mamba", return_value="in graph"),
        ):
            linear.prefill_graph_extend_active = lambda: True
            self.assertEqual(layer._forward_mixer(torch.zeros(2, 4), None), "in graph")
            self.assertEqual(broken, [])
            linear.prefill_graph_extend_active = lambda: False
            layer._forward_mixer(torch.zeros(2, 4), None)
            self.assertEqual(len(broken), 1)

    def test_only_an_extend_runs_on_the_tables(self):
        backend = _backend()
        backend.prefill_graph_metadata = "tables"
        backend.forward_metadata = None
        given = dict(
            mixer="mixer", hidden_states=torch.zeros(3, 4), output=None, layer_id=0
        )
        with patch.object(
            hybrid,
            "mamba2_extend_in_graph",
            lambda *, meta, layer_cache, hidden_states, **_: (
                hidden_states + (meta == "tables") + (layer_cache == "cache")
            ),
            create=True,
        ):
            output = torch.empty(4, 4)
            result = backend.forward(
                **{**given, "output": output}, forward_batch=_batch([3], [0])
            )
            self.assertTrue(result.eq(2).all() and output[:3].eq(2).all())
            decode = SimpleNamespace(forward_mode=ForwardMode.DECODE)
            verify = SimpleNamespace(forward_mode=ForwardMode.TARGET_VERIFY)
            for batch in (decode, verify):
                with (
                    patch.object(
                        hybrid,
                        "get_memory",
                        lambda: SimpleNamespace(enable_page_major_kv_layout=False),
                    ),
                    self.assertRaises(AssertionError),
                ):
                    backend.forward(**given, forward_batch=batch)

    def test_an_eager_forward_drops_the_tables(self):
        backend = _backend()
        backend.prefill_graph_metadata = "tables"
        with (
            patch.object(backend, "_forward_metadata"),
            patch.object(hybrid.Mamba2Metadata, "prepare_mixed"),
        ):
            backend.init_forward_metadata(None)
        self.assertFalse(backend.prefill_graph_extend_active())
        self.assertIsNone(backend.prefill_graph_metadata)

    def test_tables_have_chunks_of_128_tokens_of_each_sequence(self):
        backend = _backend()
        execution = SimpleNamespace(
            mamba=SimpleNamespace(enable_mamba_extra_buffer=True)
        )
        with (
            patch.object(hybrid, "get_exec", lambda: execution),
            patch.object(hybrid, "mamba_cache_chunk_size", lambda: 128, create=True),
            patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor),
        ):
            meta = backend.init_prefill_graph_metadata(_batch([512], [0]))
            self.assertTrue(backend.prefill_graph_extend_active())
            self.assertEqual(tuple(meta.chunk_indices.shape), (4 + 64, 2))
            batch = _batch([200, 5, 128], [0, 7, 128], track=[200, 0, 128])
            backend.refresh_prefill_graph_metadata(meta, batch)
        chunks = [[0, 0], [0, 1], [1, 0], [2, 0]]
        self.assertEqual(meta.chunk_indices[:4].tolist(), chunks)
        self.assertEqual(meta.chunk_offsets[:4].tolist(), [0, 2, 3, 4])
        self.assertEqual(
            meta.has_initial_state[:4].tolist(), [False, True, True, False]
        )
        # The state before the second chunk, none, and the last one.
        self.assertEqual(meta.track_mode[:4].tolist(), [2, 0, 1, 0])
        self.assertEqual(meta.track_chunk_idx[:1].tolist(), [1])
        self.assertEqual(meta.track_dst[[0, 2]].tolist(), [20, 22])
        self.assertEqual(meta.track_conv_start[[0, 2]].tolist(), [125, 330])

    def test_only_measured_sizes_are_captured(self):
        memory = SimpleNamespace(
            enable_hierarchical_cache=False, enable_unified_cache_external_linker=False
        )
        with (
            patch.object(hybrid, "is_sm90_supported", return_value=True),
            patch.object(hybrid, "get_memory", lambda: memory),
            patch.object(hybrid, "is_dp_attention_enabled", return_value=False) as dp,
        ):
            for sizes in (
                dict(),
                dict(nheads=16, ngroups=1),
                dict(nheads=64, headdim=64),
            ):
                self.assertTrue(_backend(**sizes).supports_prefill_graph_extend())
            for sizes in (dict(dstate=256), dict(chunk=256), dict(ngroups=48)):
                self.assertFalse(_backend(**sizes).supports_prefill_graph_extend())
            in_fp32 = _backend()
            in_fp32._model_runner.dtype = torch.float32
            self.assertFalse(in_fp32.supports_prefill_graph_extend())
            for loads in vars(memory).copy():
                setattr(memory, loads, True)
                self.assertFalse(_backend().supports_prefill_graph_extend())
                setattr(memory, loads, False)
            dp.return_value = True
            self.assertFalse(_backend().supports_prefill_graph_extend())
            dp.return_value = False
            with hybrid.envs.SGLANG_DISABLE_MAMBA2_PREFILL_GRAPH_EXTEND.override(True):
                self.assertFalse(_backend().supports_prefill_graph_extend())


if __name__ == "__main__":
    unittest.main()
