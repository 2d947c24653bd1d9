"""The table of decoder layers, against the models themselves."""

import logging

import pytest
import torch
from host import late, logged, runner
from packaging.version import Version

with late.modules():
    from sglang.srt.prefill_graph.model import layers, stack

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.10")
DENSE, MOE = "M-M*M-", "ME*E"
WITH_EXPERTS = pytest.mark.revision(">=0.5.6")  # of NemotronH


@pytest.fixture
def table_of(build_model):
    def build(kind, **changes):
        model = build_model(kind, **changes)
        return model, layers.describe(stack.find(model).layers)

    return build


def nemotron(pattern):
    return dict(hybrid_override_pattern=pattern, num_hidden_layers=len(pattern))


# of a layer: its kind, and below it its split object, its experts and the block that has these
PARTS = {
    "M": ("MAMBA2", "", None, None),
    "-": ("MLP", None, None, None),
    "*": ("ATTENTION", "mixer.attn", None, None),
    "E": ("MOE", None, "mixer.experts", "mixer"),
}
EXPERTS = "mlp.experts", "mlp"
GDN, INDEXER = "linear_attn.attn", ("INDEXER", "self_attn.attn_mqa")
MODELS = {
    "dense NemotronH": ("nemotron_h_moe", nemotron(DENSE), [PARTS[part] for part in DENSE]),
    "NemotronH with experts": ("nemotron_h_moe", nemotron(MOE), [PARTS[part] for part in MOE]),
    "Qwen3-Next": (
        "qwen3_next",
        dict(num_hidden_layers=4),
        [("GDN", GDN, *EXPERTS)] * 3 + [("ATTENTION", "attn", *EXPERTS)],
    ),
    "Llama": ("llama", {}, [("ATTENTION", "self_attn.attn", None, None)] * 4),
    "DeepSeek with sparse attention": (
        "deepseek_v32",
        {},
        [(*INDEXER, None, None), *[(*INDEXER, *EXPERTS)] * 2],
    ),
}
MARKS = {"NemotronH with experts": WITH_EXPERTS}
EACH = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, ())) for name in MODELS]
)


def entries(model, table):
    """Each row as MODELS has it."""
    known = {id(module): name for name, module in model.named_modules()}
    for i, row in enumerate(table.rows):
        parts = row.split_object, row.experts, row.block
        names = (None if part is None else known[id(part)] for part in parts)
        layer = f"model.layers.{i}"
        yield row.kind.name, *(name and name.removeprefix(layer).lstrip(".") for name in names)


@EACH
def test_each_layer_is_known(name, table_of):
    kind, changes, expected = MODELS[name]
    model, table = table_of(kind, **changes)
    if name == "Qwen3-Next" and not hasattr(model.model.layers[0].linear_attn, "attn"):
        expected = [(row[0], row[1].replace(GDN, "linear_attn"), *row[2:]) for row in expected]
    assert [*entries(model, table)] == expected
    if kind == "deepseek_v32":
        indexers = [layer.self_attn.indexer for layer in model.model.layers]
        assert [row.indexer for row in table.rows] == indexers


@EACH
def test_the_runner_captures_with_the_tables_lists(name, table_of, caplog, revision):
    kind, changes, _ = MODELS[name]
    model, table = table_of(kind, **changes)
    with caplog.at_level(logging.WARNING):
        decided = runner.decide(model)
    if name == "Qwen3-Next" and revision < Version("0.5.6"):  # the release has no split op
        # the traced forward would keep the state slots of one batch
        assert decided.piecewise_cuda_graph_runner is None and "no split op" in caplog.text
        return
    assert decided.piecewise_cuda_graph_runner.attention_layers == table.attention_layers
    for each in ("attention_layers", "moe_layers", "moe_fusions"):
        assert getattr(decided, each, getattr(table, each)) == getattr(table, each)
    assert not caplog.records


def refusals(caplog, model, **changes):
    caplog.clear()
    decided = runner.decide(model, **changes)
    assert decided.piecewise_cuda_graph_runner is None
    return logged.warnings(caplog)


def another_mixer(layers):
    layers[4].mixer, layers[5].mixer = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)


def hidden_state(layers):
    """An MLP by its attributes, but with a Mamba2 mixer inside that no split op would run."""
    layers[1].mixer.helper = layers[0].mixer


def wrong_place(layers):
    layers[2].layer_id = 4


def no_attention(layers):
    del layers[2].self_attn


REFUSED = {
    another_mixer: ("nemotron_h", ["layer 4 (NemotronHMambaDecoderLayer): its mixer (Linear)"]),
    hidden_state: ("nemotron_h", ["layer 1 (NemotronHMLPDecoderLayer)", "MambaMixer2"]),
    wrong_place: (
        "nemotron_h",
        ["layer 2 (NemotronHMambaDecoderLayer) calls itself layer 4"],
    ),
    no_attention: ("llama", ["layer 2 (LlamaDecoderLayer): is an MLP"]),
}


@pytest.mark.parametrize("damage", REFUSED, ids=lambda damage: damage.__name__)
def test_a_layer_that_cannot_be_captured_keeps_the_graph_off_and_is_named(damage, table_of, caplog):
    kind, words = REFUSED[damage]
    model, _ = table_of(kind)
    damage(model.model.layers)
    [message] = refusals(caplog, model)
    assert all(word in message for word in words), message
    assert refusals(caplog, model, tp_rank=1) == []


def test_without_attention_the_graph_stays_off(table_of, caplog):
    model, _ = table_of("nemotron_h_moe", **nemotron("M-M-"))
    [message] = refusals(caplog, model)
    assert "no attention layer among 4" in message
    assert "layer 0 (NemotronHMambaDecoderLayer)" in message
