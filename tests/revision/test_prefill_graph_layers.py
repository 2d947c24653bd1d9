"""The table of decoder layers, against the models themselves and against what the unpatched release
collects."""

import json
import logging
from types import SimpleNamespace

import pytest
import torch
from host import late, logged, runner
from host.runner import names

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


def entries(model, table):
    """Each row as (kind, where its split object is, where its experts are)."""
    found = zip(names(model, table.attention_layers), names(model, table.moe_layers), strict=True)
    return [(row.kind.name, *where) for row, where in zip(table.rows, found, strict=True)]


def test_dense_nemotron_h(table_of):
    assert entries(*table_of("nemotron_h_moe", **nemotron(DENSE))) == [
        ("MAMBA2", "model.layers.0", None),
        ("MLP", None, None),
        ("MAMBA2", "model.layers.2", None),
        ("ATTENTION", "model.layers.3.mixer.attn", None),
        ("MAMBA2", "model.layers.4", None),
        ("MLP", None, None),
    ]


@WITH_EXPERTS
def test_nemotron_h_with_experts(table_of):
    model, table = table_of("nemotron_h_moe", **nemotron(MOE))
    assert entries(model, table) == [
        ("MAMBA2", "model.layers.0", None),
        ("MOE", None, "model.layers.1.mixer.experts"),
        ("ATTENTION", "model.layers.2.mixer.attn", None),
        ("MOE", None, "model.layers.3.mixer.experts"),
    ]
    assert [row.block for row in table.rows] == [
        None,
        model.model.layers[1].mixer,
        None,
        model.model.layers[3].mixer,
    ]


def test_qwen3_next(table_of):
    _, table = table_of("qwen3_next", num_hidden_layers=4)
    assert [row.kind.name for row in table.rows] == ["GDN"] * 3 + ["ATTENTION"]
    assert all(row.experts is row.block.experts for row in table.rows)


def test_llama(table_of):
    model, table = table_of("llama")
    assert entries(model, table) == [
        ("ATTENTION", f"model.layers.{i}.self_attn.attn", None) for i in range(4)
    ]


def test_deepseek_with_sparse_attention(table_of):
    model, table = table_of("deepseek_v32")
    assert [row.kind.name for row in table.rows] == ["INDEXER"] * 3
    assert [row.split_object for row in table.rows] == [
        layer.self_attn.attn_mqa for layer in model.model.layers
    ]
    assert [row.indexer for row in table.rows] == [
        layer.self_attn.indexer for layer in model.model.layers
    ]
    assert [row.experts is not None for row in table.rows] == [False, True, True]


KINDS_WITHOUT_MIXER = ("qwen3_next", "llama", "deepseek_v32")


@pytest.fixture(scope="module")
def unpatched(run_pristine):
    """What the unpatched release's own loop collects, by kind of model, and its verdict on
    NemotronH."""
    code = f"""
import json
from host import models, runner
collected = {{kind: runner.collected(kind) for kind in {KINDS_WITHOUT_MIXER}}}
decided = runner.decide(models.build("nemotron_h"))
collected["nemotron_h"] = [str(decided.piecewise_cuda_graph_runner), decided.attention_layers]
print("COLLECTED", json.dumps(collected))
"""
    [line] = [line for line in run_pristine(code).splitlines() if line.startswith("COLLECTED ")]
    return json.loads(line.partition(" ")[2])


GDN_KNOWN = pytest.mark.revision(">=0.5.6")  # by the release itself


@pytest.mark.parametrize(
    "kind", [pytest.param("qwen3_next", marks=GDN_KNOWN), "llama", "deepseek_v32"]
)
def test_models_without_a_mixer_get_what_the_unpatched_release_makes(kind, table_of, unpatched):
    """The runner's lists after the patched decision, and the table itself, against the unpatched
    release's loop."""
    model, table = table_of(kind)
    decided = runner.decide(model)
    assert runner.lists(decided) == unpatched[kind]
    assert decided.piecewise_cuda_graph_runner.attention_layers == table.attention_layers
    assert {
        name: runner.names(model, getattr(table, name)) for name in unpatched[kind]
    } == unpatched[kind]


@pytest.mark.revision("<0.5.6")
def test_qwen3_next_stays_eager_where_the_release_has_no_split_op(table_of, unpatched, caplog):
    """The traced forward would keep the state slots of one batch."""
    model, _ = table_of("qwen3_next", num_hidden_layers=4)
    assert unpatched["qwen3_next"] == {"attention_layers": []}
    with caplog.at_level(logging.WARNING):
        decided = runner.decide(model)
    assert decided.piecewise_cuda_graph_runner is None
    assert "no split op" in caplog.text


def test_the_unpatched_release_leaves_nemotron_h_eager(unpatched):
    assert unpatched["nemotron_h"] == ["None", []]


@pytest.mark.parametrize("pattern", [DENSE, pytest.param(MOE, marks=WITH_EXPERTS)])
def test_nemotron_h_is_captured_with_the_tables_lists(pattern, table_of, caplog):
    model, table = table_of("nemotron_h_moe", **nemotron(pattern))
    with caplog.at_level(logging.WARNING):
        decided = runner.decide(model)
    assert decided.piecewise_cuda_graph_runner.attention_layers == table.attention_layers
    for name in ("moe_layers", "moe_fusions"):
        if hasattr(decided, name):
            assert getattr(decided, name) == getattr(table, name)
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


def test_a_stack_is_found_or_what_was_probed_is_said():
    decoder = SimpleNamespace(layers=["a", "b"])
    assert stack.find(SimpleNamespace(model=decoder)) == stack.Stack(decoder, "model")
    assert (
        stack.find(SimpleNamespace(model=None, language_model=SimpleNamespace(model=decoder))).path
        == "language_model.model"
    )
    assert stack.find(SimpleNamespace(get_layer_stack=lambda: decoder)).layers == ("a", "b")
    endless = SimpleNamespace()
    endless.model = SimpleNamespace(model=endless, layers=[])
    with pytest.raises(
        stack.NoStack,
        match=r"no decoder layers in the model \(SimpleNamespace\), model \(SimpleNamespace\)",
    ):
        stack.find(endless)
    with pytest.raises(stack.NoStack, match="get_layer_stack"):
        stack.find(SimpleNamespace(get_layer_stack=lambda: None, model=decoder))
