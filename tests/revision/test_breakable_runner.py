"""The overlay's breakable runner on a recorded graph: a real model's layer stack, and batches of
any number of requests. Layers with states inside of it are in test_captured_states.py."""

import logging
from types import SimpleNamespace

import pytest
import torch
from host import captures, late, logged, process
from host.captures import assert_alike, batch_for, batch_of
from host.served import published

with late.modules():
    from sglang.srt.compilation import piecewise_context_manager
    from sglang.srt.model_executor import forward_batch_info, forward_context
    from sglang.srt.models import llama
    from sglang.srt.prefill_graph.breakable import runner as breakable
    from sglang.srt.prefill_graph.report import verdict

# 0.5.12 and 0.5.13 have one of their own, for all but multimodal models
pytestmark = pytest.mark.revision(">=0.5.9,<0.5.14")

# whose layers ask the forward's context for the attention backend
HYBRID = pytest.mark.revision(">=0.5.13")


def test_every_size_stays_right_after_every_other(captured):
    server = captured()
    batches = [[8], [7], [16], [9, 5], [32], [20, 3, 1]]
    wanted = [server.eager(batch_of(lengths)) for lengths in batches]
    for first in range(len(batches)):
        for second in range(len(batches)):
            for number in (first, second):
                assert_alike(server.replayed(batch_of(batches[number])), wanted[number])


def test_every_attention_layer_breaks_and_nothing_else_runs_eagerly(captured):
    server = captured()
    layers = len(server.runner.attention_layers)
    segments = (
        getattr(server.graph.graphs[16], "segments", None) or server.graph.graphs[16]._segments
    )
    assert (len(segments), len(server.breaks(16))) == (layers + 1, layers)
    before = server.runner.attn_backend.calls
    server.replayed(batch_of([9, 3]))
    assert server.runner.attn_backend.calls == before + layers


def handed_on(runner, monkeypatch):
    """What the stack's result is, of each batch from now on."""
    seen, kind = [], type(runner.model.logits_processor)
    forward = kind.forward

    def noted(self, ids, hidden, *rest, **more):
        seen.append(hidden)
        return forward(self, ids, hidden, *rest, **more)

    monkeypatch.setattr(kind, "forward", noted)
    return seen


@pytest.mark.parametrize("kind", ["llama", "falcon_h1"])
def test_padding_stays_inside_the_one_output_of_all_sizes(captured, monkeypatch, kind):
    """Nothing behind the stack sees padded rows, and what was only allocated (here NaN) does not
    stay in them: it would go on through every layer. Held one by one, the outputs of the default
    sizes take 1.6 GB of a model 8192 wide."""
    server = captured(kind)
    seen = handed_on(server.runner, monkeypatch)
    for lengths in ([32], [6, 3], [5]):
        server.replayed(batch_of(lengths))
    assert [len(hidden) for hidden in seen] == [32, 9, 5]
    assert (
        server.graph.output[:16].isfinite().all() and len(server.graph.output) == captures.SIZES[-1]
    )
    memory = {hidden.untyped_storage().data_ptr() for hidden in seen}
    assert memory == {server.graph.output.untyped_storage().data_ptr()}


def test_padded_rows_are_token_0_at_position_0_in_slot_0(captured):
    """Left as they were, they would store keys in slots that are another request's by now."""
    server = captured()
    server.replayed(batch_of([32]))
    before = {name: rows.clone() for name, rows in server.graph.inputs.items()}
    assert all(rows[9:].ne(0).any() for rows in before.values()), (
        "nothing of the earlier batch could be seen"
    )
    server.replayed(batch_of([6, 3]))
    assert {
        name: rows[9:16].tolist() for name, rows in server.graph.inputs.items()
    } == dict.fromkeys(("input_ids", "positions", "out_cache_loc"), [0] * 7)
    assert all(rows[16:].equal(before[name][16:]) for name, rows in server.graph.inputs.items()), (
        "a smaller size does not read these"
    )


def test_outputs_are_stored_leaf_by_leaf():
    """A stack may return auxiliary hidden states beside the last ones."""
    room = breakable.each_tensor(torch.empty_like, (torch.ones(4, 2), [torch.ones(4, 3), None]))
    for tokens in (4, 2):
        made = (
            torch.full((tokens, 2), float(tokens)),
            [torch.full((tokens, 3), -float(tokens)), None],
        )
        breakable.store(made, room)
        found = breakable.first_rows(room, tokens)
        assert type(found) is tuple and type(found[1]) is list and found[1][1] is None
        assert torch.equal(found[0], made[0]) and torch.equal(found[1][0], made[1][0])
    assert room[0].tolist() == [[2.0, 2.0], [2.0, 2.0], [4.0, 4.0], [4.0, 4.0]]


