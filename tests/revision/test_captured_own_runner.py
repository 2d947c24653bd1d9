"""Mamba2 layers inside the graph of the release's own prefill runner, captured on a recorded
graph."""

import logging
from types import SimpleNamespace

import pytest
import torch
from host import hybrids, late, prefill, process, segments, state_pool
from test_breakable_runner import (
    BATCHES,
    CausalAttention,
    _sums_by_table,
    assert_alike,
    attention_alone,
    batch_of,
    eager,
)

with late.modules():
    from sglang.srt.layers import communicator
    from sglang.srt.model_executor import cuda_graph_config, forward_batch_info
    from sglang.srt.prefill_graph.captured import layers, own_runner, tables
    from sglang.srt.prefill_graph.kernels import tracked_states
    from sglang.srt.prefill_graph.model import layers as model_layers
    from sglang.srt.prefill_graph.model import stack
    from sglang.srt.speculative import spec_info

pytestmark = pytest.mark.revision(">=0.5.14,<0.5.22")
SIZES = [2, 8, 16, 32]  # a batch is padded to twice its tokens at most
SWITCH = "SGLANG_PREFILL_GRAPH_STATES"


class Attention(CausalAttention):
    """A hybrid backend as the runner sees one. planned: the batches that its linear half prepared;
    snapshots: of how many rows it was asked for what replays share (from 0.5.19)."""

    use_captured_forward_metadata_for_breakable_cuda_graph = False

    def __init__(self):
        super().__init__()
        self.planned, self.snapshots = [], []

    def prepare_prefill_shared_read_snapshot(self, batch, num_qo_tokens):
        self.snapshots.append(num_qo_tokens)

    def init_forward_metadata(self, forward_batch):
        super().init_forward_metadata(forward_batch)
        self.planned.append(forward_batch)

    @property
    def full_attn_backend(self):
        return SimpleNamespace(init_forward_metadata=super().init_forward_metadata)


def model_runner(model, attention, **changes):
    """A ModelRunner as far as the prefill graph looks at it. changes: of its server arguments."""
    table = model_layers.describe(stack.find(model).layers)
    graphs = SimpleNamespace(
        bs=SIZES,
        backend=cuda_graph_config.Backend.BREAKABLE,
        full_prefill_max_req=1,
        tc_compiler="eager",
        max_context_size=None,  # asked on 0.5.21, as the pool's table
    )
    args = process.default_server_args(
        **dict(
            cuda_graph_config=SimpleNamespace(prefill=graphs, decode=graphs),
            mamba_radix_cache_strategy="no_buffer",
        )
        | changes
    )
    process.use_server_args(args)
    pool = state_pool.Named()
    pool.req_to_token = torch.zeros(pool.size, 4096)
    # from 0.5.20 on the arguments do not say
    pool.enable_mamba_extra_buffer = args.mamba_radix_cache_strategy == "extra_buffer"
    return SimpleNamespace(
        server_args=args,
        spec_algorithm=spec_info.SpeculativeAlgorithm.from_string(None),
        model=model,
        attn_backend=attention,
        device="cpu",
        dtype=torch.float32,
        gpu_id=0,
        tp_size=1,
        dp_size=1,
        pp_size=1,
        tp_group=SimpleNamespace(barrier=lambda: None),
        model_config=SimpleNamespace(
            hidden_size=128,
            is_multimodal=False,
            vocab_size=256,
            is_encoder_decoder=False,
            context_len=4096,
            # 0.5.17's runner asks for DeepSeek's attention
            hf_config=SimpleNamespace(architectures=[type(model).__name__]),
            is_mla_breakable_cuda_graph_supported=False,
        ),
        req_to_token_pool=pool,
        token_to_kv_pool=None,
        pp_group=SimpleNamespace(is_first_rank=True, is_last_rank=True),
        lora_manager=None,
        is_multimodal=False,
        is_generation=True,
        is_draft_worker=False,
        is_hybrid_swa=False,
        graph_shared_output=None,
        attention_layers=table.attention_layers,
        moe_layers=table.moe_layers,
        moe_fusions=table.moe_fusions,
        dsa_indexers=[],
        mha_companion_layers=[None] * len(table.attention_layers),
        tp_rank=0,
        pp_rank=0,
        dp_rank=None,
        moe_ep_rank=0,
        attn_tp_sequence_sharded=lambda *_: False,  # from here on asked from 0.5.19 on
        ngram_embedding_manager=SimpleNamespace(enabled=False),
        prepare_dummy_forward_batch=lambda batch: batch,
        get_pp_proxy_topk_size=lambda: None,
        get_pp_proxy_residual_num_blocks=lambda: None,
        get_pp_proxy_dspark_hidden_size=lambda: None,
    )


