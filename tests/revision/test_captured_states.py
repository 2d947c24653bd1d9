"""Layers with recurrent states inside a breakable graph, the overlay's or the release's own, on a
recorded graph. Sums of each request's own rows stand in for their launches (host/captures.py)."""

import logging

import pytest
import torch
from host import graph, late, logged, prefill, process
from host.captures import BATCHES, arguments, assert_alike, batch_for, batch_of

with late.modules():
    from sglang.srt.layers import communicator
    from sglang.srt.model_executor import forward_batch_info
    from sglang.srt.prefill_graph.captured import layers, own_runner, tables
    from sglang.srt.prefill_graph.kernels import tracked_states

# before, a Mamba2 layer has no method of its own that could be stood in for
pytestmark = pytest.mark.revision(">=0.5.10,<0.5.22")
OWN = pytest.mark.revision(">=0.5.14")
# the first that keeps states of Mamba2 prefills
KEEPS = pytest.mark.revision(">=0.5.13")
KINDS = ["nemotron_h", "qwen3_5", "falcon_h1"]


@pytest.mark.parametrize("kind", KINDS)
def test_they_get_eager_prefills_logits(captured_states, kind):
    """Every batch after every other: each replay reads what its own batch left in the tables.
    Attention breaks, and it alone."""
    server = captured_states(kind)
    assert server.attention_alone_breaks()
    wanted = {str(lengths): server.eager(batch_for(kind, lengths)) for lengths in BATCHES}
    server.seen.clear()
    for first in BATCHES:
        for lengths in (first, *BATCHES[::3]):
            found = server.replayed(batch_for(kind, lengths))
            assert_alike(found, wanted[str(lengths)])
    assert not server.seen, "a layer with states ran eagerly"


def test_a_batch_replays_the_smallest_size_with_room_for_its_tokens(captured_states, monkeypatch):
    """However many requests it has, up to as many as tables have places for."""
    monkeypatch.setattr(tables, "MOST_REQUESTS", 16)
    server = captured_states()
    for lengths, size in ([1, 1], 2), ([1] * 8, 8), ([1] * 15, 16), ([1] * 15 + [2], 32):
        assert server.why_not(batch_of(lengths)) is None
        wanted = server.eager(batch_of(lengths))
        assert_alike(server.replayed(batch_of(lengths)), wanted)
        first = server.tables(size).plan.cu[: len(lengths)]
        assert first.tolist() == [*range(len(lengths))]
    assert server.tables(32).requests == 16


def test_a_batch_that_also_decodes_is_replayed(captured_states):
    """--enable-mixed-chunk: a request that decodes has one row, behind what it had before."""
    server = captured_states()
    made = [batch_of([5, 1, 1], extend_prefix_lens_cpu=[0, 7, 70]) for _ in range(2)]
    for batch in made:
        batch.forward_mode = forward_batch_info.ForwardMode.MIXED
    wanted = server.eager(made[0])
    server.seen.clear()
    assert server.why_not(made[1]) is None
    assert_alike(server.replayed(made[1]), wanted)
    assert not server.seen, "a layer with states ran eagerly"
    assert server.tables(8).warm[:3].tolist() == [0, 1, 1]


def test_some_batches_run_eagerly(captured_states, monkeypatch):
    monkeypatch.setattr(tables, "MOST_REQUESTS", 8)
    server, drafts, tracked = captured_states(), batch_of([5]), batch_of([5])
    drafts.forward_mode = forward_batch_info.ForwardMode.TARGET_VERIFY
    tracked.mamba_track_mask = torch.tensor([True])
    refused = {
        "the prefix cache keeps states of the batch": tracked,
        "more requests than the tables of states have places, 8": batch_of([1] * 9),
    }
    for reason, batch in {**refused, "drafts are being verified": drafts}.items():
        assert server.why_not(batch) == reason
        assert not server.can_run(batch)
    assert server.why_not(batch_of([5])) is None
    # where layers break, all of them may be replayed
    server.graph.captured = server.graph.captured_states = None
    assert all(map(server.can_run, refused.values()))


