"""Which decoder layers count as keeping no state: those of which every part is known to keep
none."""

import importlib
from types import SimpleNamespace

import pytest
import torch
from host import late, models

with late.modules():
    from sglang.srt.prefill_graph.model import layers, stack

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.14")
MOE = dict(
    hybrid_override_pattern="ME*E",
    num_hidden_layers=4,
    n_routed_experts=4,
    n_shared_experts=1,
    moe_intermediate_size=64,
    moe_shared_expert_intermediate_size=64,
    num_experts_per_tok=2,
    n_group=1,
    topk_group=1,
    norm_topk_prob=True,
    routed_scaling_factor=1.0,
)
LFM2_MOE = dict(
    hidden_size=128,
    intermediate_size=256,
    moe_intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=256,
    max_position_embeddings=512,
    num_dense_layers=1,
    num_experts=4,
    num_experts_per_tok=2,
    layer_types=["conv", "conv", "full_attention"],
    rope_parameters={"rope_theta": 1e6, "rope_type": "default"},
)


def kinds(model):
    return [(row.kind.name, row.reason) for row in layers.describe(stack.find(model).layers).rows]


def test_short_convolutions_are_no_mlp():
    """LFM2-MoE: their state lies in the Mamba pool; a graph would go on with the slots of one
    batch."""
    config = importlib.import_module("sglang.srt.configs.lfm2_moe").Lfm2MoeConfig(**LFM2_MOE)
    model = models.construct(
        importlib.import_module("sglang.srt.models.lfm2_moe").Lfm2MoeForCausalLM, config
    )
    why = "holds conv (Lfm2MoeShortConv), of which nobody knows whether it keeps state"
    found = kinds(model)
    assert [kind for kind, _ in found] == ["UNKNOWN", "UNKNOWN", "ATTENTION"]
    assert layers.outside_breaks(stack.find(model).layers).index == 0
    assert found[1][1] == why


@pytest.mark.parametrize("place", ["layer", "mixer"])
@pytest.mark.parametrize("pattern", ["M-M*M-", "ME*E"])
def test_a_part_that_nobody_knows_makes_a_layer_unknown(build_model, pattern, place):
    model = build_model(
        "nemotron_h", **MOE | dict(hybrid_override_pattern=pattern, num_hidden_layers=len(pattern))
    )
    before = kinds(model)
    assert before[1][0] in ("MLP", "MOE")
    layer = model.model.layers[1]
    {"layer": layer, "mixer": layer.mixer}[place].memory = torch.nn.Conv1d(4, 4, 3)
    kind, reason = kinds(model)[1]
    assert kind == "UNKNOWN" and "holds memory (Conv1d), of which nobody knows" in reason
    assert [row for i, row in enumerate(kinds(model)) if i != 1] == [
        row for i, row in enumerate(before) if i != 1
    ]


@pytest.mark.parametrize(
    "changes", [{}, {"moe_latent_size": 64}], ids=["experts", "latent experts"]
)
def test_nemotron_h_keeps_its_layers_without_state(build_model, changes):
    assert [kind for kind, _ in kinds(build_model("nemotron_h", **MOE, **changes))] == [
        "MAMBA2",
        "MOE",
        "ATTENTION",
        "MOE",
    ]


def test_an_mlp_beside_norms_keeps_no_state(build_model):
    layer = build_model("llama").model.layers[2]
    del layer.self_attn
    assert kinds(SimpleNamespace(layers=[layer])) == [("MLP", "is an MLP and keeps no state")]
