"""NemotronH under data-parallel attention: its Mamba2 mixers break the graph there too. The
release's own layers, on the CPU."""

import contextlib
import importlib

import pytest
import torch
from host import segments
from host.graph import prefill_batch

pytestmark = pytest.mark.revision(">=0.5.14,<0.5.24")
GRAPHS = "sglang.srt.model_executor.runner_backend_utils"
OPS = {
    "breakable": "breakable_nemotron_mamba2_with_output",
    "tc_piecewise": "nemotron_mamba2_with_output",
}


@pytest.fixture
def model(build_model, monkeypatch):
    """A NemotronH of a server that spreads attention over ranks by requests. There is one rank, so
    that nothing is sent."""
    made = build_model("nemotron_h", device="cpu", hybrid_override_pattern="M-M*M-")
    monkeypatch.setattr(
        importlib.import_module("sglang.srt.models.nemotron_h"),
        "is_dp_attention_enabled",
        lambda: True,
    )
    for layer in made.model.layers:
        layer.prev_layer_is_attn = False  # else its input is summed over the ranks first
    return made


def inside(graph):
    """The release's own context around a forward that is captured in `graph`."""
    if graph == "breakable":
        return importlib.import_module(
            f"{GRAPHS}.breakable_cuda_graph.context"
        ).enable_breakable_cuda_graph()
    if graph == "tc_piecewise":
        return importlib.import_module(
            f"{GRAPHS}.tc_piecewise_cuda_graph"
        ).enable_tc_piecewise_cuda_graph()
    return contextlib.nullcontext()


def test_mixers_break_the_graph(model, monkeypatch):
    """They were captured: a replay went on with the state slots of the dummy batch, and read memory
    that was not theirs."""
    at_capture, at_replay = segments.of(model, monkeypatch)
    assert (
        at_capture
        == at_replay
        == [(what, segments.BREAK) for what in ("mixer", "mixer", "attention", "mixer")]
    )


@pytest.mark.revision("<0.5.21")
@pytest.mark.parametrize("graph", [None, *OPS])
def test_each_graph_has_its_op_and_eager_prefill_none(model, monkeypatch, graph):
    def note(name):
        def run(hidden_states, output=None, layer_id=None, *_):
            called.append(name)
            return torch.ones_like(hidden_states) if layer_id is None else output.fill_(1.0)

        return run

    called = []
    module = importlib.import_module("sglang.srt.models.nemotron_h")
    layer = model.model.layers[2]
    for name in OPS.values():
        monkeypatch.setattr(module, name, note(name))
    monkeypatch.setattr(
        layer, "_forward_mamba", lambda hidden_states, *_: note("eager")(hidden_states)
    )
    batch, rows = prefill_batch(4), torch.randn(4, 128, dtype=torch.bfloat16)
    batch.num_token_non_padded_cpu = batch.global_num_token_non_padded_cpu = 4
    with inside(graph), torch.no_grad():
        output, _ = layer(hidden_states=rows, residual=rows.clone(), forward_batch=batch)
    assert called == [OPS.get(graph, "eager")] and bool(output.eq(1.0).all())