def test_the_stack_is_as_it_was_after_a_replay_and_after_an_error(captured):
    server = captured()
    server.replayed(batch_of([4]))
    assert "forward" not in vars(server.runner.model.model)
    batch = batch_of([4])
    batch.attn_backend = server.runner.attn_backend
    batch.extend_seq_lens = None
    with pytest.raises(AttributeError):
        server.graph.replay(batch)
    assert "forward" not in vars(server.runner.model.model)
    assert piecewise_context_manager.get_forward_context() is None
    assert not piecewise_context_manager.is_in_piecewise_cuda_graph()


@pytest.mark.parametrize(
    "name", ["forward_mode", "capture_hidden_mode", "input_embeds", "replace_embeds"]
)
def test_batches_that_are_not_as_captured_run_eagerly(captured, name):
    server = captured()
    batch = batch_of([4])
    assert server.graph.can_run(batch)
    others = dict(
        forward_mode=forward_batch_info.ForwardMode.TARGET_VERIFY,
        capture_hidden_mode=forward_batch_info.CaptureHiddenMode.FULL,
    )
    setattr(batch, name, others.get(name, torch.zeros(4, 8)))
    assert not server.graph.can_run(batch) and server.graph.why_not(batch)
    assert server.graph.can_run(batch_of([30, 2])) and not server.graph.can_run(batch_of([30, 3]))


@pytest.mark.parametrize(
    "limits, sizes",
    [
        (dict(max_total_num_tokens=20), [2, 8, 16]),
        (dict(model_config=SimpleNamespace(context_len=8, num_hidden_layers=4)), [2, 8]),
    ],
    ids=["cache", "context"],
)
def test_sizes_beyond_the_servers_limits_are_not_captured(captured, limits, sizes):
    server = captured(**limits)
    assert server.graph.capture_num_tokens == sizes


def test_no_size_that_fits_is_one_warning_and_eager_prefill(captured, caplog):
    with caplog.at_level(logging.WARNING):
        server = captured(max_total_num_tokens=1)
    assert server.graph is None
    [message] = logged.texts(caplog, "CUDA graph")
    assert "no capture size fits" in message and "[2, 8, 16, 32]" in message and " 1 " in message
    assert server.runner.prefill_graph_refusal in message


def memory_for(monkeypatch, tokens, run=0):
    """No forward of more tokens runs, after `run` that did."""
    forward = breakable.BreakableRunner._forward
    ran = []

    def limited(self, batch, size):
        if size > tokens and len(ran) == run:
            raise torch.OutOfMemoryError("no memory")
        ran.extend([size] * (size > tokens))
        return forward(self, batch, size)

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(breakable.BreakableRunner, "_forward", limited)


@pytest.mark.parametrize(
    ("tokens", "run", "sizes"),
    [(20, 0, [2, 8, 16]), (8, 0, [2, 8]), (20, 1, [2, 8, 16]), (0, 0, [])],
    ids=["no forward", "of two sizes", "no capture behind the first forward", "of any size"],
)
def test_the_largest_sizes_go_where_memory_is_too_small(captured, monkeypatch, tokens, run, sizes):
    """And the room for their output with them. Without a size prefill is eager."""
    memory_for(monkeypatch, tokens, run)
    server = captured()
    if not sizes:
        assert server.graph is None and "too little memory" in server.runner.prefill_graph_refusal
        return
    assert server.graph.capture_num_tokens == sizes == sorted(server.graph.graphs)
    assert len(server.graph.output) == sizes[-1]


def test_too_little_memory_on_one_of_several_ranks_is_an_error(captured, monkeypatch):
    """They would go on with different graphs, and wait for each other."""
    memory_for(monkeypatch, 8)
    with pytest.raises(RuntimeError, match="--piecewise-cuda-graph-max-tokens"):
        captured(tp_size=2)


@pytest.mark.parametrize(
    "result, named", [({}, "returns a dict"), (TypeError("no tensor"), "TypeError: no tensor")]
)
def test_a_stack_that_cannot_be_replayed_is_eager_prefill(captured, monkeypatch, result, named):
    def forward(self, input_ids, positions, forward_batch):
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(llama.LlamaModel, "forward", forward)
    server = captured()
    assert server.graph is None and named in server.runner.prefill_graph_refusal


