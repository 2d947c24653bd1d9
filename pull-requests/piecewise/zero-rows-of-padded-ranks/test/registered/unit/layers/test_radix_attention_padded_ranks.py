"""What attention leaves in rows that DP attention padded a rank's batch with. No GPU."""

import unittest
from types import SimpleNamespace
from unittest import mock

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.layers import radix_attention
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.model_executor.runner_utils.prefill_graph import prefill_graph_scope

register_cpu_ci(est_time=12, suite="base-a-test-cpu")

HEADS, DIM, ROWS = 2, 4, 8


class TestPaddedRanks(CustomTestCase):
    def _output(self, tokens, handed):
        """Attention that doubles its queries, for `tokens` tokens in a batch padded to `handed` before the graph's ROWS."""
        batch = object.__new__(ForwardBatch)
        vars(batch).update(
            {name: None for name in ForwardBatch.__dataclass_fields__},
            forward_mode=ForwardMode.EXTEND,
            batch_size=1,
            mha_return_lse=False,
            out_cache_loc=torch.arange(ROWS),
            positions=torch.arange(ROWS),
            num_token_non_padded_cpu=tokens,
            global_num_token_non_padded_cpu=tokens,
        )
        backend = SimpleNamespace(forward=lambda q, *args, **kwargs: q * 2)
        query = torch.ones(ROWS, HEADS * DIM)
        keys = torch.zeros(ROWS, HEADS, DIM)
        output = torch.full((ROWS, HEADS * DIM), float("nan"))
        layer = radix_attention.RadixAttention(
            HEADS, DIM, 1.0, num_kv_heads=HEADS, layer_id=0
        )
        with (
            mock.patch.object(radix_attention, "get_attn_backend", lambda: backend),
            mock.patch.object(radix_attention, "get_forward_batch", lambda: batch),
            prefill_graph_scope(full_graph=False, raw_num_tokens=handed),
        ):
            layer._eager_attention(query, keys, keys, output)
        return output

    def test_every_row_behind_the_ranks_own_tokens_is_zero(self):
        for tokens, handed in ((3, 6), (5, 5), (1, ROWS)):
            with self.subTest(tokens=tokens, handed=handed):
                output = self._output(tokens, handed)
                self.assertTrue(output[:tokens].eq(2).all())
                self.assertTrue(output[tokens:].eq(0).all())


if __name__ == "__main__":
    unittest.main()
