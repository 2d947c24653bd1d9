"""CPU tests of Falcon-H1's layer in the breakable prefill CUDA graph."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.srt.layers.attention.hybrid_linear_attn_backend import (
    HybridLinearAttnBackend,
    Mamba2AttnBackend,
)
from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import (
    BreakableCUDAGraph,
    breakable_cuda_graph,
    enable_breakable_cuda_graph,
)
from sglang.srt.model_executor.runner_utils.forward_batch import set_forward_batch
from sglang.srt.model_executor.runner_utils.prefill_graph import prefill_graph_scope
from sglang.srt.models import falcon_h1
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=12, suite="base-a-test-cpu")

ROWS, HIDDEN = 8, 4


class _Boundary:
    def prepare(self, hidden_states, forward_batch):
        return hidden_states

    finish = prepare


def _batch(tokens, extends=True):
    mode = SimpleNamespace(
        is_idle=lambda: False,
        is_target_verify=lambda: False,
        is_extend=lambda: extends,
    )
    return SimpleNamespace(forward_mode=mode, global_num_token_non_padded_cpu=tokens)


class TestFalconH1PrefillGraph(CustomTestCase):
    def setUp(self):
        self.seen = []
        backend = object.__new__(HybridLinearAttnBackend)
        backend.linear_attn_backend = object.__new__(Mamba2AttnBackend)
        backend.linear_attn_backend.forward = self._mixer
        patcher = patch.object(falcon_h1, "get_attn_backend", lambda: backend)
        patcher.start()
        self.addCleanup(patcher.stop)

        layer = object.__new__(falcon_h1.FalconH1HybridAttentionDecoderLayer)
        torch.nn.Module.__init__(layer)
        layer.attn_boundary = layer.ffn_boundary = _Boundary()
        layer.self_attention = lambda positions, hidden_states, forward_batch: 0
        layer.feed_forward = lambda hidden_states, forward_batch: hidden_states
        layer.mamba = layer.mup_vector = None
        layer.layer_id = 0
        layer.attention_in_multiplier = layer.attn_out_multiplier = 1
        layer.ssm_in_multiplier, layer.ssm_out_multiplier = 2, 1
        self.layer = layer

    def _mixer(self, mixer, hidden_states, output, *, forward_batch, **kwargs):
        self.seen.append((forward_batch, len(hidden_states)))
        output.copy_(hidden_states)

    def _captured(self, hidden_states, batch):
        """The layer's forward in a capture that records no kernels."""
        graph = BreakableCUDAGraph()
        capture = SimpleNamespace(
            cuda_graph=graph,
            _barrier_fn=None,
            _end_current_segment=lambda: None,
            _begin_new_segment=lambda: None,
        )
        token = breakable_cuda_graph._current_capture_var.set(capture)
        try:
            with (
                enable_breakable_cuda_graph(),
                prefill_graph_scope(full_graph=False),
                set_forward_batch(batch),
            ):
                return graph, self.layer(None, hidden_states, batch)
        finally:
            breakable_cuda_graph._current_capture_var.reset(token)

    def test_mixer_runs_on_the_batch_of_the_replay(self):
        captured, served = _batch(ROWS), _batch(3)
        graph, _ = self._captured(torch.ones(ROWS, HIDDEN), captured)
        self.assertEqual(len(graph._break_fns), 1)
        with set_forward_batch(served):
            graph._break_fns[0]()
        self.assertEqual(self.seen, [(captured, ROWS), (served, 3)])

    def test_decode_graph_calls_mixer_as_before(self):
        batch = _batch(ROWS, extends=False)
        with enable_breakable_cuda_graph():
            self.layer(None, torch.ones(ROWS, HIDDEN), batch)
        self.assertEqual(self.seen, [(batch, ROWS)])

    def test_padded_rows_of_the_mixer_are_zero(self):
        _, output = self._captured(torch.ones(ROWS, HIDDEN), _batch(3))
        self.assertEqual(output[:, 0].tolist(), [2, 2, 2, 0, 0, 0, 0, 0])


if __name__ == "__main__":
    unittest.main()
