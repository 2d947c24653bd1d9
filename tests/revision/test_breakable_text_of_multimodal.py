"""Text of a multimodal model through the release's own breakable prefill runner, captured on a
recorded graph."""

from types import SimpleNamespace

import pytest
import torch
from host import late, process
from host.captures import BATCHES, assert_alike, axes_of, batch_for, batch_of

with late.modules():
    from sglang.srt.managers import schedule_batch
    from sglang.srt.model_executor import cuda_graph_config

pytestmark = pytest.mark.revision(">=0.5.14,<0.5.16")


@pytest.fixture
def server(captured):
    """A small Qwen3.5, captured."""
    return captured("qwen3_5")


def test_text_gets_eager_prefills_logits(server):
    for lengths in BATCHES:
        wanted = server.eager(batch_for("qwen3_5", lengths))
        assert_alike(server.replayed(batch_for("qwen3_5", lengths)), wanted)


def test_positions_of_each_axis_reach_the_layers(server):
    """One row was captured for all three. Attention turns by how far tokens are apart: the axes
    differ in that here."""
    kind, lengths = "qwen3_5, axes apart", [7, 2, 9]
    wanted, flat = (server.eager(batch_for(each, lengths)) for each in (kind, "qwen3_5"))
    assert_alike(server.replayed(batch_for(kind, lengths)), wanted)
    assert not torch.allclose(flat, wanted, rtol=1e-4, atol=1e-4)


def test_what_the_model_embeds_is_what_is_replayed(server, monkeypatch):
    """0.5.15 captured the embedding of token ids, and went on without the model's own."""
    embedding = server.runner.model.model.embed_tokens
    made = embedding.forward
    monkeypatch.setattr(embedding, "forward", lambda ids: made(ids).flip(-1))
    wanted = server.eager(batch_for("qwen3_5", [5]))
    assert_alike(server.replayed(batch_for("qwen3_5", [5])), wanted)


def test_batches_with_images_run_eagerly(server):
    image = schedule_batch.MultimodalInputs(
        mm_items=[schedule_batch.MultimodalDataItem(modality=schedule_batch.Modality.IMAGE)]
    )
    for inputs, runs in (([None, None], True), ([image, None], False), ([None, image], False)):
        assert (
            server.can_run(batch_of([4, 2], mrope_positions=axes_of([4, 2]), mm_inputs=inputs))
            is runs
        )
    server.graph.layer_model = None  # tc_piecewise
    assert server.can_run(batch_of([4, 2], mm_inputs=[image, None]))


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
