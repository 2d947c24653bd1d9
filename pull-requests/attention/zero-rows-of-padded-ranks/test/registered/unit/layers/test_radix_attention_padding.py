"""CPU unit tests for the rows that ``RadixAttention`` leaves to a prefill graph."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

import sglang.srt.layers.radix_attention as radix_attention_module
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.runner_utils.forward_batch import set_forward_batch
from sglang.srt.model_executor.runner_utils.prefill_graph import prefill_graph_scope
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=11, suite="base-a-test-cpu")


class TestRowsOfPaddedDpRanks(CustomTestCase):
    """A graph of 8 rows replays a batch of 3 tokens that DP attention padded to 6."""

    def _run_eager_attention(self, *, sparse):
        batch = SimpleNamespace(
            global_num_token_non_padded_cpu=3,
            mha_return_lse=False,
            out_cache_loc=torch.arange(8),
            positions=torch.arange(8),
            _attn_output=None,
        )
        output, idx_output = torch.full((2, 8, 6), float("nan"))

        def forward(query, *args, **kwargs):
            return (query * 3, query * 2) if sparse else query * 2

        with (
            patch.object(
                radix_attention_module,
                "get_attn_backend",
                return_value=SimpleNamespace(forward=forward),
            ),
            set_forward_batch(batch),
            prefill_graph_scope(full_graph=False, raw_num_tokens=6),
        ):
            RadixAttention(2, 3, 1.0, num_kv_heads=2, layer_id=0)._eager_attention(
                *torch.ones(3, 8, 6), output, idx_output=idx_output if sparse else None
            )
        return output, idx_output

    def test_rows_behind_the_ranks_own_tokens_are_zero(self):
        output, _ = self._run_eager_attention(sparse=False)
        self.assertEqual(output[:, 0].tolist(), [2, 2, 2, 0, 0, 0, 0, 0])

    def test_index_rows_behind_the_ranks_own_tokens_are_zero(self):
        output, idx_output = self._run_eager_attention(sparse=True)
        self.assertEqual(output[:, 0].tolist(), [2, 2, 2, 0, 0, 0, 0, 0])
        self.assertEqual(idx_output[:, 0].tolist(), [3, 3, 3, 0, 0, 0, 0, 0])


if __name__ == "__main__":
    unittest.main()