@pytest.fixture
def captured(build_model, monkeypatch):
    """captured(): the model runner of a small NemotronH, the release's runner that captured it, and
    the batches that Mamba2 layers were given eagerly. Their captured launches are stood in for by
    the sums that their breaks make."""
    module = prefill.captures_on_cpu(monkeypatch)
    monkeypatch.setattr(layers.mamba2, "why_not", lambda *_: None)
    monkeypatch.setattr(layers.mamba2, "chunk", lambda _: layers.tiles.CHUNK)
    monkeypatch.setitem(
        layers.RUN, "nemotron_mamba2_with_output", lambda *given: _sums_by_table(*given[:4])
    )
    monkeypatch.delenv(SWITCH, raising=False)
    seen = hybrids.on_cpu(monkeypatch)
    with segments.recording(monkeypatch), torch.no_grad():

        def capture(**changes):
            model = build_model("nemotron_h", device="cpu", dtype=torch.float32)
            made = model_runner(model, hybrids.recurrent(Attention(), seen), **changes)
            return made, module.PrefillCudaGraphRunner(made), seen

        yield capture


def tables_of(graph, size):
    """What a size was captured with."""
    kept = graph.attn_metadata_buffers.items()  # from 0.5.21 on by ShapeKey
    return {getattr(key, "size", key): made for key, made in kept}[size]


def replayed(graph, batch):
    assert graph.can_run_graph(batch)
    return graph.execute(batch).next_token_logits[: batch.batch_size]


def test_batches_get_eager_prefills_logits(captured):
    """Every batch after every other: each replay reads what its own batch left in the tables."""
    runner, graph, seen = captured()
    wanted = {str(lengths): eager(runner, batch_of(lengths)) for lengths in BATCHES}
    seen.clear()
    for first in BATCHES:
        for lengths in (first, *BATCHES[::3]):
            found = replayed(graph, batch_of(lengths))
            assert_alike(found, wanted[str(lengths)])
    assert not seen, "a Mamba2 layer ran eagerly"


def test_attention_alone_breaks(captured):
    runner, graph, _ = captured()
    [one] = [found for key, found in graph.backend._graphs.items() if key.size == 16]
    assert attention_alone(runner, one._break_fns)


@pytest.mark.parametrize("said", ["capture", "all", "1"])
def test_layers_are_captured_whatever_else_is_said(captured, monkeypatch, said):
    monkeypatch.setenv(SWITCH, said)
    _, graph, _ = captured()
    assert graph.captured_states and graph.use_captured_attn_metadata


def test_one_switch_turns_it_off(captured, monkeypatch):
    monkeypatch.setenv(SWITCH, "break")
    runner, graph, seen = captured()
    assert graph.captured_states is None and not graph.use_captured_attn_metadata
    wanted, batch = eager(runner, batch_of([3, 4])), batch_of([3, 4])
    seen.clear(), runner.attn_backend.planned.clear()
    assert_alike(replayed(graph, batch), wanted)
    assert seen and runner.attn_backend.planned == [batch]


def test_a_replay_plans_for_attention_alone(captured):
    """The plan of the other half waits for the device."""
    runner, graph, _ = captured()
    runner.attn_backend.planned.clear()
    replayed(graph, batch_of([3, 4]))
    assert not runner.attn_backend.planned and runner.attn_backend.lengths == [3, 4]
    assert runner.attn_backend.snapshots == [8]


