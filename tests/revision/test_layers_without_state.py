"""Which decoder layers count as keeping no state: those of which every part is known to keep
none."""

from types import SimpleNamespace

import pytest
import torch
from host import late, models

with late.modules():
    from sglang.srt.prefill_graph.model import layers, stack

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.14")


def kinds(model):
    return [(row.kind.name, row.reason) for row in layers.describe(stack.find(model).layers)]


def test_short_convolutions_are_no_mlp():
    """LFM2-MoE: their state lies in the Mamba pool; a graph would go on with the slots of one
    batch."""
    model = models.family("lfm2_moe.Lfm2MoeForCausalLM")
    why = "holds conv (Lfm2MoeShortConv), of which nobody knows whether it keeps state"
    found = kinds(model)
    assert [kind for kind, _ in found] == ["UNKNOWN", "UNKNOWN", "ATTENTION"]
    assert layers.outside_breaks(stack.find(model).layers).startswith("layer 0 ")
    assert found[1][1] == why


@pytest.mark.parametrize("place", ["layer", "mixer"])
@pytest.mark.parametrize("pattern", ["M-M*M-", "ME*E"])
def test_a_part_that_nobody_knows_makes_a_layer_unknown(build_model, pattern, place):
    model = build_model("nemotron_h_moe", pattern=pattern)
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
    model = build_model("nemotron_h_moe", pattern="ME*E", **changes)
    assert [kind for kind, _ in kinds(model)] == ["MAMBA2", "MOE", "ATTENTION", "MOE"]


def test_an_mlp_beside_norms_keeps_no_state(build_model):
    layer = build_model("llama").model.layers[2]
    del layer.self_attn
    assert kinds(SimpleNamespace(layers=[layer])) == [("MLP", "is an MLP and keeps no state")]
