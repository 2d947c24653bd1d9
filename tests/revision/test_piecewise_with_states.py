"""Layers with recurrent states inside the pieces of the piecewise graph: what is split, what is
captured, and the tables of each replay."""

import contextlib
import logging
import sys
from types import SimpleNamespace

import pytest
import torch
from host import bodies, graph, late, process, replayed, state_pool
from host.captures import batch_of, sums_by_table

with late.modules():
    from sglang.srt.prefill_graph.breakable import runner as set_up
    from sglang.srt.prefill_graph.captured import layers, tables
    from sglang.srt.prefill_graph.compat import eager, ops
    from sglang.srt.prefill_graph.model import layers as described
    from sglang.srt.prefill_graph.model import stack
    from sglang.srt.prefill_graph.piecewise import op_function, with_states

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.14")
MAMBA2, NET = "nemotron_mamba2_with_output", "unified_linear_attention_with_output"
PATTERN = "M-M*M-"
ROWS, REAL = 8, 5


def tables_of(tokens, places, lengths):
    """Tables of a size on the CPU, with a batch of `lengths`."""
    made = tables.Tables(tokens, places, 16, torch.device("cpu"))
    made.fill(lengths, [False] * len(lengths), torch.arange(1, places + 1))
    return made


# --- the ops


def test_the_layers_that_can_be_captured_are_those_that_are_not_split_at():
    assert {*ops.RECURRENT, "mixer_on_batch"} == {*layers.RUN}  # a break, not a split op


@pytest.mark.parametrize("op", [MAMBA2, NET])
def test_an_op_fills_its_output_while_its_layer_is_captured(op, monkeypatch):
    """A custom op must not give another memory to its argument; a break does."""
    calls = []

    def function(hidden_states: torch.Tensor, output: torch.Tensor, layer_id: int) -> None:
        calls.append(layer_id)

    def run(now, hidden_states, output, layer_id):
        return output, hidden_states * now.tables.tokens + layer_id

    monkeypatch.setitem(layers.RUN, op, run)
    either = op_function.or_captured(function, op)
    rows = torch.ones(ROWS, 4)
    output = torch.zeros_like(rows)
    memory = output.data_ptr()
    with tables.capturing_into(tables_of(ROWS, 2, [REAL]), None):
        either(rows, output, 3)
    assert output.data_ptr() == memory and bool((output == ROWS + 3).all()) and not calls
    either(rows, output, 4)
    monkeypatch.setitem(sys.modules, layers.__name__, None)  # as in a tree that captures no layers
    either(rows, output, 5)
    assert calls == [4, 5]
    assert op_function.or_captured(function, "unified_attention_with_output") is function


@pytest.mark.parametrize("name", ["models.nemotron_h", "layers.radix_linear_attention"])
def test_the_releases_own_op_is_captured(name, monkeypatch):
    """What the release registers, or this package where it has no such op."""
    op = MAMBA2 if name.startswith("models") else NET
    module = bodies.load_undecorated(f"sglang.srt.{name}", monkeypatch)
    run = getattr(module, op, None) or getattr(torch.ops.sglang, op)
    monkeypatch.setitem(layers.RUN, op, lambda now, *given: (given[-2], given[0] + 1))
    rows, rest = torch.ones(ROWS, 4), [torch.ones(ROWS, 2)] * 2 if op == NET else []
    output = torch.zeros_like(rows)
    with tables.capturing_into(tables_of(ROWS, 2, [REAL]), None):
        run(rows, *rest, output, 0)
    assert bool((output == 2).all())


# --- the pieces


@pytest.fixture
def traced(build_model, monkeypatch):
    """traced(lengths): NemotronH's stack, split and run by the release's compiler, on tables."""
    with monkeypatch.context() as plain:
        undecorated = bodies.load_undecorated("sglang.srt.models.nemotron_h", plain)
    monkeypatch.setitem(layers.RUN, MAMBA2, sums_by_table)
    nemotron = build_model("nemotron_h", device="cpu", dtype=torch.float32, pattern=PATTERN)
    lists = graph.lists_of(described.describe(stack.find(nemotron).layers))
    batch = graph.prefill_batch(ROWS, extend_num_tokens=REAL)

    def run(lengths):
        with contextlib.ExitStack() as inside:
            enter = inside.enter_context
            enter(graph.copying_attention())
            if hasattr(undecorated, MAMBA2):  # else this package's op, which runs on any device
                enter(graph.cpu_kernel(MAMBA2, getattr(undecorated, MAMBA2)))
            enter(ops.not_split_at(ops.RECURRENT))
            enter(tables.capturing_into(tables_of(ROWS, 4, lengths), None))
            return graph.traced_forward(nemotron, batch, lists, ROWS)

    return run