def test_tables_have_the_slots_of_the_pool(captured):
    """A placeholder's state goes to the slot that no request owns, whatever ran before it."""
    _, graph, _ = captured()
    batch = batch_of([2, 9, 1])
    batch.extend_prefix_lens_cpu = [0, 5, 0]
    replayed(graph, batch)
    made = tables_of(graph, 16)
    assert made.slots[:3].tolist() == [101, 102, 103]
    assert made.warm.tolist() == [0, 1, 0, *[0] * 13]
    assert made.plan.cu.tolist() == [0, 2, 11, *[12] * 14]
    with graph.backend.capture_session(None):
        graph.capture_one_shape(16)
    made = tables_of(graph, 16)
    assert made.slots.tolist() == [0] * 16 and made.plan.cu.tolist() == [0, *[16] * 16]


def test_requests_have_places_apart_from_rows(captured, monkeypatch):
    """A token each: a size has a place for each of its rows, up to as many as tables have."""
    monkeypatch.setattr(tables, "MOST_REQUESTS", 16)
    runner, graph, _ = captured()
    for lengths, size in ([1, 1], 2), ([1] * 8, 8), ([1] * 15 + [2], 32):
        batch = batch_of(lengths)
        assert own_runner.why_not(graph, batch) is None
        wanted = eager(runner, batch_of(lengths))
        assert_alike(replayed(graph, batch), wanted)
        first = tables_of(graph, size).plan.cu[: len(lengths)]
        assert first.tolist() == [*range(len(lengths))]
    assert tables_of(graph, 32).requests == 16
    crowded = "more requests than the tables of states have places, 16"
    assert own_runner.why_not(graph, batch_of([1] * 17)) == crowded


def test_some_batches_run_eagerly(captured, monkeypatch):
    monkeypatch.setattr(tables, "MOST_REQUESTS", 8)
    _, graph, _ = captured()
    mixed, tracked = batch_of([5]), batch_of([5])
    mixed.forward_mode = forward_batch_info.ForwardMode.MIXED
    tracked.mamba_track_mask = torch.tensor([True])
    crowded = batch_of([1] * 9)
    refused = {
        "requests that decode are in the batch": mixed,
        "the prefix cache keeps states of the batch": tracked,
        "more requests than the tables of states have places, 8": crowded,
    }
    for reason, batch in refused.items():
        assert own_runner.why_not(graph, batch) == reason
        assert not graph.can_run_graph(batch)
    assert own_runner.why_not(graph, batch_of([5])) is None
    graph.captured_states = None  # where layers break, all of them may be replayed
    assert all(map(graph.can_run_graph, refused.values()))


@pytest.mark.parametrize(
    "changes, reason",
    [
        (
            dict(enable_hierarchical_cache=True),
            "the hierarchical cache brings states layer by layer",
        ),
        (
            dict(enable_dp_attention=True),
            "layers gather tokens of other ranks, which may be idle",
        ),
    ],
    ids=str,
)
def test_layers_break_and_the_log_says_why(captured, monkeypatch, caplog, changes, reason):
    told = f"Layers with recurrent states run between the prefill graph's segments: {reason}"
    with caplog.at_level(logging.INFO):
        runner, graph, _ = captured()
        assert graph.captured_states and told not in caplog.messages
        runner.server_args = SimpleNamespace(**vars(runner.server_args) | changes)
        graph.use_captured_attn_metadata = False
        own_runner.offer(graph)
    assert graph.captured_states is None and caplog.messages.count(told) == 1


def tracked(lengths, prefixes, wanted):
    """A batch that leaves a state behind so many new tokens of each request, in slots from 20 on;
    -1: none."""
    batch = batch_of(lengths)
    batch.extend_prefix_lens_cpu = prefixes
    batch.extend_prefix_lens = torch.tensor(prefixes)
    batch.mamba_track_mask = torch.tensor(wanted) > 0
    batch.mamba_track_seqlens = torch.tensor(wanted) + batch.extend_prefix_lens
    batch.mamba_track_indices = torch.arange(20, 20 + len(lengths))
    return batch


