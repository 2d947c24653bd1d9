"""What the piecewise graph refuses by name before it is captured: models without a known stack of
layers, drafts that would never replay it, and Mamba2 mixers outside of split ops."""

import inspect
from types import SimpleNamespace

import judging
import pytest
from host import graph, late

with late.modules():
    from sglang.srt.model_executor import forward_batch_info, piecewise_cuda_graph_runner
    from sglang.srt.prefill_graph.report import verdict
    from sglang.srt.speculative import eagle_worker_v2, spec_info

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.14")
WITH_NETS = pytest.mark.revision(">=0.5.6")  # which have a split op of gated delta nets
# releases whose graph replays only what wants the hidden states of its capture
COMPARES_MODES = pytest.mark.revision(">=0.5.11")


@pytest.mark.patch("prefill-graph/find-layer-stack")
@pytest.mark.parametrize(
    "model, reason",
    [
        (
            SimpleNamespace(model=SimpleNamespace(), language_model=SimpleNamespace()),
            "no decoder layers in the model (SimpleNamespace), language_model (SimpleNamespace),"
            " model (SimpleNamespace)",
        ),
        (
            SimpleNamespace(layers=[SimpleNamespace()]),
            "the release does not look for decoder layers in the model itself",
        ),
    ],
    ids=["none", "elsewhere"],
)
def test_a_model_without_a_stack_prefills_eagerly_with_one_warning(decided, model, reason):
    """It died at start: up to 0.5.9 of an AttributeError; later it did not say what it had seen."""
    runner, warnings = decided(model)
    assert runner.piecewise_cuda_graph_runner is None
    assert warnings == [f"Prefill runs without a CUDA graph: {reason}"]


def wanted_of_the_target(algorithm):
    """A target's prefill's CaptureHiddenMode, as the release's own worker for drafts sets it."""
    source = inspect.getsource(eagle_worker_v2.EAGLEWorkerV2.forward_batch_generation)
    of_target = source.partition("# Draft prefill")[0]
    kind = spec_info.SpeculativeAlgorithm.from_string(algorithm)
    spares = "is_standalone()" in of_target and kind.is_standalone()
    assert "CaptureHiddenMode.FULL" in of_target
    return forward_batch_info.CaptureHiddenMode["NULL" if spares else "FULL"]


def replays(mode):
    """Whether the release's own runner of the piecewise graph, captured without hidden states,
    takes a prefill that wants `mode`."""
    runner = object.__new__(piecewise_cuda_graph_runner.PiecewiseCudaGraphRunner)
    runner.max_num_tokens = 16
    runner.capture_hidden_mode = forward_batch_info.CaptureHiddenMode.NULL
    return runner.can_run(graph.prefill_batch(4, capture_hidden_mode=mode, return_logprob=False))


@COMPARES_MODES
@pytest.mark.parametrize(
    "changes",
    [{}, {"enable_return_hidden_states": True}],
    ids=["", "--enable-return-hidden-states"],
)
@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "NEXTN", "STANDALONE"])
def test_a_graph_that_no_prefill_would_replay_is_not_captured(
    build_model, decided, algorithm, changes
):
    """It was captured for minutes, never ran, and the report said "on"."""
    known = "EAGLE" if algorithm == "NEXTN" else algorithm  # what the server arguments make of it
    alive = bool(changes) or replays(wanted_of_the_target(known))
    runner, warnings = decided(
        build_model("llama"), speculative=known, speculative_algorithm=known, **changes
    )
    found = verdict.explain(runner)
    assert (runner.piecewise_cuda_graph_runner is not None) is alive
    assert found.verdict == ("on" if alive else "off")
    assert warnings == ([] if alive else [f"Prefill runs without a CUDA graph: {found.reason}"])
    assert alive or f"drafts ({known}) want hidden states" in found.reason


@COMPARES_MODES
def test_the_breakable_graph_still_serves_drafts(build_model, decided):
    runner, warnings = decided(
        build_model("llama"), speculative="EAGLE", enable_breakable_cuda_graph=True
    )
    assert runner.piecewise_cuda_graph_runner is not None and not warnings


def test_a_mixer_outside_of_split_ops_is_refused_by_name(build_model, decided, revision):
    """Falcon-H1's mixer would be traced with one batch's state slots. Rank 0 alone warns."""
    name = "layer 0 (FalconH1HybridAttentionDecoderLayer) runs a Mamba2 mixer"
    said = name if revision.micro > 5 else "this release lists 0 of the model's 2 layers"
    model = build_model("falcon_h1")
    runner, warnings = decided(model)
    assert runner.piecewise_cuda_graph_runner is None
    assert not hasattr(runner, "prefill_graph_refusal") or said in warnings[-1]
    if revision.micro >= 9:
        found, [warning] = verdict.explain(runner), warnings
        assert found.verdict == "off" and warning.endswith(found.reason)
        assert found.reason.startswith(name)
    runner, warnings = decided(model, tp_rank=1)
    assert runner.piecewise_cuda_graph_runner is None and not warnings


@pytest.mark.parametrize(
    "kind", ["llama", pytest.param("qwen3_next", marks=WITH_NETS), "nemotron_h"]
)
def test_models_whose_state_split_ops_cover_are_captured(build_model, decided, kind):
    """Drafts out of the prompt want nothing of the target."""
    for algorithm in (None, "NGRAM"):
        runner, warnings = decided(build_model(kind), speculative=algorithm)
        assert runner.piecewise_cuda_graph_runner is not None and not warnings


@WITH_NETS
def test_qwen3_next_gets_no_graph_of_inductors(build_model, decided, revision):
    """GPUs showed other answers than eager prefill's, from 0.5.7 on. A proof knows the refusal."""
    inductor, refused = dict(piecewise_cuda_graph_compiler="inductor"), revision.micro > 6
    runner, warnings = decided(build_model("qwen3_next"), **inductor)
    assert (runner.piecewise_cuda_graph_runner is None) is refused
    assert [bool(judging.REFUSED.search(text)) for text in warnings] == [True] * refused
    assert decided(build_model("llama"), **inductor)[0].piecewise_cuda_graph_runner is not None
