"""The table of decoder layers, against the models themselves; and which layers count as keeping no
state: those of which every part is known to keep none."""

from types import SimpleNamespace

import pytest
import torch
from host import graph, late, models
from packaging.version import Version

with late.modules():
    from sglang.srt.prefill_graph.model import layers, stack

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.14")
TABLE = pytest.mark.revision("<0.5.10")
STATELESS = pytest.mark.revision(">=0.5.9")
DENSE, MOE = "M-M*M-", "ME*E"
WITH_EXPERTS = pytest.mark.revision(">=0.5.6")  # of NemotronH


def table_of(build_model, kind, **changes):
    model = build_model(kind, **changes)
    return model, layers.describe(stack.find(model).layers)


# of a layer: its kind, and below it its split object, its experts and the block that has these
PARTS = {
    "M": ("MAMBA2", "", None, None),
    "-": ("MLP", None, None, None),
    "*": ("ATTENTION", "mixer.attn", None, None),
    "E": ("MOE", None, "mixer.experts", "mixer"),
}
EXPERTS = "mlp.experts", "mlp"
GDN, SPARSE = "linear_attn.attn", ("ATTENTION", "self_attn.attn_mqa")
MODELS = {
    "dense NemotronH": ("nemotron_h_moe", dict(pattern=DENSE), [PARTS[part] for part in DENSE]),
    "NemotronH with experts": ("nemotron_h_moe", dict(pattern=MOE), [PARTS[part] for part in MOE]),
    "Qwen3-Next": (
        "qwen3_next",
        dict(num_hidden_layers=4),
        [("GDN", GDN, *EXPERTS)] * 3 + [("ATTENTION", "attn", *EXPERTS)],
    ),
    "Llama": ("llama", {}, [("ATTENTION", "self_attn.attn", None, None)] * 4),
    "DeepSeek with sparse attention": (
        "deepseek_v32",
        {},
        [(*SPARSE, None, None), *[(*SPARSE, *EXPERTS)] * 2],
    ),
}


EACH = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=WITH_EXPERTS if "experts" in name else ()) for name in MODELS]
)


def entries(model, table):
    """Each row as MODELS has it."""
    known = {id(module): name for name, module in model.named_modules()}
    for i, row in enumerate(table):
        parts = row.split_object, row.experts, row.block
        names = (None if part is None else known[id(part)] for part in parts)
        layer = f"model.layers.{i}"
        yield row.kind.name, *(name and name.removeprefix(layer).lstrip(".") for name in names)


@TABLE
@EACH
def test_each_layer_is_known(name, build_model):
    kind, changes, expected = MODELS[name]
    model, table = table_of(build_model, kind, **changes)
    if name == "Qwen3-Next" and not hasattr(model.model.layers[0].linear_attn, "attn"):
        expected = [(row[0], row[1].replace(GDN, "linear_attn"), *row[2:]) for row in expected]
    assert [*entries(model, table)] == expected


@TABLE
@EACH
def test_the_runner_captures_with_the_tables_lists(name, build_model, decided, revision):
    kind, changes, _ = MODELS[name]
    model, table = table_of(build_model, kind, **changes)
    runner, warnings = decided(model)
    if name == "Qwen3-Next" and revision < Version("0.5.6"):  # the release has no split op
        # the traced forward would keep the state slots of one batch
        assert runner.piecewise_cuda_graph_runner is None and "no split op" in warnings[-1]
        return
    lists = graph.lists_of(table)
    assert runner.piecewise_cuda_graph_runner.attention_layers == lists["attention_layers"]
    for name, expected in lists.items():
        assert getattr(runner, name, expected) == expected
    assert not warnings


DAMAGED = {  # a model, what becomes of its layers, and how the first one is named that is refused
    "another mixer": (
        "nemotron_h",
        lambda layers: [setattr(one, "mixer", torch.nn.Linear(4, 4)) for one in layers[4:6]],
        "layer 4 (NemotronHMambaDecoderLayer): its mixer (Linear)",
    ),
    # an MLP by its attributes, but with a Mamba2 mixer inside that no split op would run
    "a state inside": (
        "nemotron_h",
        lambda layers: setattr(layers[1].mixer, "helper", layers[0].mixer),
        "layer 1 (NemotronHMLPDecoderLayer): its mixer",
    ),
    "another place": (
        "nemotron_h",
        lambda layers: setattr(layers[2], "layer_id", 4),
        "layer 2 (NemotronHMambaDecoderLayer) calls itself layer 4",
    ),
    "no attention": (
        "llama",
        lambda layers: delattr(layers[2], "self_attn"),
        "layer 2 (LlamaDecoderLayer): is an MLP",
    ),
    "Mamba2 alone": (
        "nemotron_h",
        lambda layers: layers.__delitem__(slice(3, None)),
        "no attention layer among 3; first is layer 0 (NemotronHMamba",
    ),
}


@TABLE
@pytest.mark.parametrize("kind, damage, named", DAMAGED.values(), ids=DAMAGED)
def test_a_layer_that_cannot_be_captured_keeps_the_graph_off_and_is_named(
    damage, kind, named, build_model, decided
):
    """The first rank alone says so."""
    model = build_model(kind)
    damage(model.model.layers)
    for rank, count in ((0, 1), (1, 0)):
        layers = len(model.model.layers)
        runner, warnings = decided(model, tp_rank=rank, num_hidden_layers=layers)
        assert runner.piecewise_cuda_graph_runner is None
        assert len(warnings) == count and all(named in warning for warning in warnings)


# --- layers without state


def kinds(model):
    return [(row.kind.name, row.reason) for row in layers.describe(stack.find(model).layers)]


@STATELESS
def test_short_convolutions_are_no_mlp():
    """LFM2-MoE: their state lies in the Mamba pool; a graph would go on with one batch's slots."""
    model = models.family("lfm2_moe.Lfm2MoeForCausalLM")
    why = "holds conv (Lfm2MoeShortConv), of which nobody knows whether it keeps state"
    found = kinds(model)
    assert [kind for kind, _ in found] == ["UNKNOWN", "UNKNOWN", "ATTENTION"]
    assert layers.outside_breaks(stack.find(model).layers).startswith("layer 0 ")
    assert found[1][1] == why


@STATELESS
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


@STATELESS
@pytest.mark.parametrize(
    "changes", [{}, {"moe_latent_size": 64}], ids=["experts", "latent experts"]
)
def test_nemotron_h_keeps_its_layers_without_state(build_model, changes):
    model = build_model("nemotron_h_moe", pattern="ME*E", **changes)
    assert [kind for kind, _ in kinds(model)] == ["MAMBA2", "MOE", "ATTENTION", "MOE"]


@STATELESS
def test_an_mlp_beside_norms_keeps_no_state(build_model):
    layer = build_model("llama").model.layers[2]
    del layer.self_attn
    assert kinds(SimpleNamespace(layers=[layer])) == [("MLP", "is an MLP and keeps no state")]
