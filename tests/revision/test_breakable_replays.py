"""Replays of a breakable graph beside eager prefill: of the overlay's runner up to 0.5.13, later of
the release's own. What the overlay's runner refuses, pads and stores is in
test_breakable_runner.py, and captured layers with states are in test_captured_states.py."""

from types import SimpleNamespace

import pytest
import torch
from host import captures, late, prefill, process
from host.captures import assert_alike, axes_of, batch_for, batch_of

with late.modules():
    from sglang.srt.managers import schedule_batch
    from sglang.srt.model_executor import cuda_graph_config
    from sglang.srt.prefill_graph.breakable import mixers
    from sglang.srt.prefill_graph.piecewise import op_function

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.24")
TEXT = pytest.mark.revision(">=0.5.13,<0.5.16")  # of Qwen3.5
KINDS = {
    "llama": (),
    "qwen3_vl": pytest.mark.revision("<0.5.14"),
    "qwen3_vl, axes apart": pytest.mark.revision("<0.5.14"),
    "falcon_h1": (),
    # whose layers ask the forward's context for the attention backend
    "nemotron_h": pytest.mark.revision(">=0.5.13,<0.5.22"),
    "qwen3_5": TEXT,
    "qwen3_5, axes apart": TEXT,
}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=marks) for kind, marks in KINDS.items()])
def test_any_number_of_requests_gets_eager_prefills_logits(captured, kind):
    """A multimodal model embeds the tokens, and hands its layers no ids: the replay fell back to
    eager prefill. Up to 0.5.15 one row of positions was captured for all axes, by how far tokens
    are apart attention turns. Layers with states break, and get the rows of the batch at hand, or
    the batch itself, which says which states the prefix cache keeps. What was only allocated is NaN
    here, and would go on through every layer."""
    server, sizes, own = captured(kind), [], late.has(prefill.RUNNER)
    for size, one in server.graphs.items():
        one.replay = lambda size=size, replay=one.replay: sizes.append(size) or replay()
    for lengths in captures.BATCHES:
        wanted, batch = server.eager(batch_for(kind, lengths)), batch_for(kind, lengths)
        server.seen.clear()
        found, rows = server.replayed(batch), sum(lengths)
        assert found.shape[0] == len(lengths)
        assert_alike(found, wanted)
        [size], sizes[:] = sizes, []
        assert size == min(size for size in captures.SIZES if size >= rows)
        assert server.output(size).isfinite().all()
        if kind == "falcon_h1":
            assert [(call.layer_id, call.rows) for call in server.seen] == [(0, rows), (1, rows)]
        given = [getattr(one, "batch", one) for one in server.seen]
        assert bool(given) is kind.startswith(("falcon_h1", "nemotron_h", "qwen3_5"))
        # up to 0.5.12 the backend gets none; the release's own runner makes one for the layers
        alike = (
            (lambda one: one.extend_seq_lens_cpu == lengths) if own else (lambda one: one is batch)
        )
        assert all(one is None or alike(one) for one in given)
        if "apart" in kind and rows > len(lengths):
            flat = server.eager(batch_for(kind.partition(",")[0], lengths))
            assert not torch.allclose(flat, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.revision(">=0.5.15,<0.5.21")
def test_a_rank_without_requests_touches_no_state(captured):
    """Under DP attention these releases make up a request for it, whose slot is another's."""
    server = captured("falcon_h1")
    server.seen.clear()
    server.replayed(batch_of([1], _original_batch_size=0))
    assert server.seen == [] and server.output(2).isfinite().all()


@pytest.mark.revision(">=0.5.13")
def test_a_breakable_decode_graph_calls_the_backend_itself():
    """Only prefills have a batch that a break can look up: decoding died with "No forward batch is
    set" under --cuda-graph-backend-decode breakable. So does eager prefill."""
    seen = []

    def forward(*rows, **given):
        seen.append(given)

    def made_a_break(function, name):
        return lambda *_, **__: seen.append("a break")

    def batch(extends):
        return SimpleNamespace(forward_mode=SimpleNamespace(is_extend=lambda: extends))

    assert mixers.beside_attention(forward) is forward
    with op_function.broken_by(made_a_break):
        run = mixers.beside_attention(forward)
        for one in (batch(extends=False), batch(extends=True)):
            run(None, torch.ones(1), torch.ones(1), layer_id=0, forward_batch=one)
    assert seen[0]["layer_id"] == 0 and not seen[0]["forward_batch"].forward_mode.is_extend()
    assert seen[1:] == ["a break"]


# --- text of a multimodal model


@pytest.mark.revision(">=0.5.14,<0.5.16")
def test_what_the_model_embeds_is_what_is_replayed(captured, monkeypatch):
    """0.5.15 captured the embedding of token ids, and went on without the model's own."""
    server = captured("qwen3_5")
    embedding = server.runner.model.model.embed_tokens
    made = embedding.forward
    monkeypatch.setattr(embedding, "forward", lambda ids: made(ids).flip(-1))
    wanted = server.eager(batch_for("qwen3_5", [5]))
    assert_alike(server.replayed(batch_for("qwen3_5", [5])), wanted)


@pytest.mark.revision("<0.5.16")
def test_batches_with_images_run_eagerly(captured):
    own = late.has(prefill.RUNNER)
    server = captured("qwen3_5" if own else "qwen3_vl")
    image = schedule_batch.MultimodalInputs(
        mm_items=[schedule_batch.MultimodalDataItem(modality=schedule_batch.Modality.IMAGE)]
    )
    for inputs, runs in (([None, None], True), ([image, None], False), ([None, image], False)):
        batch = batch_of([4, 2], mrope_positions=axes_of([4, 2]), mm_inputs=inputs)
        assert server.can_run(batch) is runs
        assert own or server.graph.why_not(batch) == (None if runs else "the batch has images")
    if own:
        server.graph.layer_model = None  # tc_piecewise
        assert server.can_run(batch_of([4, 2], mm_inputs=[image, None]))


@pytest.mark.revision(">=0.5.15,<0.5.16")
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