def test_a_model_is_split_at_attention_alone(traced):
    pieces = traced([REAL]).pieces
    assert [piece.op for piece in pieces] == ["", "sglang.unified_attention_with_output", ""]
    assert all(piece.has_size for piece in pieces if not piece.op)


def test_the_pieces_read_the_tables(traced):
    """The layers stood in for sum up a request's rows: a second request begins anew."""
    [one, _], [two, _] = traced([REAL]).outputs, traced([2, 3]).outputs
    torch.testing.assert_close(one[:2], two[:2])
    assert not torch.isclose(one[2:REAL], two[2:REAL]).all(-1).any()
    assert one.isfinite().all()


# --- the runner


@pytest.fixture
def states():
    return layers.Captured(state_pool.Named(), chunk=16)


def test_sizes_are_captured_with_their_tables_and_nothing_is_split_at_their_layers(states):
    import sglang.srt.layers.radix_linear_attention
    import sglang.srt.models.nemotron_h  # noqa: F401

    told, before = [], list(graph.split_ops())
    recurrent = {f"sglang.{name}" for name in ops.RECURRENT}

    class Release:
        """As the release's runner goes about it."""

        def __init__(self, runner):
            self.device = "cpu"
            told.append(list(graph.split_ops()))
            self.capture_one_batch_size(16)
            self.capture_one_batch_size(8)

        def capture_one_batch_size(self, num_tokens):
            now = tables.current()
            told.append((num_tokens, now.tables.tokens, now.states(3)))

    with_states._class(Release)(None, states)
    assert recurrent < set(before) and graph.split_ops() == before
    assert told[0] == [op for op in before if op not in recurrent]
    assert told[1:] == [(16, 16, "the states of layer 3"), (8, 8, "the states of layer 3")]
    assert tables.current() is None and sorted(states.made) == [8, 16]


class Attention:
    """A hybrid backend as the runner sees one: which halves prepared which batch. before: from
    0.5.13 on states are copied out of the prefix cache first."""

    def __init__(self):
        self.prepared, self.before = [], []
        self.full_attn_backend = SimpleNamespace(
            init_forward_metadata=lambda batch: self.prepared.append("full")
        )
        self.linear_attn_backend = SimpleNamespace(
            init_forward_metadata=lambda batch: self.prepared.append("linear"),
            _execute_deferred_mamba_cow_and_clear=self.before.append,
        )
        self.attn_backend_list = [self.full_attn_backend, self.linear_attn_backend]

    def init_forward_metadata(self, batch):
        for half in self.attn_backend_list:
            half.init_forward_metadata(batch)


def replays(states, layers):
    """The release's own runner with `states` inside and no graph behind it, and its backend.
    layers(batch): what runs in the place of the graph."""
    attention = Attention()
    made = replayed.Replays("piecewise", attention, layers, derive=with_states._class)
    made.runner.states = states
    made.runner.max_num_tokens = replayed.SIZES[-1]
    for size in replayed.SIZES:
        states.placeholder(size, "cpu")
    return made, attention


@pytest.mark.parametrize(
    "lengths, size",
    [([60], 64), ([3, 4, 5], 64), ([1] * 64, 64), ([15] * 9, 256), ([65], 256)],
    ids=str,
)
def test_a_batch_replays_the_smallest_size_with_room_for_its_tokens(lengths, size, states):
    told = []

    def layers(batch):
        made = states.made[size]
        cu, slots = made.plan.cu.tolist(), made.slots[: len(lengths)].tolist()
        told.append((len(batch.input_ids), cu[len(lengths)], slots))

    made, attention = replays(states, layers)
    batch = batch_of(lengths)
    assert made.runner.can_run(batch)
    made.run(batch)
    assert told == [(size, sum(lengths), [101 + i for i in range(len(lengths))])]
    assert attention.prepared == ["full"] and attention.before == [batch]
    assert attention.attn_backend_list == [
        attention.full_attn_backend,
        attention.linear_attn_backend,
    ]


def test_a_forward_that_fails_leaves_the_runner_as_it_was(states):
    def layers(batch):
        raise ZeroDivisionError

    made, attention = replays(states, layers)
    with pytest.raises(ZeroDivisionError):
        made.run(batch_of([15] * 9))
    assert made.runner.capture_num_tokens == [64, 256] and len(attention.attn_backend_list) == 2


