"""What the set-up of the prefill graph returns where it captures nothing, and which layers it
captures."""

import pytest
import torch
from host import logged, prefill

pytestmark = pytest.mark.revision(">=0.5.17,<0.5.24")
GATE = pytest.mark.revision(">=0.5.19")  # where the set-up counts layers that have attention


def warned(caplog):
    return logged.warnings(caplog, loggers=logged.SET_UP)


def test_where_no_size_fits_the_caller_gets_a_result(build_model, caplog):
    """It read `.runner` off an eager runner, and the server died at start: a short context, few
    requests, large sizes."""
    eager = object()
    found = prefill.capture(
        build_model("llama"), sizes=[64, 128], context_len=8, requests=2, eager_runner=eager
    )
    assert found.runner is eager and (found.memory_usage_gb, found.capture_time) == (0, 0)
    [text] = warned(caplog)
    assert "no configured capture size fits" in text


@GATE
@pytest.mark.parametrize(
    "sm120", [False, True], ids=["any GPU", "SM120, which 0.5.23 lets MoE layers in for"]
)
@pytest.mark.parametrize("pattern", ["M-M*M-", "MEM*EM", "M*-E"])
def test_mlp_and_moe_layers_need_no_break(build_model, caplog, monkeypatch, pattern, sm120):
    """NemotronH ran without a graph and without a word: its MLP and MoE layers, which keep no
    state, were counted as lacking attention."""
    monkeypatch.setattr("sglang.srt.models.nemotron_h.is_sm120", lambda: sm120, raising=False)
    model = build_model(
        "nemotron_h_moe",
        hybrid_override_pattern=pattern,
        num_hidden_layers=len(pattern),
    )
    assert prefill.capture(model, layers=len(pattern)).runner is not None
    assert warned(caplog) == []


@GATE
def test_other_backends_keep_out_what_they_kept_out(build_model, caplog):
    """The full graph would capture the Mamba2 layers too; the compiled one cannot trace the experts
    of these releases."""
    assert prefill.capture(build_model("nemotron_h"), "full", layers=6).runner is None
    [text] = warned(caplog)
    assert "decoder layer 1 (NemotronHMLPDecoderLayer)" in text
    assert "no attention, which the full graph needs" in text and "no MLP" not in text


@GATE
def test_a_layer_that_nobody_knows_is_named(build_model, caplog):
    class ConvMixer(torch.nn.Module):
        """Keeps state, in a way that no break is known for."""

    class ConvLayer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mixer = ConvMixer()

    model = build_model("nemotron_h")
    model.model.layers[2] = ConvLayer()
    assert prefill.capture(model, layers=len(model.model.layers)).runner is None
    [text] = warned(caplog)
    assert "decoder layer 2 (ConvLayer)" in text


@GATE
def test_too_few_layers_stay_eager(build_model, caplog):
    assert prefill.capture(build_model("llama"), layers=100).runner is None
    [text] = warned(caplog)
    assert "decoder layer 4 (missing)" in text
