"""Falcon-H1 in the breakable graph of 0.5.14 and later: the Mamba2 mixer beside its attention is a
break of its own. The release's layers and its graph, on the CPU. What the overlay's runner makes of
it is in test_breakable_runner.py."""

from types import SimpleNamespace

import pytest
import torch
from host import beside, late, segments, served

with late.modules():
    from sglang.srt.prefill_graph.breakable import mixers
    from sglang.srt.prefill_graph.captured import layers, tables
    from sglang.srt.prefill_graph.piecewise import op_function

pytestmark = pytest.mark.revision(">=0.5.13,<0.5.24")
OWN = pytest.mark.revision(">=0.5.14")
SIZE = 8


@pytest.fixture
def model(build_model):
    # releases keep the rotations that they make, on the device of the first model that asks
    return build_model("falcon_h1", device="cpu", dtype=torch.float32, max_position_embeddings=2048)


def batch_of(lengths, **fields):
    """A prefill of requests with `lengths` tokens each."""
    tokens = sum(lengths)
    source = torch.Generator().manual_seed(tokens)
    return segments.batch_of(
        tokens,
        batch_size=len(lengths),
        input_ids=torch.randint(1, 200, (tokens,), generator=source),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        extend_seq_lens=torch.tensor(lengths),
        **fields,
    )


@pytest.fixture
def run(model, monkeypatch):
    """run(batch): the layer stack's output of a replay in SIZE rows, and of eager prefill, and the
    calls of mixers in the replay."""
    calls = []
    backend = beside.backend(calls)
    placeholder = batch_of([SIZE])
    backend.init_forward_metadata(placeholder)
    with segments.captured(model, monkeypatch, placeholder, backend) as replay:

        def both(batch):
            backend.init_forward_metadata(batch)
            calls.clear()
            found, of_replay = replay(batch).clone(), list(calls)
            with served.published(backend):
                wanted = model.model(batch.input_ids, batch.positions, batch)
            return found, wanted, of_replay

        yield both


@OWN
@pytest.mark.parametrize("how", [segments.BREAK, segments.CAPTURED])
def test_mixers_break_the_graph_unless_a_size_has_tables(model, monkeypatch, how):
    def prepare(_, note, batch):
        monkeypatch.setattr(layers.mamba2, "run", lambda *given, **_: note("mixer") or given[3] * 0)
        if how == segments.CAPTURED:
            setattr(batch, layers.CAPTURED_INTO, tables.Current(None, str))

    at_capture, at_replay = segments.of(model, monkeypatch, prepare=prepare)
    assert at_capture == [("attention", segments.BREAK), ("mixer", how)] * 2
    assert at_replay == [one for one in at_capture if one[1] == segments.BREAK]


@OWN
@pytest.mark.parametrize("lengths", [[8], [5], [3, 2], [1, 1, 1], [2, 4, 2]], ids=str)
def test_a_replay_has_the_rows_of_eager_prefill(run, lengths):
    """Behind them what was only allocated is NaN here, and would go on through every layer."""
    batch = batch_of(lengths)
    found, wanted, calls = run(batch)
    torch.testing.assert_close(found[: sum(lengths)], wanted)
    assert found.isfinite().all()
    assert [(call.layer_id, call.rows) for call in calls] == [(0, sum(lengths)), (1, sum(lengths))]
    assert all(call.batch is batch for call in calls)


@OWN
def test_replays_do_not_see_each_other(run):
    """Padded rows of a small batch were real ones before."""
    first, _, _ = run(batch_of([3, 2]))
    run(batch_of([8]))
    again, wanted, _ = run(batch_of([3, 2]))
    assert torch.equal(first[:5], again[:5])
    torch.testing.assert_close(again[:5], wanted)


@OWN
def test_a_rank_without_requests_touches_no_state(run):
    """Under data-parallel attention, 0.5.15 to 0.5.20 make up a request for it, whose slot is
    another's."""
    found, _, calls = run(batch_of([1], _original_batch_size=0))
    assert calls == [] and found.isfinite().all()


def test_eager_prefill_and_decoding_call_the_backend_itself():
    def forward(*_, **__):
        raise AssertionError("not called here")

    assert mixers.beside_attention(forward) is forward


def test_a_breakable_decode_graph_calls_the_backend_itself():
    """Only prefills have a batch that a break can look up: decoding died with "No forward batch is
    set" under --cuda-graph-backend-decode breakable."""
    seen = []

    def forward(*rows, **given):
        seen.append(given)

    def made_a_break(function, name):
        return lambda *_, **__: seen.append("a break")

    def batch(extends):
        return SimpleNamespace(forward_mode=SimpleNamespace(is_extend=lambda: extends))

    with op_function.broken_by(made_a_break):
        run = mixers.beside_attention(forward)
        for one in (batch(extends=False), batch(extends=True)):
            run(None, torch.ones(1), torch.ones(1), layer_id=0, forward_batch=one)
    assert seen[0]["layer_id"] == 0 and not seen[0]["forward_batch"].forward_mode.is_extend()
    assert seen[1:] == ["a break"]
