"""What a layer of Falcon-H1 and of Granite 4 adds up, by the release's own layers on the CPU."""

import importlib

import pytest
import torch
from host import models

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.22")
RANKS = 2


@pytest.mark.parametrize("part", ["o_proj", "mamba.out_proj"])
def test_a_rank_of_falcon_h1_adds_shares(build_model, monkeypatch, part):
    """The mixer's was a sum over the ranks, which were summed once more with attention."""
    layer = build_model("falcon_h1", device="cpu", dtype=torch.float32).model.layers[0]
    linear = importlib.import_module("sglang.srt.layers.linear")
    summed = "tensor_model_parallel_all_reduce"
    monkeypatch.setattr(linear, summed, lambda share: share * RANKS)  # all ranks have the same
    projection = layer.get_submodule(part)
    monkeypatch.setattr(projection, "tp_size", RANKS)
    rows = torch.randn(3, projection.weight.shape[1])
    torch.testing.assert_close(projection(rows)[0], rows @ projection.weight.T)


def test_the_last_norm_of_granite_4_reads_the_last_layer_alone():
    """It read the layer's residual too, which the layer had added."""
    config = importlib.import_module("sglang.srt.configs.granitemoehybrid").GraniteMoeHybridConfig(
        **dict(vocab_size=256, hidden_size=128, num_hidden_layers=1, layer_types=["attention"]),
        **dict(shared_intermediate_size=256, num_local_experts=0, position_embedding_type="nope"),
        **dict(num_attention_heads=4, num_key_value_heads=2, mamba_n_heads=16, mamba_d_head=16),
    )
    module = importlib.import_module("sglang.srt.models.granitemoehybrid")
    made = models.construct(module.GraniteMoeHybridForCausalLM, config, "cpu", torch.float32).model
    models._draw_weights(made, 0.1, seed=0)
    made.layers[0].self_attn.forward = lambda hidden_states, **_: hidden_states / 2
    tokens, positions = torch.tensor([3, 1, 4]), torch.arange(3)
    rows, _ = made.layers[0](positions, made.embed_tokens(tokens) * made.embedding_multiplier, None)
    torch.testing.assert_close(made(tokens, positions, None), made.norm(rows))
