"""NemotronH under data-parallel attention: its Mamba2 mixers break the graph there too. The
release's own layers, on the CPU."""

import contextlib

import pytest
import torch
from host import late, segments
from host.graph import prefill_batch

with late.modules():
    from sglang.srt.model_executor.runner_backend_utils import tc_piecewise_cuda_graph
    from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import context
    from sglang.srt.models import nemotron_h

pytestmark = pytest.mark.revision(">=0.5.14,<0.5.24")
OPS = {
    "breakable": "breakable_nemotron_mamba2_with_output",
    "tc_piecewise": "nemotron_mamba2_with_output",
}


@pytest.fixture
def model(build_model, monkeypatch):
    """A NemotronH whose server spreads attention over ranks. There is one: nothing is sent."""
    made = build_model("nemotron_h", device="cpu", pattern="M-M*M-")
    monkeypatch.setattr(nemotron_h, "is_dp_attention_enabled", lambda: True)
    for layer in made.model.layers:
        layer.prev_layer_is_attn = False  # else its input is summed over the ranks first
    return made


def inside(graph):
    """The release's own context around a forward that is captured in `graph`."""
    if graph == "breakable":
        return context.enable_breakable_cuda_graph()
    if graph == "tc_piecewise":
        return tc_piecewise_cuda_graph.enable_tc_piecewise_cuda_graph()
    return contextlib.nullcontext()


def test_mixers_break_the_graph(model, monkeypatch):
    """They were captured: a replay went on with the dummy batch's slots, in others' memory."""
    wanted = [(what, segments.BREAK) for what in ("mixer", "mixer", "attention", "mixer")]
    assert segments.of(model, monkeypatch) == (wanted, wanted)


@pytest.mark.revision("<0.5.21")
@pytest.mark.parametrize("graph", [None, *OPS])
def test_each_graph_has_its_op_and_eager_prefill_none(model, monkeypatch, graph):
    def note(name):
        def run(hidden_states, output=None, layer_id=None, *_):
            called.append(name)
            return torch.ones_like(hidden_states) if layer_id is None else output.fill_(1.0)

        return run

    called = []
    layer = model.model.layers[2]
    for name in OPS.values():
        monkeypatch.setattr(nemotron_h, name, note(name))
    monkeypatch.setattr(
        layer, "_forward_mamba", lambda hidden_states, *_: note("eager")(hidden_states)
    )
    batch, rows = prefill_batch(4), torch.randn(4, 128, dtype=torch.bfloat16)
    batch.num_token_non_padded_cpu = batch.global_num_token_non_padded_cpu = 4
    with inside(graph), torch.no_grad():
        output, _ = layer(hidden_states=rows, residual=rows.clone(), forward_batch=batch)
    assert called == [OPS.get(graph, "eager")] and bool(output.eq(1.0).all())