def test_a_layer_that_cannot_be_captured_breaks_and_says_why(captured_states, monkeypatch):
    server = captured_states()
    assert server.captured
    monkeypatch.setattr(layers.mamba2, "why_not", lambda *_: "no tiles")
    assert layers.of(server.runner) == "layer 0: no tiles"
    server.runner.req_to_token_pool.layer_transfer_counter = object()
    assert "hierarchical cache" in layers.of(server.runner)


@pytest.mark.parametrize("kind", ["nemotron_h", "qwen3_5"])
def test_one_switch_turns_it_off_and_the_log_says_so(captured_states, monkeypatch, caplog, kind):
    why = f"{layers.SWITCH}=break is set"
    monkeypatch.delenv(layers.SWITCH, raising=False)
    with caplog.at_level(logging.INFO):
        assert captured_states(kind).captured and not logged.texts(caplog, why)
        monkeypatch.setenv(layers.SWITCH, "break")
        server = captured_states(kind)
    assert server.graph is not None and not server.captured
    assert len(logged.texts(caplog, why)) == 1
    assert len(logged.warnings(caplog, why)) == late.has(prefill.RUNNER)
    assert not getattr(server.graph, "use_captured_attn_metadata", False)
    wanted, batch = server.eager(batch_for(kind, [3, 4])), batch_for(kind, [3, 4])
    server.seen.clear(), server.runner.attn_backend.planned.clear()
    assert_alike(server.replayed(batch), wanted)
    assert server.seen and server.runner.attn_backend.planned == [batch]


def keeping_states(captured_states, monkeypatch, step, kind="nemotron_h"):
    """`captured_states` where the prefix cache keeps states behind each `step` tokens."""
    monkeypatch.setattr(layers.ops, "mamba_cache_chunk_size", lambda: step)
    return captured_states(kind, server_args=arguments(**process.extra_buffer()))


def tracked(lengths, prefixes, wanted):
    """A batch that leaves a state behind so many new tokens of each request, in slots from 9 on;
    -1: none; None: the batch says nothing."""
    if wanted is None:
        return batch_of(lengths)
    cached = dict(extend_prefix_lens=torch.tensor(prefixes), extend_prefix_lens_cpu=prefixes)
    said = graph.said_of(lengths, prefixes, wanted)
    said["mamba_track_indices"] = torch.arange(9, 9 + len(wanted))
    return batch_of(lengths, **said, **cached)


KEPT = [  # lengths, cached tokens, what is wanted, and the rows behind which states are kept
    ([20, 3, 8], [0, 8, 8], [20, -1, 8], [16, 0, 8]),
    ([7, 20], [0, 0], [-1, 9], [0, 8]),
    ([5, 25], [0, 0], None, []),
]


@KEEPS
def test_a_replay_knows_which_states_the_prefix_cache_keeps(captured_states, monkeypatch):
    """Of its own batch alone: the one before it left others. Behind a last whole chunk, in the
    slots by their names inside of the pool."""
    monkeypatch.setattr(layers.tiles, "CHUNK", 8)
    server = keeping_states(captured_states, monkeypatch, 8)
    for lengths, prefixes, wanted, rows in KEPT:
        expected = server.eager(batch_of(lengths))
        server.seen.clear(), server.runner.attn_backend.planned.clear()
        assert_alike(server.replayed(tracked(lengths, prefixes, wanted)), expected)
        assert not server.seen, "a Mamba2 layer ran eagerly"
        assert not server.runner.attn_backend.planned
        plan = server.tables(32).plan
        assert plan.track_rows.tolist() == rows + [0] * (32 - len(rows))
        slots = [109 + i for i in range(len(rows))]
        assert plan.track_slots[: len(rows)].tolist() == slots


@KEEPS
@pytest.mark.parametrize("kind, chunk", [("nemotron_h", 128), ("qwen3_5", 64)])
def test_layers_break_where_states_are_kept_within_chunks(
    captured_states, monkeypatch, caplog, kind, chunk
):
    assert keeping_states(captured_states, monkeypatch, chunk, kind).captured.step == chunk
    step = chunk * 3 // 2
    reason = f"the prefix cache keeps states behind each {step} tokens, and chunks have {chunk}"
    with caplog.at_level(logging.INFO):
        server = keeping_states(captured_states, monkeypatch, step, kind)
    assert server.graph is not None and not server.captured
    assert layers.of(server.runner) == reason
    assert logged.texts(caplog, reason) and not logged.warnings(caplog, reason)


