"""The overlay's breakable runner on a recorded graph: a real model's layer stack, and batches of
any number of requests."""

import contextlib
import logging
from types import SimpleNamespace

import pytest
import torch
from host import beside, graph, hybrids, late, logged, process, segments, state_pool
from host.served import published

with late.modules():
    from sglang.srt.compilation import piecewise_context_manager
    from sglang.srt.managers import schedule_batch
    from sglang.srt.model_executor import forward_batch_info, forward_context
    from sglang.srt.models import llama
    from sglang.srt.prefill_graph.breakable import runner as breakable
    from sglang.srt.prefill_graph.captured import gdn, layers, tables
    from sglang.srt.prefill_graph.compat import ops
    from sglang.srt.prefill_graph.kernels import tiles
    from sglang.srt.prefill_graph.model import layers as model_layers
    from sglang.srt.prefill_graph.model import multimodal, stack
    from sglang.srt.prefill_graph.report import verdict

# 0.5.12 and 0.5.13 have one of their own, for all but multimodal models
pytestmark = pytest.mark.revision(">=0.5.9,<0.5.14")
SIZES = [8, 16, 32]


class CausalAttention:
    """Attention over each request's own new tokens. Refuses rows that no request accounts for."""

    def __init__(self):
        self.calls = 0

    def init_forward_metadata(self, forward_batch):
        self.lengths = forward_batch.extend_seq_lens.tolist()

    def forward(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        self.calls += 1
        assert len(q) == len(k) == len(v) == sum(self.lengths), (
            f"{len(q)} rows for requests of {self.lengths}"
        )
        out = []
        heads, group = layer.tp_q_head_num, layer.tp_q_head_num // layer.tp_k_head_num
        for a, b, c in zip(*(part.split(self.lengths) for part in (q, k, v))):
            a = a.view(len(a), heads, -1).transpose(0, 1)
            b, c = (
                part.view(len(part), heads // group, -1).transpose(0, 1).repeat_interleave(group, 0)
                for part in (b, c)
            )
            out.append(
                torch.nn.functional.scaled_dot_product_attention(
                    a, b, c, is_causal=True, scale=layer.scaling
                )
                .transpose(0, 1)
                .flatten(1)
            )
        return torch.cat(out)


def batch_of(lengths, **fields):
    """A prefill of requests with `lengths` new tokens each, as the scheduler makes it."""
    tokens, source = sum(lengths), torch.Generator().manual_seed(sum(lengths))
    count = "global_num_token_non_padded_cpu"  # from 0.5.20
    count = count if hasattr(forward_batch_info.ForwardBatch, count) else count[len("global_") :]
    return graph.batch_of(
        list(lengths),
        input_ids=torch.randint(1, 200, (tokens,), generator=source),
        positions=torch.cat([torch.arange(n) for n in lengths]),
        seq_lens_cpu=torch.tensor(lengths),
        orig_seq_lens=torch.tensor(lengths),
        extend_logprob_start_lens_cpu=list(lengths),
        out_cache_loc=torch.arange(1, tokens + 1),
        req_pool_indices=torch.arange(len(lengths)),
        capture_hidden_mode=forward_batch_info.CaptureHiddenMode.NULL,
        return_logprob=False,
        **{count: tokens},
        **fields,
    )


def arguments(**changes):
    """Server arguments that ask for the breakable graph of SIZES."""
    changes |= dict(piecewise_cuda_graph_tokens=SIZES, enable_breakable_cuda_graph=True)
    return process.default_server_args(**changes)


def model_runner(model, **changes):
    """A ModelRunner as far as the graph looks at it."""
    table = model_layers.describe(stack.find(model).layers)
    made = SimpleNamespace(
        model=model,
        device="cpu",
        server_args=arguments(),
        model_config=SimpleNamespace(context_len=4096, num_hidden_layers=len(table.rows)),
        max_total_num_tokens=4096,
        attn_backend=CausalAttention(),
        req_to_token_pool=None,
        token_to_kv_pool=None,
        is_multimodal=False,
        use_mla_backend=False,
        tp_group=SimpleNamespace(barrier=lambda: None),
        tp_rank=0,
        pp_rank=0,
        attention_layers=table.attention_layers,
        moe_layers=table.moe_layers,
        moe_fusions=table.moe_fusions,
        is_draft_worker=False,
    )
    vars(made).update(changes)
    return made


@pytest.fixture
def captured(build_model, monkeypatch):
    """captured(): a model runner of a small Llama and its breakable runner, captured on a recorded
    graph."""
    from sglang.srt.prefill_graph.compat import capture

    monkeypatch.setattr(capture, "capture_context", lambda runner: contextlib.nullcontext(None))
    monkeypatch.setattr(capture, "graph_pool", lambda runner: (0, 1))
    with segments.recording(monkeypatch), torch.no_grad():

        def capture(kind="llama", **changes):
            runner = model_runner(build_model(kind, device="cpu", dtype=torch.float32), **changes)
            return runner, breakable.make_runner(runner)

        yield capture


def eager(runner, batch):
    # RadixAttention asks the batch for its backend up to 0.5.12
    batch.attn_backend = runner.attn_backend
    runner.attn_backend.init_forward_metadata(batch)
    with published(runner.attn_backend):
        return runner.model.forward(batch.input_ids, batch.positions, batch).next_token_logits


def replayed(runner, graph, batch):
    batch.attn_backend = runner.attn_backend
    assert graph.can_run(batch)
    with published(runner.attn_backend):
        return graph.replay(batch).next_token_logits


def assert_alike(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def breaks_of(graph, size=16):
    """The breaks of a captured size, under the name that the release's primitive gives them."""
    one = graph.graphs[size]
    return getattr(one, "breaks", None) or one._break_fns


def attention_alone(runner, breaks):
    """Whether every attention layer breaks, and no other layer that could, nor a mixer beside
    attention."""
    layers = [type(layer).__name__ for layer in runner.attention_layers]
    beside = sum(map(model_layers.breaks_at_mixer, runner.model.modules()))
    return 0 < len(breaks) == layers.count("RadixAttention") < len(layers) + beside


BATCHES = [
    [8],
    [5],
    [3, 4],
    [1, 1, 1, 1, 1, 1, 1, 1],
    [7, 2, 9],
    [16],
    [1] * 16,
    [11, 5, 1, 2, 8],
    [1],
]


# whose layers ask the forward's context for the attention backend
HYBRID = pytest.mark.revision(">=0.5.13")
KINDS = [
    "llama",
    "qwen3_vl",
    "qwen3_vl, axes apart",
    "falcon_h1",
    pytest.param("nemotron_h", marks=HYBRID),
    pytest.param("qwen3_5", marks=HYBRID),
]


@pytest.fixture
def captured_kind(captured, monkeypatch):
    """captured_kind(kind): captured() of another model, and what its layers with states were given:
    batches, or the calls of mixers beside attention.

    Qwen3-VL stands for Qwen3.5, whose wrapper it is: its layers run on a CPU.
    """
    known = (*multimodal.KNOWN, "Qwen3VLForConditionalGeneration")
    config = SimpleNamespace(context_len=4096, num_hidden_layers=8, hidden_size=128)

    def capture(kind, **changes):
        seen = hybrids.on_cpu(monkeypatch) if kind in ("nemotron_h", "qwen3_5") else []
        attention = CausalAttention()
        if kind == "falcon_h1":
            attention = beside.backend(seen)
        elif kind in ("nemotron_h", "qwen3_5"):
            attention = hybrids.recurrent(attention, seen)
        if kind.startswith("qwen3_"):
            monkeypatch.setattr(multimodal, "KNOWN", known)
            changes |= dict(is_multimodal=True, dtype=torch.float32, model_config=config)
        return *captured(kind.partition(",")[0], attn_backend=attention, **changes), seen

    return capture


def axes_of(lengths, steps=(1, 1, 1)):
    """Positions of requests as the scheduler makes them of a multimodal model: three rows. steps:
    how far each axis goes per token."""
    return torch.cat([torch.arange(n) for n in lengths]) * torch.tensor(steps)[:, None]


def batch_for(kind, lengths):
    if not kind.startswith("qwen3_"):
        return batch_of(lengths)
    steps = (1, 2, 5) if "axes apart" in kind else (1, 1, 1)
    return batch_of(lengths, mrope_positions=axes_of(lengths, steps))


@pytest.mark.parametrize("lengths", BATCHES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_requests_gets_eager_prefills_logits(captured_kind, kind, lengths):
    """A multimodal model embeds the tokens, and hands its layers no ids: the replay fell back to
    eager prefill. Layers with states break, and get the rows of the batch at hand, or the batch
    itself, which says which states the prefix cache keeps."""
    runner, graph, seen = captured_kind(kind)
    wanted, batch = eager(runner, batch_for(kind, lengths)), batch_for(kind, lengths)
    sizes = []
    seen.clear()
    for size, one in graph.graphs.items():
        one.replay = lambda size=size, replay=one.replay: sizes.append(size) or replay()
    found = replayed(runner, graph, batch)
    assert found.shape[0] == len(lengths)
    assert_alike(found, wanted)
    assert sizes == [min(size for size in SIZES if size >= sum(lengths))]
    if kind == "falcon_h1":
        rows = sum(lengths)
        assert [(call.layer_id, call.rows) for call in seen] == [(0, rows), (1, rows)]
        assert all(call.batch in (None, batch) for call in seen)
    elif kind in ("nemotron_h", "qwen3_5"):
        assert seen and all(given is batch for given in seen)


def test_every_size_stays_right_after_every_other(captured):
    runner, graph = captured()
    batches = [[8], [7], [16], [9, 5], [32], [20, 3, 1]]
    wanted = [eager(runner, batch_of(lengths)) for lengths in batches]
    for first in range(len(batches)):
        for second in range(len(batches)):
            for number in (first, second):
                assert_alike(replayed(runner, graph, batch_of(batches[number])), wanted[number])


def test_every_attention_layer_breaks_and_nothing_else_runs_eagerly(captured):
    runner, graph = captured()
    layers = len(runner.attention_layers)
    segments = getattr(graph.graphs[16], "segments", None) or graph.graphs[16]._segments
    assert (len(segments), len(breaks_of(graph))) == (layers + 1, layers)
    before = runner.attn_backend.calls
    replayed(runner, graph, batch_of([9, 3]))
    assert runner.attn_backend.calls == before + layers


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
def test_padding_stays_inside_the_one_output_of_all_sizes(captured_kind, monkeypatch, kind):
    """Nothing behind the stack sees padded rows, and what was only allocated (here NaN) does not
    stay in them: it would go on through every layer. Held one by one, the outputs of the default
    sizes take 1.6 GB of a model 8192 wide."""
    runner, graph, _ = captured_kind(kind)
    seen = handed_on(runner, monkeypatch)
    for lengths in ([32], [6, 3], [5]):
        replayed(runner, graph, batch_of(lengths))
    assert [len(hidden) for hidden in seen] == [32, 9, 5]
    assert graph.output[:16].isfinite().all() and len(graph.output) == SIZES[-1]
    memory = {hidden.untyped_storage().data_ptr() for hidden in seen}
    assert memory == {graph.output.untyped_storage().data_ptr()}


def test_padded_rows_are_token_0_at_position_0_in_slot_0(captured):
    """Left as they were, they would store keys in slots of an earlier batch, which are another
    request's by now."""
    runner, graph = captured()
    replayed(runner, graph, batch_of([32]))
    before = {name: rows.clone() for name, rows in graph.inputs.items()}
    assert all(rows[9:].ne(0).any() for rows in before.values()), (
        "nothing of the earlier batch could be seen"
    )
    replayed(runner, graph, batch_of([6, 3]))
    assert {name: rows[9:16].tolist() for name, rows in graph.inputs.items()} == dict.fromkeys(
        ("input_ids", "positions", "out_cache_loc"), [0] * 7
    )
    assert all(rows[16:].equal(before[name][16:]) for name, rows in graph.inputs.items()), (
        "a smaller size does not read these"
    )


def test_outputs_are_stored_leaf_by_leaf():
    """A stack may return auxiliary hidden states beside the last ones."""
    room = breakable.room_for((torch.ones(4, 2), [torch.ones(4, 3), None]))
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
    runner, graph = captured()
    replayed(runner, graph, batch_of([4]))
    assert "forward" not in vars(runner.model.model)
    batch = batch_of([4])
    batch.attn_backend = runner.attn_backend
    batch.extend_seq_lens = None
    with pytest.raises(AttributeError):
        graph.replay(batch)
    assert "forward" not in vars(runner.model.model)
    assert piecewise_context_manager.get_forward_context() is None
    assert not piecewise_context_manager.is_in_piecewise_cuda_graph()


@pytest.mark.parametrize(
    "name", ["forward_mode", "capture_hidden_mode", "input_embeds", "replace_embeds"]
)
def test_batches_that_are_not_as_captured_run_eagerly(captured, name):
    _, graph = captured()
    batch = batch_of([4])
    assert graph.can_run(batch)
    others = dict(
        forward_mode=forward_batch_info.ForwardMode.TARGET_VERIFY,
        capture_hidden_mode=forward_batch_info.CaptureHiddenMode.FULL,
    )
    setattr(batch, name, others.get(name, torch.zeros(4, 8)))
    assert not graph.can_run(batch) and graph.why_not(batch)
    assert graph.can_run(batch_of([30, 2])) and not graph.can_run(batch_of([30, 3]))


@pytest.mark.parametrize(
    "limits, sizes",
    [
        (dict(max_total_num_tokens=20), [8, 16]),
        (dict(model_config=SimpleNamespace(context_len=8, num_hidden_layers=4)), [8]),
    ],
    ids=["cache", "context"],
)
def test_sizes_beyond_the_servers_limits_are_not_captured(captured, limits, sizes):
    _, graph = captured(**limits)
    assert graph.capture_num_tokens == sizes


def test_no_size_that_fits_is_one_warning_and_eager_prefill(captured, caplog):
    with caplog.at_level(logging.WARNING):
        runner, graph = captured(max_total_num_tokens=4)
    assert graph is None
    [message] = logged.texts(caplog, "CUDA graph")
    assert "no capture size fits" in message and "[8, 16, 32]" in message and " 4 " in message
    assert runner.prefill_graph_refusal.reason in message


@pytest.fixture
def memory_for(monkeypatch):
    """memory_for(tokens, run): no forward of more tokens runs, after `run` that did."""
    forward = breakable.BreakableRunner._forward

    def limit(tokens, run=0):
        ran = []

        def limited(self, batch, size):
            if size > tokens and len(ran) == run:
                raise torch.OutOfMemoryError("no memory")
            ran.extend([size] * (size > tokens))
            return forward(self, batch, size)

        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(breakable.BreakableRunner, "_forward", limited)

    return limit


@pytest.mark.parametrize(
    ("tokens", "run", "sizes"),
    [(20, 0, [8, 16]), (8, 0, [8]), (20, 1, [8, 16]), (0, 0, [])],
    ids=["no forward", "of two sizes", "no capture behind the first forward", "of any size"],
)
def test_the_largest_sizes_go_where_memory_is_too_small(captured, memory_for, tokens, run, sizes):
    """And the room for their output with them. Without a size prefill is eager."""
    memory_for(tokens, run)
    runner, graph = captured()
    if not sizes:
        assert graph is None and "too little memory" in runner.prefill_graph_refusal.reason
        return
    assert graph.capture_num_tokens == sizes == sorted(graph.graphs)
    assert len(graph.output) == sizes[-1]


def test_too_little_memory_on_one_of_several_ranks_is_an_error(captured, memory_for):
    """They would go on with different graphs, and wait for each other."""
    memory_for(8)
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
    runner, graph = captured()
    assert graph is None and named in runner.prefill_graph_refusal.reason


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
    runner, graph = captured()
    plain = replayed(runner, graph, batch_of([5]))
    monkeypatch.setattr(llama.LlamaForCausalLM, "forward", handing)
    with caplog.at_level(logging.WARNING):
        found = [replayed(runner, graph, batch_of([5])) for _ in range(2)]
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
    assert {len(slots) for slots in seen} == set(SIZES) and not any(slots.any() for slots in seen)


def test_padding_of_a_multimodal_model_is_zero(captured_kind):
    runner, graph, _ = captured_kind("qwen3_vl")
    replayed(runner, graph, batch_for("qwen3_vl", [32]))
    assert graph.inputs["positions"][:, 9:16].ne(0).all()
    replayed(runner, graph, batch_for("qwen3_vl", [6, 3]))
    assert graph.inputs["positions"][:, 9:16].eq(0).all()
    assert graph.inputs["out_cache_loc"][9:16].eq(0).all()


def test_batches_with_images_run_eagerly(captured_kind):
    _, graph, _ = captured_kind("qwen3_vl")
    image = schedule_batch.MultimodalInputs(
        mm_items=[schedule_batch.MultimodalDataItem(modality=schedule_batch.Modality.IMAGE)]
    )
    assert graph.why_not(batch_of([4], mm_inputs=[image])) == "the batch has images"
    assert graph.why_not(batch_of([4, 2], mm_inputs=[None, image])) == "the batch has images"
    assert graph.can_run(batch_of([4, 2], mm_inputs=[None, None]))


@HYBRID
def test_a_capture_publishes_the_attention_backend_and_a_replay_keeps_what_is_published(captured):
    """A model runner publishes it around its forward alone, and a draft's worker may have published
    another."""
    runner, graph = captured()
    assert not forward_context.has_forward_context()
    assert graph.replay(batch_of([5])).next_token_logits.isfinite().all()
    assert not forward_context.has_forward_context()
    seen, forward = [], CausalAttention.forward
    other = CausalAttention()
    other.forward = lambda *args, **kwargs: (
        seen.append(1) or forward(runner.attn_backend, *args, **kwargs)
    )
    with published(other):
        graph.replay(batch_of([5]))
    assert len(seen) == len(runner.attention_layers)


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
    runner, graph = captured(
        **changes | dict(server_args=arguments(**changes.get("server_args", {})))
    )
    assert graph is None and named in runner.prefill_graph_refusal.reason


# --- layers with recurrent states inside the graph

# before, a Mamba2 layer has no method of its own that could be
stood_in = pytest.mark.revision(">=0.5.10")


def _sums_by_table(now, hidden_states, output, layer_id):
    """hybrids.sums, of what the tables say instead of the batch."""
    cu, rows = now.tables.plan.cu.long(), torch.arange(len(hidden_states))
    real = (rows < cu[-1])[:, None]
    summed = torch.where(real, hidden_states, 0).cumsum(0)
    owner = torch.searchsorted(cu[1:], rows, right=True).clamp(max=now.tables.requests - 1)
    before = torch.cat([torch.zeros_like(summed[:1]), summed])[cu[:-1]][owner]
    return output, torch.where(real, (summed - before) / cu[-1], 0)


def _gated_sums_by_table(now, mixed_qkv, a, b, output, layer_id):
    """What hybrids.recurrent does, of what the tables say instead of the batch."""
    layer = ops.forward_context().attention_layers[layer_id]
    values = mixed_qkv[:, layer.q_dim + layer.k_dim :].unflatten(
        -1, (layer.num_v_heads, layer.head_v_dim)
    )
    gated = (values * a.sigmoid()[..., None] * b.sigmoid()[..., None]).flatten(1)
    _, sums = _sums_by_table(now, gated, output, layer_id)
    return output, sums.view_as(output)


@pytest.fixture
def captured_states(captured_kind, monkeypatch):
    """captured_states(kind): captured_kind() of a model whose layers with states are captured;
    their launches are stood in for."""
    for module in (layers.mamba2, gdn):
        monkeypatch.setattr(module, "why_not", lambda *_: None)
    monkeypatch.setattr(layers.mamba2, "chunk", lambda _: tiles.CHUNK)
    monkeypatch.setattr(layers.delta_rule, "other_kernels", lambda runner: None)
    monkeypatch.setitem(layers.RUN, "nemotron_mamba2_with_output", _sums_by_table)
    monkeypatch.setitem(layers.RUN, "unified_linear_attention_with_output", _gated_sums_by_table)
    monkeypatch.setitem(
        layers.RUN, "mixer_on_batch", lambda now, _, *rows, **more: _sums_by_table(now, *rows, 0)
    )

    def capture(kind="nemotron_h", **changes):
        if kind == "qwen3_5":
            monkeypatch.setenv(layers.SWITCH, "all")
        given = dict(req_to_token_pool=state_pool.Named(), dtype=torch.float32)
        return captured_kind(kind, **given | changes)

    return capture


@stood_in
@pytest.mark.parametrize("kind", ["nemotron_h", "qwen3_5", "falcon_h1"])
def test_captured_states_get_eager_prefills_logits(captured_states, kind):
    """Every batch after every other: each replay reads what its own batch left in the tables.
    Attention breaks, and it alone."""
    runner, graph, seen = captured_states(kind)
    assert attention_alone(runner, breaks_of(graph))
    wanted = {str(lengths): eager(runner, batch_for(kind, lengths)) for lengths in BATCHES}
    seen.clear()
    for first in BATCHES:
        for lengths in (first, *BATCHES[::3]):
            found = replayed(runner, graph, batch_for(kind, lengths))
            assert_alike(found, wanted[str(lengths)])
    assert not seen, "a layer with states ran eagerly"


@stood_in
def test_a_batch_replays_the_smallest_size_with_room_for_its_tokens(captured_states, monkeypatch):
    """However many requests it has, up to as many as tables have places for."""
    monkeypatch.setattr(tables, "MOST_REQUESTS", 16)
    runner, graph, _ = captured_states()
    for lengths, size in ([1] * 8, 8), ([1] * 15, 16), ([1] * 15 + [2], 32):
        batch = batch_of(lengths)
        assert graph.why_not(batch) is None
        assert_alike(replayed(runner, graph, batch), eager(runner, batch_of(lengths)))
        first = graph.tables[size].plan.cu[: len(lengths)]
        assert first.tolist() == [*range(len(lengths))]
    crowded = "more requests than the tables of states have places, 16"
    assert graph.why_not(batch_of([1] * 17)) == crowded


@stood_in
def test_batches_that_decode_or_leave_states_run_eagerly(captured_states):
    _, graph, _ = captured_states()
    assert graph.why_not(batch_of([5])) is None
    mixed = batch_of([5])
    mixed.forward_mode = forward_batch_info.ForwardMode.MIXED
    assert graph.why_not(mixed) == "requests that decode are in the batch"
    tracked = batch_of([5])
    tracked.mamba_track_mask = torch.tensor([True])
    assert graph.why_not(tracked) == "the prefix cache keeps states of the batch"


@stood_in
def test_a_layer_that_cannot_be_captured_breaks_and_says_why(captured_states, monkeypatch):
    runner, graph, _ = captured_states()
    assert graph.captured
    monkeypatch.setattr(layers.mamba2, "why_not", lambda *_: "no tiles")
    assert layers.of(runner) == "layer 0: no tiles"
    runner.req_to_token_pool.layer_transfer_counter = object()
    assert "hierarchical cache" in layers.of(runner)


@stood_in
def test_the_log_says_why_layers_break_and_nothing_where_they_do_not(
    captured_states, monkeypatch, caplog
):
    why = f"{layers.SWITCH}=break is set"
    with caplog.at_level(logging.INFO):
        _, graph, _ = captured_states()
        assert graph.captured and not logged.texts(caplog, why)
        monkeypatch.setenv(layers.SWITCH, "break")
        _, graph, seen = captured_states()
        assert graph is not None and not getattr(graph, "captured", None) and seen
    assert len(logged.texts(caplog, why)) == 1


@pytest.fixture
def keeping_states(captured_states, monkeypatch):
    """keeping_states(step): captured_states() on a server whose prefix cache keeps states behind
    each `step` tokens of a prefill."""

    def capture(step):
        monkeypatch.setattr(layers.ops, "mamba_cache_chunk_size", lambda: step)
        return captured_states(server_args=arguments(mamba_scheduler_strategy="extra_buffer"))

    return capture


from_extra_buffer = pytest.mark.revision(">=0.5.13")  # for NemotronH


@from_extra_buffer
def test_a_replay_knows_which_states_the_prefix_cache_keeps(keeping_states, monkeypatch):
    """Of its own batch alone: the one before it left others."""
    monkeypatch.setattr(tiles, "CHUNK", 8)
    runner, graph, seen = keeping_states(8)
    for lengths, wanted, rows in (
        ([20, 3, 8], [20, -1, 8], [16, 0, 8]),
        ([7, 20], [-1, 9], [0, 8]),
        ([5, 25], None, []),
    ):
        said = (
            {}
            if wanted is None
            else dict(
                mamba_track_mask=torch.tensor(wanted) > 0,
                mamba_track_seqlens=torch.tensor(wanted),
                mamba_track_indices=torch.arange(9, 9 + len(wanted)),
            )
        )
        expected = eager(runner, batch_of(lengths))
        seen.clear()
        assert_alike(replayed(runner, graph, batch_of(lengths, **said)), expected)
        assert not seen, "a Mamba2 layer ran eagerly"
        plan = graph.tables[32].plan
        assert plan.track_rows.tolist() == rows + [0] * (32 - len(rows))
        slots = [109 + i for i in range(len(rows))]  # their names inside of the pool
        assert plan.track_slots[: len(rows)].tolist() == slots


@from_extra_buffer
def test_layers_break_where_states_are_kept_within_chunks(keeping_states):
    runner, graph, _ = keeping_states(192)
    assert graph is not None and not getattr(graph, "captured", None)
    assert "192" in layers.of(runner) and "128" in layers.of(runner)


# --- sizes that nobody chose


@pytest.mark.parametrize("by_default", [True, False])
def test_the_report_says_which_sizes_were_captured_and_why(captured, by_default):
    """Default sizes, as the release makes them where nobody chose any, get others between them."""
    args = process.with_default_sizes(640, enable_breakable_cuda_graph=True)
    runner, graph = captured(server_args=args) if by_default else captured()
    sizes, why = graph.capture_num_tokens, graph.why_these_sizes
    assert sizes[-5:] == [512, 544, 576, 608, 640] if by_default else sizes == SIZES
    assert ("default" in why) is by_default
    runner.piecewise_cuda_graph_runner = graph
    said = f"captured {len(sizes)} sizes, {sizes[0]} to {sizes[-1]} tokens: {why}"
    assert verdict.explain(runner).reason == said