def test_what_else_a_model_hands_its_stack_is_not_dropped(captured, monkeypatch, caplog):
    """Captured was a forward without it: this one runs eagerly, and says so once."""
    forward, outer = llama.LlamaModel.forward, llama.LlamaForCausalLM.forward

    def shifted(
        self,
        input_ids,
        positions,
        forward_batch,
        input_embeds=None,
        pp_proxy_tensors=None,
        shift=None,
    ):
        hidden = forward(self, input_ids, positions, forward_batch)
        return hidden if shift is None else hidden + shift

    def handing(self, input_ids, positions, forward_batch, **kwargs):
        hidden = self.model(input_ids, positions, forward_batch, shift=torch.ones(1))
        return self.logits_processor(input_ids, hidden, self.lm_head, forward_batch)

    monkeypatch.setattr(llama.LlamaModel, "forward", shifted)
    server = captured()
    plain = server.replayed(batch_of([5]))
    monkeypatch.setattr(llama.LlamaForCausalLM, "forward", handing)
    with caplog.at_level(logging.WARNING):
        found = [server.replayed(batch_of([5])) for _ in range(2)]
    monkeypatch.setattr(llama.LlamaForCausalLM, "forward", outer)
    assert not torch.allclose(found[0], plain) and torch.equal(*found)
    [message] = logged.texts(caplog)
    assert message.endswith(" shift")


@pytest.mark.revision("<0.5.13")  # later the attention backend's own metadata has them
def test_hybrid_pools_get_slots_of_their_own_in_the_placeholder(captured, monkeypatch):
    """A store went on with the last one of the decode graphs, of another length, and died."""
    seen, forward = [], breakable.BreakableRunner._forward
    monkeypatch.setattr(
        breakable.BreakableRunner,
        "_forward",
        lambda self, batch, size: (
            seen.append(batch.out_cache_loc_swa) or forward(self, batch, size)
        ),
    )
    captured(is_hybrid_swa=True)
    assert {len(slots) for slots in seen} == set(captures.SIZES) and not any(
        slots.any() for slots in seen
    )


def test_padding_of_a_multimodal_model_is_zero(captured):
    server = captured("qwen3_vl")
    server.replayed(batch_for("qwen3_vl", [32]))
    assert server.graph.inputs["positions"][:, 9:16].ne(0).all()
    server.replayed(batch_for("qwen3_vl", [6, 3]))
    assert server.graph.inputs["positions"][:, 9:16].eq(0).all()
    assert server.graph.inputs["out_cache_loc"][9:16].eq(0).all()


@HYBRID
def test_a_capture_publishes_the_attention_backend_and_a_replay_keeps_what_is_published(captured):
    """A model runner publishes it around its forward; a draft's may have published another."""
    server = captured()
    assert not forward_context.has_forward_context()
    assert server.graph.replay(batch_of([5])).next_token_logits.isfinite().all()
    assert not forward_context.has_forward_context()
    seen, forward = [], captures.CausalAttention.forward
    other = captures.CausalAttention()
    other.forward = lambda *args, **kwargs: (
        seen.append(1) or forward(server.runner.attn_backend, *args, **kwargs)
    )
    with published(other):
        server.graph.replay(batch_of([5]))
    assert len(seen) == len(server.runner.attention_layers)


@pytest.mark.parametrize(
    "changes, named",
    [
        (dict(is_draft_worker=True), "drafts"),
        (dict(server_args=dict(enable_dp_attention=True)), "other ranks"),
        (dict(server_args=dict(moe_a2a_backend="deepep")), "other ranks"),
    ],
    ids=str,
)
def test_what_this_runner_does_not_hand_its_stack_is_refused(captured, changes, named):
    """Arguments forbid it elsewhere; on 0.5.13 --enforce-piecewise-cuda-graph lifts that, and a
    draft's worker asks for a graph."""
    server = captured(
        **changes | dict(server_args=captures.arguments(**changes.get("server_args", {})))
    )
    assert server.graph is None and named in server.runner.prefill_graph_refusal


# --- sizes that nobody chose


@pytest.mark.parametrize("by_default", [True, False])
def test_the_report_says_which_sizes_were_captured_and_why(captured, by_default):
    """Default sizes, as the release makes them where nobody chose any, get others between them."""
    args = process.with_default_sizes(640, enable_breakable_cuda_graph=True)
    server = captured(server_args=args) if by_default else captured()
    sizes, why = server.graph.capture_num_tokens, server.graph.why_these_sizes
    assert sizes[-5:] == [512, 544, 576, 608, 640] if by_default else sizes == captures.SIZES
    assert ("default" in why) is by_default
    server.runner.piecewise_cuda_graph_runner = server.graph
    said = f"captured {len(sizes)} sizes, {sizes[0]} to {sizes[-1]} tokens: {why}"
    assert verdict.explain(server.runner).reason == said
