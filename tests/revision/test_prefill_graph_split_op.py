"""Making a split op: its registration in whatever way the release has, its promises, its errors."""

import importlib
import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from host import graph, late

with late.modules():
    from sglang.srt.prefill_graph.compat import features
    from sglang.srt.prefill_graph.piecewise import split_op

pytestmark = [
    pytest.mark.revision(">=0.5.5,<0.5.13"),
    pytest.mark.patch("nemotron-h/split-mamba2", "breakable/capture-layer-stack"),
]
NUMBERS = itertools.count()


def add_one(layer, hidden_states, output, forward_batch):
    output.copy_(hidden_states + layer.step)


@pytest.fixture
def op():
    """A new op that adds its layer's step, for the forward batch's `tokens`."""
    name = f"prefill_graph_test_{next(NUMBERS)}"
    return SimpleNamespace(
        name=name, call=split_op.split_op(name, tokens=lambda batch: batch.tokens)(add_one)
    )


def run(op, rows, tokens, layers, layer_id=1, output=None):
    hidden_states = torch.arange(rows * 4, dtype=torch.float32).view(rows, 4)
    hidden_states[tokens:] = math.nan
    output = torch.full_like(hidden_states, math.nan) if output is None else output
    with graph.forward_context(SimpleNamespace(tokens=tokens), layers):
        op.call(hidden_states, output, layer_id)
    return hidden_states, output


LAYERS = [None, SimpleNamespace(step=1), SimpleNamespace(step=2)]


@pytest.mark.parametrize(
    "rows, tokens", [(8, 5), (8, 8), (8, 1), (8, 0)], ids=["padded", "full", "one", "none"]
)
def test_real_rows_are_the_layers_and_the_rest_is_zero(op, rows, tokens):
    for layer_id, step in ((1, 1), (2, 2)):
        hidden_states, output = run(op, rows, tokens, LAYERS, layer_id)
        torch.testing.assert_close(output[:tokens], hidden_states[:tokens] + step)
        assert output[tokens:].eq(0).all()


@pytest.mark.parametrize("layer_id", [0, 3], ids=["an entry of None", "no entry"])
def test_a_layer_that_is_not_listed_is_an_error(op, layer_id):
    with pytest.raises(RuntimeError, match=f"no layer is listed under layer_id {layer_id}"):
        run(op, 8, 5, LAYERS, layer_id)


def test_more_tokens_than_rows_and_another_shape_are_errors(op):
    with pytest.raises(ValueError, match="9 tokens"):
        run(op, 8, 9, LAYERS)
    with pytest.raises(ValueError, match=r"output \(8, 5\)"):
        run(op, 8, 5, LAYERS, output=torch.zeros(8, 5))


def test_outside_of_the_graph_is_an_error(op):
    with pytest.raises(RuntimeError, match="no forward context"):
        op.call(torch.zeros(2, 4), torch.zeros(2, 4), 1)


def test_registering_twice_changes_nothing(op):
    again = split_op.split_op(op.name, tokens=lambda batch: batch.tokens)(add_one)
    assert again is op.call is getattr(torch.ops.sglang, op.name)
    assert graph.split_ops().count(f"sglang.{op.name}") == 1


@pytest.mark.parametrize(
    "name, module, theirs",
    [
        pytest.param(
            "nemotron_mamba2_with_output",
            "mamba2",
            "nemotron_h",
            marks=pytest.mark.revision("<0.5.10"),
        ),
        pytest.param("gdn_with_output", "gdn", "qwen3_next", marks=pytest.mark.revision("<0.5.6")),
    ],
)
def test_an_op_is_ours_where_the_release_has_none(name, module, theirs):
    """Also behind the release's own module of that model, which would define it if it had one."""
    importlib.import_module(f"sglang.srt.models.{theirs}")
    assert not features.defines(f"sglang.srt.models.{theirs}", name)
    ours = importlib.import_module(f"sglang.srt.prefill_graph.piecewise.{module}")
    assert getattr(ours, name) is getattr(torch.ops.sglang, name)