def test_batches_that_cannot_be_replayed_run_eagerly_and_say_why(states):
    made, _ = replays(states, print)
    del made.runner.layer_model  # which a breakable runner has
    runner = SimpleNamespace(piecewise_cuda_graph_runner=made.runner)
    many, long = batch_of([1] * 65), batch_of([257])
    assert not made.runner.can_run(many)
    reason = "more requests than the tables of states have places, 64"
    assert eager.why(runner, many) == reason
    assert not made.runner.can_run(long)
    assert "places" not in eager.why(runner, long)
    assert made.runner.can_run(batch_of([3]))


# --- which servers


@pytest.fixture
def of(monkeypatch, caplog):
    """of(found, **server_args): what is captured where the layers could be, and what was logged."""

    def ask(found, tp_rank=0, **server_args):
        caplog.clear()
        monkeypatch.setattr(layers, "of", lambda runner: found)
        runner = SimpleNamespace(server_args=SimpleNamespace(**server_args), tp_rank=tp_rank)
        with caplog.at_level(logging.INFO, with_states.__name__):
            made = with_states.of(runner)
        return made, [one.getMessage() for one in caplog.records]

    return ask


def test_a_server_captures_such_layers_or_is_split_as_before_and_says_why(of):
    said = "The prefill graph is split at layers with recurrent states: "
    found = layers.Captured(state_pool.Named())
    made, told = of(found)
    assert made is found and not told
    switched_off = "SGLANG_PREFILL_GRAPH_STATES=break is set"
    assert of(switched_off) == (None, [said + switched_off])
    assert of("no tiles", tp_rank=1) == of(None) == (None, [])
    made, told = of(found, enable_dp_attention=True)
    assert made is None
    assert told == [said + "layers gather tokens of other ranks, which may be idle"]


@pytest.fixture
def admitted(monkeypatch):
    """A GPU without memory to count, and a model that the piecewise graph takes."""
    monkeypatch.setattr(set_up.model_runner, "free_memory", lambda runner: 0.0)
    monkeypatch.setattr(set_up.admission, "admits", lambda runner: True)
    monkeypatch.setattr(set_up, "_admits_sparse", lambda *_: True)


@pytest.mark.parametrize("breakable", [False, True])
def test_set_up_captures_the_graph_that_is_asked_for(
    admitted, breakable, monkeypatch, caplog, states
):
    args = process.default_server_args(enable_breakable_cuda_graph=breakable)
    made = SimpleNamespace(server_args=args, tp_rank=0)
    monkeypatch.setattr(set_up, "make_runner", lambda *_: "breakable")
    monkeypatch.setattr(set_up, "_with_states", lambda *_: "piecewise")
    monkeypatch.setattr(set_up.with_states, "of", lambda runner: states)
    kind = "breakable" if breakable else "piecewise"
    with caplog.at_level(logging.INFO, set_up.__name__):
        assert set_up.set_up(made)
    assert made.piecewise_cuda_graph_runner == kind
    assert f"Captured the {kind} prefill graph in" in caplog.text
    monkeypatch.setattr(set_up.with_states, "of", lambda runner: None)
    del made.piecewise_cuda_graph_runner
    assert set_up.set_up(made) is breakable
    assert hasattr(made, "piecewise_cuda_graph_runner") is breakable


@pytest.mark.parametrize("tokens", [None, [512, 2048]])
def test_default_sizes_end_where_eager_prefill_is_as_fast(admitted, tokens, monkeypatch, states):
    """And are closer to each other; those that a user gave stay."""
    args = process.with_default_sizes(8192)
    default = args.piecewise_cuda_graph_tokens
    args.piecewise_cuda_graph_tokens = tokens or default
    monkeypatch.setattr(set_up, "_enough", lambda runner: 1500)
    monkeypatch.setattr(set_up.with_states, "of", lambda runner: states)
    monkeypatch.setattr(set_up.with_states, "make_runner", lambda *_: SimpleNamespace())
    made = SimpleNamespace(server_args=args, tp_rank=0)
    assert set_up.set_up(made)
    found, why = args.piecewise_cuda_graph_tokens, made.piecewise_cuda_graph_runner.why_these_sizes
    if tokens:
        assert (found, why) == (tokens, None)
    else:
        assert max(found) == min(size for size in default if size >= 1500)
        assert len(found) > len([size for size in default if size <= max(found)])
        assert "from 1500 tokens on eager prefill is as fast" in why
