"""The op that runs a MoE layer in the piecewise graph keeps its input and its result apart."""

from types import SimpleNamespace

import pytest
import torch
from host.bodies import load_undecorated

pytestmark = pytest.mark.revision(">=0.5.7,<0.5.22")


class InPlace:
    """Experts that write into their input, as the triton runner does with inplace=True."""

    def forward_impl(self, hidden_states, topk_output):
        return hidden_states.mul_(2)


def test_the_input_stays_and_the_result_is_another_tensor(monkeypatch):
    """With inductor Qwen3-Next read the input after it was overwritten, and answered otherwise."""
    layer = load_undecorated("sglang.srt.layers.moe.fused_moe_triton.layer", monkeypatch)
    context = SimpleNamespace(moe_layers=[InPlace()])
    getter = next(
        name
        for name in ("get_forward_context", "get_tc_piecewise_forward_context")
        if hasattr(layer, name)
    )
    monkeypatch.setattr(layer, getter, lambda: context)
    hidden_states = torch.ones(4, 8)
    weights, ids, logits = torch.ones(4, 1), torch.zeros(4, 1, dtype=torch.int32), torch.ones(4, 2)
    result = layer.moe_forward_piecewise_cuda_graph_impl(hidden_states, weights, ids, logits, 0)
    torch.testing.assert_close(result, torch.full((4, 8), 2.0))
    torch.testing.assert_close(hidden_states, torch.ones(4, 8))
    assert result.untyped_storage().data_ptr() != hidden_states.untyped_storage().data_ptr()