@pytest.fixture
def keeps_states(monkeypatch):
    """A server whose prefix cache keeps the states of prefills, behind each four tokens."""
    monkeypatch.setattr(layers.tiles, "CHUNK", 4)
    monkeypatch.setattr(layers.ops, "mamba_cache_chunk_size", lambda: 4)
    return dict(mamba_radix_cache_strategy="extra_buffer")


def test_states_for_the_prefix_cache_are_left_in_the_graph(captured, keeps_states):
    """Behind the last whole chunk, in the slots by their names inside of the pool; behind it other
    batches leave none."""
    runner, graph, seen = captured(**keeps_states)
    made = tables_of(graph, 16)
    wanted = eager(runner, batch_of([9, 3, 4]))
    seen.clear(), runner.attn_backend.planned.clear()
    found = replayed(graph, tracked([9, 3, 4], [0, 8, 4], [9, -1, 4]))
    assert_alike(found, wanted)
    assert not seen and not runner.attn_backend.planned
    assert made.plan.track_rows.tolist() == [8, 0, 4, *[0] * 13]
    assert made.plan.track_slots[[0, 2]].tolist() == [120, 122]
    replayed(graph, batch_of([5, 5]))  # a batch that says nothing
    assert not made.plan.track_rows.any()


@pytest.mark.revision("<0.5.17")  # later releases ask in another place
def test_nobody_asks_the_device_which_states_to_leave(captured, keeps_states, monkeypatch):
    asked = []
    monkeypatch.setattr(tracked_states.Answered, "of", lambda mask: asked.append(mask) or mask)
    _, graph, _ = captured(**keeps_states)
    replayed(graph, tracked([9, 3], [0, 0], [9, -1]))
    assert not asked
    monkeypatch.setenv(SWITCH, "break")  # where layers break, one question is for all of them
    _, graph, _ = captured(**keeps_states)
    replayed(graph, tracked([9, 3], [0, 0], [9, -1]))
    assert len(asked) >= 1


def test_a_capture_leaves_no_state_for_the_prefix_cache(captured, keeps_states):
    """It comes behind requests too, where weights were updated: their slots may be in the cache by
    then."""
    _, graph, _ = captured(**keeps_states)
    replayed(graph, tracked([9, 3], [0, 0], [9, -1]))
    assert tables_of(graph, 16).plan.track_rows.any()
    with graph.backend.capture_session(None):
        graph.capture_one_shape(16)
    assert not tables_of(graph, 16).plan.track_rows.any()


@pytest.mark.parametrize(
    "changes, reason",
    [
        (dict(backend=object()), "the graph is captured by a object"),
        (
            dict(enable_cp_bcg_capture=True),
            "context parallelism gives each rank a part of the rows",
        ),
        (
            dict(use_captured_attn_metadata=True),
            "the attention backend has metadata of its own for the graph",
        ),
    ],
    ids=["backend", "context parallelism", "metadata"],
)
def test_other_runners_keep_their_breaks(captured, changes, reason):
    _, graph, _ = captured()
    graph.use_captured_attn_metadata = False
    assert own_runner.of(graph) is not None
    vars(graph).update(changes)
    assert own_runner.of(graph) == reason


@pytest.mark.revision(">=0.5.15,<0.5.21")  # before, none does; later, asked elsewhere
@pytest.mark.parametrize("fuses", [False, True])
def test_captured_launches_know_who_sums_over_the_ranks(captured, monkeypatch, fuses):
    """Where the next norm does, the last projection must not."""
    seen = []

    def run(mixer, states, tables, hidden_states, fuses_reduce):
        seen.append((states, fuses_reduce))
        return hidden_states * 0

    monkeypatch.setattr(layers.mamba2, "run", run)
    monkeypatch.setitem(layers.RUN, "nemotron_mamba2_with_output", layers._run_mamba2)
    monkeypatch.setattr(
        communicator.LayerCommunicator,
        "should_fuse_mlp_allreduce_with_next_layer",
        lambda self, batch: fuses,
    )
    runner, _, _ = captured()
    mixers = [i for i, layer in enumerate(runner.attention_layers) if hasattr(layer, "mixer")]
    assert {(states, said) for states, said in seen} == {
        (f"the states of layer {i}", fuses) for i in mixers
    }