# --- in the release's own runner


@OWN
def test_a_replay_plans_for_attention_alone(captured_states):
    """The plan of the other half waits for the device."""
    server = captured_states()
    attention = server.runner.attn_backend
    attention.planned.clear()
    server.replayed(batch_of([3, 4]))
    assert not attention.planned and attention.lengths == [3, 4] and attention.snapshots == [8]


def capture_again(server, size):
    with server.graph.backend.capture_session(None):
        server.graph.capture_one_shape(size)


@OWN
def test_tables_have_the_slots_of_the_pool(captured_states):
    """A placeholder's state goes to the slot that no request owns, whatever ran before it."""
    server, batch = captured_states(), batch_of([2, 9, 1])
    batch.extend_prefix_lens_cpu = [0, 5, 0]
    server.replayed(batch)
    made = server.tables(16)
    assert made.slots[:3].tolist() == [101, 102, 103]
    assert made.warm.tolist() == [0, 1, 0, *[0] * 13]
    assert made.plan.cu.tolist() == [0, 2, 11, *[12] * 14]
    capture_again(server, 16)
    made = server.tables(16)
    assert made.slots.tolist() == [0] * 16 and made.plan.cu.tolist() == [0, *[16] * 16]


@OWN
@pytest.mark.revision("<0.5.17")  # later releases ask in another place
def test_nobody_asks_the_device_which_states_to_leave(captured_states, monkeypatch):
    asked = []
    monkeypatch.setattr(layers.tiles, "CHUNK", 4)
    monkeypatch.setattr(tracked_states.Answered, "of", lambda mask: asked.append(mask) or mask)
    keeping_states(captured_states, monkeypatch, 4).replayed(tracked([9, 3], [0, 0], [9, -1]))
    assert not asked
    monkeypatch.setenv(layers.SWITCH, "break")  # where layers break, one question is for all
    keeping_states(captured_states, monkeypatch, 4).replayed(tracked([9, 3], [0, 0], [9, -1]))
    assert len(asked) >= 1


@OWN
def test_a_capture_leaves_no_state_for_the_prefix_cache(captured_states, monkeypatch):
    """Where weights were updated it comes behind requests, whose slots may be in the cache."""
    monkeypatch.setattr(layers.tiles, "CHUNK", 4)
    server = keeping_states(captured_states, monkeypatch, 4)
    server.replayed(tracked([9, 3], [0, 0], [9, -1]))
    assert server.tables(16).plan.track_rows.any()
    capture_again(server, 16)
    assert not server.tables(16).plan.track_rows.any()


@OWN
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
def test_other_runners_keep_their_breaks(captured_states, changes, reason):
    graph = captured_states().graph
    graph.use_captured_attn_metadata = False
    assert own_runner.of(graph) is not None
    vars(graph).update(changes)
    assert own_runner.of(graph) == reason


@pytest.mark.revision(">=0.5.15,<0.5.21")  # before, none does; later, asked elsewhere
@pytest.mark.parametrize("fuses", [False, True])
def test_captured_launches_know_who_sums_over_the_ranks(captured_states, monkeypatch, fuses):
    """Where the next norm does, the last projection must not."""
    seen = []

    def run(mixer, states, tables, hidden_states, fuses_reduce):
        seen.append((states, fuses_reduce))
        return hidden_states * 0

    server = captured_states()
    monkeypatch.setattr(layers.mamba2, "run", run)
    monkeypatch.setitem(layers.RUN, "nemotron_mamba2_with_output", layers._run_mamba2)
    name = "should_fuse_mlp_allreduce_with_next_layer"
    monkeypatch.setattr(communicator.LayerCommunicator, name, lambda self, batch: fuses)
    capture_again(server, 16)
    owners = enumerate(server.runner.attention_layers)
    mixers = [i for i, layer in owners if hasattr(layer, "mixer")]
    assert set(seen) == {(f"the states of layer {i}", fuses) for i in mixers}
