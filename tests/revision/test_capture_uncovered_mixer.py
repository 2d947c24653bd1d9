"""Layers that hold a Mamba2 mixer: with a break around it they are captured, without one prefill
stays eager."""

from types import SimpleNamespace

import pytest
import torch
from host import beside, late, logged, models, prefill

with late.modules():
    from sglang.srt.prefill_graph.model import layers as model_layers

pytestmark = pytest.mark.revision(">=0.5.14,<0.5.24")
FULL = pytest.mark.revision(">=0.5.16")
PIECEWISE = pytest.mark.revision("<0.5.22")
WITH_MIXER = {"falcon_h1.py", "granitemoehybrid.py", "mamba2.py", "nemotron_h.py"}


@pytest.fixture
def set_up(caplog):
    """set_up(model, …): whether the release's own set-up captures `model`, and what it warned
    of."""

    def run(model, *words, layers, **more):
        caplog.clear()
        found = prefill.capture(model, *words, layers=layers, **more)
        captured = getattr(found, "runner", found) is not None
        return captured, logged.warnings(caplog, loggers=logged.SET_UP)

    return run


@pytest.fixture
def unbroken(build_model):
    return beside.unbroken(build_model("falcon_h1"))


@pytest.mark.parametrize(
    "backend",
    [pytest.param("tc_piecewise", marks=PIECEWISE), pytest.param("full", marks=FULL)],
)
def test_a_mixer_beside_attention_is_refused_by_name(build_model, set_up, backend):
    """Falcon-H1: the set-up saw its attention, and captured its Mamba2 with the state slots of the
    dummy batch. These graphs have no break for it."""
    captured, [text] = set_up(build_model("falcon_h1"), backend, layers=2)
    assert not captured
    assert text.startswith(
        "Disable prefill CUDA graph because decoder layer 0 (FalconH1HybridAttentionDecoderLayer)"
        " runs a Mamba2 mixer outside of every graph break"
    )


def test_a_mixer_without_its_break_is_refused_by_name(unbroken, set_up):
    captured, [text] = set_up(unbroken, layers=2)
    assert not captured
    assert "decoder layer 0 (Unbroken) runs a Mamba2 mixer outside of every graph break" in text


def test_only_the_first_rank_warns(unbroken, set_up):
    assert set_up(unbroken, layers=2, tp_rank=1) == (False, [])


def test_a_mixer_without_attention_is_told_in_the_same_words(set_up):
    """Granite's layers were refused before, at INFO and without a name."""
    captured, [text] = set_up(
        models.family("granitemoehybrid.GraniteMoeHybridForCausalLM"), layers=2
    )
    assert not captured
    assert "decoder layer 1 (GraniteMoeHybridMambaDecoderLayer) runs a Mamba2 mixer" in text


@pytest.mark.parametrize(
    "kind, layers", [("falcon_h1", 2), ("nemotron_h", 6), ("qwen3_next", 8), ("llama", 4)]
)
def test_models_whose_state_breaks_cover_are_captured(build_model, set_up, kind, layers):
    assert set_up(build_model(kind), layers=layers) == (True, [])


def test_state_of_another_kind_is_judged_as_before(set_up, monkeypatch):
    """LFM2: its convolutions are no Mamba2, and its set-up had another word to say."""
    model = models.family("lfm2.Lfm2ForCausalLM")
    first = set_up(model, layers=2)
    monkeypatch.setattr(model_layers, "captures_mixer", lambda *_: False)
    assert first == set_up(model, layers=2) and not first[0]


def test_no_model_has_a_mixer_that_is_not_looked_at_here(tree):
    """Every other model is captured or not as it was: only a layer with a MambaMixer2 is
    refused."""
    found = {
        file.name
        for file in (tree / "python/sglang/srt/models").rglob("*.py")
        if "MambaMixer2(" in file.read_text("utf-8")
    }
    assert {"falcon_h1.py", "granitemoehybrid.py", "nemotron_h.py"} <= found <= WITH_MIXER


def test_layers_of_other_ranks_and_layers_by_name_are_passed_over(build_model, caplog):
    layers = build_model("falcon_h1").model.layers
    holder = SimpleNamespace(layers=torch.nn.ModuleList([torch.nn.Identity(), layers[1]]))
    assert not model_layers.captures_mixer(runner([None, layers[1].attn], "breakable"), holder)
    assert model_layers.captures_mixer(runner([None, layers[1].attn]), holder)
    assert "decoder layer 1 (FalconH1HybridAttentionDecoderLayer)" in caplog.text
    assert not model_layers.captures_mixer(runner([None, layers[1]]), holder)
    holder.layers = torch.nn.ModuleDict({"here": layers[1]})
    assert model_layers.captures_mixer(runner([None]), holder)
    assert "decoder layer 0 (FalconH1HybridAttentionDecoderLayer)" in caplog.text


def runner(breaks, backend="full"):
    """A model runner whose release makes its breaks for `breaks`."""
    config = SimpleNamespace(prefill=SimpleNamespace(backend=backend))
    return SimpleNamespace(
        tp_rank=0,
        attention_layers=breaks,
        get_cuda_graph_layers=lambda owner: (breaks,),
        server_args=SimpleNamespace(cuda_graph_config=config),
    )
