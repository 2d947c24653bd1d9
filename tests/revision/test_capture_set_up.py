"""What the release's own set-up of the prefill graph captures, of which layers, and what it warns
of; captures are stood in for."""

import argparse
import re
from types import SimpleNamespace

import judging
import pytest
import torch
from host import late, logged, prefill

with late.modules():
    from sglang.srt import server_args
    from sglang.srt.prefill_graph.compat import limits
    from sglang.srt.prefill_graph.model import layers as model_layers

pytestmark = pytest.mark.revision(">=0.5.14,<0.5.24")
FULL = pytest.mark.revision(">=0.5.16")
PIECEWISE = pytest.mark.revision("<0.5.22")
GATE = pytest.mark.revision(">=0.5.19")  # where the set-up counts layers that have attention
UNCOVERED = "runs a Mamba2 mixer outside of every graph break"


def set_up(caplog, model, *words, **more):
    """Whether the release's own set-up captures `model`, and what it warned of."""
    caplog.clear()
    found = prefill.capture(model, *words, layers=len(model.model.layers), **more)
    captured = getattr(found, "runner", found) is not None
    return captured, logged.warnings(caplog, loggers=logged.SET_UP)


@pytest.mark.patch("breakable/return-result-when-no-size-fits")
@pytest.mark.revision(">=0.5.17")
def test_where_no_size_fits_the_caller_gets_a_result(build_model, caplog):
    """It read `.runner` off an eager runner, and died: short context, few requests, large sizes."""
    eager = object()
    found = prefill.capture(
        build_model("llama"), sizes=[64, 128], context_len=8, requests=2, eager_runner=eager
    )
    assert found.runner is eager and (found.memory_usage_gb, found.capture_time) == (0, 0)
    [text] = logged.warnings(caplog, loggers=logged.SET_UP)
    assert "no configured capture size fits" in text


# --- layers without state


@GATE
@pytest.mark.parametrize(
    "sm120", [False, True], ids=["any GPU", "SM120, which 0.5.23 lets MoE layers in for"]
)
@pytest.mark.parametrize("pattern", ["M-M*M-", "MEM*EM", "M*-E"])
def test_mlp_and_moe_layers_need_no_break(build_model, caplog, monkeypatch, pattern, sm120):
    """NemotronH ran without a graph and without a word: its MLP and MoE layers, which keep no
    state, were counted as lacking attention."""
    monkeypatch.setattr("sglang.srt.models.nemotron_h.is_sm120", lambda: sm120, raising=False)
    assert set_up(caplog, build_model("nemotron_h_moe", pattern=pattern)) == (True, [])


@GATE
def test_other_backends_keep_out_what_they_kept_out(build_model, caplog):
    """The full graph would capture Mamba2 layers; the compiled one cannot trace the experts."""
    captured, [text] = set_up(caplog, build_model("nemotron_h"), "full")
    assert not captured and "decoder layer 1 (NemotronHMLPDecoderLayer)" in text
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
    captured, [text] = set_up(caplog, model)
    assert not captured and "decoder layer 2 (ConvLayer)" in text


# --- layers with a Mamba2 mixer


@pytest.mark.parametrize(
    "backend", [pytest.param("tc_piecewise", marks=PIECEWISE), pytest.param("full", marks=FULL)]
)
def test_a_mixer_beside_attention_is_refused_by_name(build_model, caplog, backend):
    """Falcon-H1: the set-up saw its attention, and captured its Mamba2 with the state slots of the
    dummy batch. These graphs have no break for it."""
    captured, [text] = set_up(caplog, build_model("falcon_h1"), backend)
    assert not captured
    assert text.startswith(
        "Disable prefill CUDA graph because decoder layer 0 (FalconH1HybridAttentionDecoderLayer)"
        f" {UNCOVERED}"
    )


@pytest.mark.patch("breakable/refuse-uncovered-mamba2")
def test_a_mixer_without_its_break_is_refused_by_name(unbroken, caplog):
    """The first rank alone says so."""
    captured, [text] = set_up(caplog, unbroken)
    assert not captured and f"decoder layer 0 (Unbroken) {UNCOVERED}" in text
    assert set_up(caplog, unbroken, tp_rank=1) == (False, [])


@pytest.mark.parametrize("kind", ["falcon_h1", "nemotron_h", "qwen3_next", "llama"])
def test_models_whose_state_breaks_cover_are_captured(build_model, caplog, kind):
    assert set_up(caplog, build_model(kind)) == (True, [])


@PIECEWISE
def test_qwen3_next_gets_no_piecewise_graph_that_answers_otherwise(build_model, caplog, revision):
    """GPUs showed other answers than eager prefill's. A proof knows the refusal."""
    for compiler in ("eager", "inductor"):
        refused = revision.micro == 15 or (revision.micro == 14 and compiler == "inductor")
        captured, warned = set_up(
            caplog, build_model("qwen3_next"), "tc_piecewise", compiler=compiler
        )
        assert captured is not refused
        assert [bool(judging.REFUSED.search(text)) for text in warned] == [True] * refused


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


# --- memory that is left


@pytest.mark.patch("prefill-graph/warn-of-little-memory")
@pytest.mark.parametrize(
    "before, after, rank, warns",
    [(9.0, 4.2, 0, True), (80.0, 78.0, 0, False), (9.0, 4.5, 0, False), (9.0, 4.2, 1, False)],
)
def test_less_memory_than_the_graph_took_is_one_warning(
    build_model, caplog, before, after, rank, warns
):
    """The graph stays: whether its memory is needed otherwise is the user's to know. 0.5.16 has
    none below 4 GB. Other ranks are silent."""
    captured, warned = set_up(caplog, build_model("llama"), memory=(before, after), tp_rank=rank)
    assert captured and len(warned) == warns
    assert all("took 4.80 GB, and 4.20 GB are left" in message for message in warned)


def test_the_options_that_it_names_are_the_releases():
    named = re.findall(r"--[a-z-]+", limits.shortage(2.0, 1.0))
    parser = argparse.ArgumentParser()
    server_args.ServerArgs.add_cli_args(parser)
    assert len(named) == 4 and set(named) <= {
        option for one in parser._actions for option in one.option_strings
    }
