"""Text of a multimodal model through the release's own breakable prefill runner, captured on a
recorded graph."""

from types import SimpleNamespace

import pytest
import test_captured_own_runner as runners
import torch
from host import hybrids, late, prefill, process, segments
from test_breakable_runner import BATCHES, CausalAttention, assert_alike, axes_of, batch_of, eager

with late.modules():
    from sglang.srt.managers import schedule_batch
    from sglang.srt.model_executor import cuda_graph_config

pytestmark = pytest.mark.revision(">=0.5.14,<0.5.16")


@pytest.fixture
def captured(build_model, monkeypatch):
    """captured(): a small Qwen3.5 on the CPU, the release's runner that captured it, and its model
    runner."""
    module = prefill.captures_on_cpu(monkeypatch)
    with segments.recording(monkeypatch), torch.no_grad():
        model = build_model("qwen3_5", device="cpu", dtype=torch.float32)
        attention = hybrids.recurrent(CausalAttention(), hybrids.on_cpu(monkeypatch))
        made = model_runner(model, attention)
        yield made, module.PrefillCudaGraphRunner(made)


def model_runner(model, attention):
    """A ModelRunner as far as the prefill graph looks at it."""
    attention.use_captured_forward_metadata_for_breakable_cuda_graph = False
    made = runners.model_runner(model, attention)
    made.is_multimodal = made.model_config.is_multimodal = True
    made.req_to_token_pool = SimpleNamespace(size=32)
    return made


@pytest.mark.parametrize("lengths", BATCHES, ids=str)
def test_text_gets_eager_prefills_logits(captured, lengths):
    runner, graph = captured
    wanted = eager(runner, batch_of(lengths, mrope_positions=axes_of(lengths)))
    batch = batch_of(lengths, mrope_positions=axes_of(lengths))
    assert graph.can_run_graph(batch)
    assert_alike(graph.execute(batch).next_token_logits[: len(lengths)], wanted)


def test_positions_of_each_axis_reach_the_layers(captured):
    """One row was captured for all three. Attention turns by how far tokens are apart: the axes
    differ in that here."""
    runner, graph = captured
    lengths = [7, 2, 9]
    axes = axes_of(lengths, (1, 2, 5))
    wanted, flat = (
        eager(runner, batch_of(lengths, mrope_positions=given))
        for given in (axes, axes_of(lengths))
    )
    found = graph.execute(batch_of(lengths, mrope_positions=axes)).next_token_logits[: len(lengths)]
    assert_alike(found, wanted)
    assert not torch.allclose(flat, wanted, rtol=1e-4, atol=1e-4)


def test_what_the_model_embeds_is_what_is_replayed(captured, monkeypatch):
    """0.5.15 captured the embedding of token ids, and went on without the model's own."""
    runner, graph = captured
    made = runner.model.model.embed_tokens.forward
    monkeypatch.setattr(runner.model.model.embed_tokens, "forward", lambda ids: made(ids).flip(-1))
    wanted = eager(runner, batch_of([5], mrope_positions=axes_of([5])))
    found = graph.execute(batch_of([5], mrope_positions=axes_of([5])))
    assert_alike(found.next_token_logits[:1], wanted)


def test_batches_with_images_run_eagerly(captured):
    _, graph = captured
    image = schedule_batch.MultimodalInputs(
        mm_items=[schedule_batch.MultimodalDataItem(modality=schedule_batch.Modality.IMAGE)]
    )
    for inputs, runs in (([None, None], True), ([image, None], False), ([None, image], False)):
        assert (
            graph.can_run_graph(batch_of([4, 2], mrope_positions=axes_of([4, 2]), mm_inputs=inputs))
            is runs
        )
    graph.layer_model = None  # tc_piecewise
    assert graph.can_run_graph(batch_of([4, 2], mm_inputs=[image, None]))


@pytest.mark.revision(">=0.5.15")
@pytest.mark.parametrize(
    ("architecture", "changes", "on"),
    [
        ("Qwen3_5ForConditionalGeneration", {}, True),
        ("Qwen3_5MoeForConditionalGeneration", {}, True),
        ("Qwen3_5ForConditionalGeneration", {"speculative_algorithm": "EAGLE"}, False),
        ("Qwen3VLForConditionalGeneration", {}, False),
        ("Qwen3ForCausalLM", {}, True),
    ],
)
def test_the_rule_about_multimodal_models_lets_qwen3_5_pass(architecture, changes, on, monkeypatch):
    """Typed arguments win over the rules; nothing is typed here."""
    args = process.default_server_args(**changes)
    config = SimpleNamespace(
        hf_config=SimpleNamespace(architectures=[architecture]),
        is_multimodal="Conditional" in architecture,
    )
    args.get_model_config = lambda: config
    args.use_mla_backend = lambda: False
    args.cuda_graph_config = SimpleNamespace(
        prefill=SimpleNamespace(backend=cuda_graph_config.Backend.BREAKABLE)
    )
    args._cuda_graph_config_locked = set()
    args._apply_cuda_graph_compatibility()
    assert args.cuda_graph_config.prefill.backend == (
        cuda_graph_config.Backend.BREAKABLE if on else cuda_graph_config.Backend.DISABLED
    )
