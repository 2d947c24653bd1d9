"""A prefill is prepared without waiting for the GPU: the release's own code on tensors without
values, whose copy fails."""

import random
from types import SimpleNamespace

import pytest
import torch
from host import flashinfer, late
from host.flashinfer import batch_of

with late.modules():
    from sglang.srt.compilation import piecewise_context_manager
    from sglang.srt.layers.attention.mamba import mamba2_metadata
    from sglang.srt.prefill_graph.preparation import attention_plans, mamba2_chunks
    from sglang.srt.prefill_graph.preparation import known as preparation_known

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.24")

BATCHES = {
    "cold": ([0, 0, 0], [5, 1, 9]),
    "behind cached beginnings": ([16, 0, 3], [4, 7, 1]),
    "alone": ([0], [33]),
}


@pytest.fixture
def backend(monkeypatch):
    return flashinfer.backend(monkeypatch)


def sums(values):
    return [0, *(sum(values[: count + 1]) for count in range(len(values)))]


@pytest.mark.revision("<0.5.19")
@pytest.mark.parametrize("case", BATCHES)
@pytest.mark.parametrize("ragged", [True, False])
def test_flashinfer_plans_from_the_hosts_lengths(backend, case, ragged):
    """ragged: new tokens apart from cached ones; deterministic servers have both in one."""
    prefixes, lengths = BATCHES[case]
    backend.enable_deterministic = not ragged
    backend.init_forward_metadata(batch_of(prefixes, lengths))
    paged = backend.prefill_wrappers_paged[0]
    attended = prefixes if ragged else [before + new for before, new in zip(prefixes, lengths)]
    assert paged.planned == [sums(lengths), sums(attended)]
    assert paged.pages == [[1] * len(lengths)]
    assert backend.prefill_wrapper_ragged.planned == ([sums(lengths)] * 2 if ragged else None)


@pytest.mark.revision("<0.5.19")
@pytest.mark.parametrize(
    "case", ["several wrappers", "another batch", "lengths of padded requests", "the switch"]
)
def test_what_the_host_does_not_know_is_asked(backend, case, monkeypatch):
    """A copy fails here: an answer that is not this batch's would be worse."""
    batch = batch_of(*BATCHES["cold"])
    if case == "several wrappers":
        backend.num_wrappers = 2
    elif case == "the switch":
        monkeypatch.setenv("SGLANG_PREFILL_PLANS", "release")
    elif case == "lengths of padded requests":
        batch.extend_seq_lens_cpu.append(1)
    else:
        attention_plans.know(backend.indices_updater_prefill, batch)
        backend.indices_updater_prefill.known_lengths.whole.clear()
        given = backend.indices_updater_prefill
        there = [tensor[:4] for tensor in (given.qo_indptr[0], given.kv_indptr[0])]
        other = batch_of([1], [2])
        assert attention_plans.offsets(given, [], other.seq_lens, other.seq_lens, *there) == tuple(
            there
        )
        return
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        backend.init_forward_metadata(batch)


@pytest.mark.revision("<0.5.19")
def test_lengths_of_an_earlier_batch_are_not_kept(backend):
    """Of the batch before, whose offsets nobody asked for."""
    batch, updater = batch_of(*BATCHES["cold"]), backend.indices_updater_prefill
    attention_plans.know(updater, batch)
    assert updater.known_lengths.whole == [5, 1, 9]
    batch.extend_seq_lens_cpu = None
    attention_plans.know(updater, batch)
    assert updater.known_lengths is None


@pytest.mark.revision(">=0.5.10,<0.5.11")
def test_the_request_that_0_5_10_makes_of_padding_is_asked_for(backend):
    """Its own code, in a graph of 64 rows: to copy what it sums up there fails here."""
    batch, backend.indices_updater_prefill.page_size = batch_of(*BATCHES["cold"]), 1
    with piecewise_context_manager.set_forward_context(batch, [], None, [], [], num_tokens=64):
        with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
            backend.init_forward_metadata(batch)


def planned(backend, prefixes):
    """Whether a prefill's new tokens go through the ragged wrapper, and whether none is cached."""
    backend.init_forward_metadata(batch_of(prefixes, [5] * len(prefixes)))
    made = backend.forward_metadata
    return made.use_ragged, made.extend_no_prefix


@pytest.mark.patch("piecewise/keep-eager-attention-wrapper")
@pytest.mark.revision(">=0.5.10,<0.5.14")
@pytest.mark.parametrize("prefixes", [[0, 0], [0, 7]], ids=["cold", "cached beginnings"])
@pytest.mark.parametrize("setting", ["", "enable_deterministic", "is_multimodal"])
def test_the_piecewise_graph_changes_no_wrapper(backend, prefixes, setting):
    """Another kernel rounds otherwise, and a router behind it picks other experts."""
    backend.indices_updater_prefill.update = lambda *_, **__: None
    if setting:
        setattr(backend, setting, True)
    eager = planned(backend, prefixes)
    with piecewise_context_manager.enable_piecewise_cuda_graph():
        assert planned(backend, prefixes) == eager
    assert eager[0] == (not setting)


@pytest.mark.revision("<0.5.19")
def test_a_known_tensor_is_an_ordinary_one_in_all_else():
    host = torch.tensor([3, 4], dtype=torch.int32)
    # other values: so the answers show where they are from
    known = preparation_known.Known.of(torch.zeros(2, dtype=torch.int32), host)
    assert known.sum() == 7
    assert known.cpu() is host
    assert known.to("cpu") is host
    assert known[:1].to(torch.device("cpu")).tolist() == [3]
    assert known.sum(dim=0) == 0 and not (known + 1 - 1).any() and known[1] == 0
    assert type(known + 1) is torch.Tensor and type(known.to(torch.int64)) is torch.Tensor
    for index in (1, torch.tensor([1]), torch.tensor([False, True])):
        assert type(known[index]) is torch.Tensor and known[index].cpu() == 0
    for other in (torch.zeros(3, dtype=torch.int32), torch.zeros(2, dtype=torch.int64)):
        with pytest.raises(ValueError, match="int32 for"):
            preparation_known.Known.of(other, host)


@pytest.mark.revision("<0.5.19")
def test_a_plan_does_not_write_where_an_earlier_one_is_still_copied_from(monkeypatch):
    """The host may be a batch ahead: pinned buffers take turns, each waits for its own copy."""
    said = []

    def event():
        number = sum(line.startswith("record") for line in said)
        return SimpleNamespace(
            record=lambda: said.append(f"record {number}"),
            synchronize=lambda: said.append(f"wait {number}"),
        )

    def buffer(*_, **__):
        return SimpleNamespace(is_pinned=lambda: True)

    stand_in = SimpleNamespace(cuda=SimpleNamespace(Event=event), empty_like=buffer)
    monkeypatch.setattr(attention_plans, "torch", stand_in)
    first = buffer()
    wrapper = SimpleNamespace(**{attention_plans.PINNED: first})
    used = []
    for _ in range(4):
        attention_plans._turn(wrapper)
        used.append(getattr(wrapper, attention_plans.PINNED))
    assert used[0] is not first and used[1] is first and used[2] is used[0] and used[3] is first
    assert ", ".join(said) == "record 0, record 1, wait 0, record 2, wait 1, record 3, wait 2"


def mamba_metadata(batch, chunk):
    there = torch.zeros(len(batch.seq_lens) + 1, dtype=torch.int32, device="meta")
    given = mamba2_metadata.ForwardMetadata(query_start_loc=there, mamba_cache_indices=there[1:])
    return mamba2_metadata.Mamba2Metadata.prepare_mixed(given, chunk, batch)


@pytest.mark.revision(">=0.5.6")
@pytest.mark.parametrize("case", BATCHES)
def test_mamba2_asks_the_gpu_for_nothing(case):
    prefixes, lengths = BATCHES[case]
    found = mamba_metadata(batch_of(prefixes, lengths), 8).mixed_metadata
    assert found.prep_initial_states == any(prefixes)
    assert (found.chunk_indices is None) == (not any(prefixes))


@pytest.mark.revision(">=0.5.6")
def test_chunks_are_the_releases():
    """Of 200 random batches, on the host."""
    source = random.Random(3)
    release = mamba2_metadata.Mamba2Metadata._query_start_loc_to_chunk_indices_offsets
    for _ in range(200):
        lengths = [source.randint(1, 40) for _ in range(source.randint(1, 6))]
        chunk = source.choice([4, 8, 16])
        starts = torch.tensor(sums(lengths), dtype=torch.int32)
        batch = SimpleNamespace(extend_seq_lens_cpu=lengths)
        found = mamba2_chunks.cut(batch, None, starts, chunk, sum(lengths))
        wanted = release(starts, chunk, sum(lengths))
        assert [one.tolist() for one in found] == [one.tolist() for one in wanted], (lengths, chunk)
        assert all(one.dtype == torch.int32 for one in found)


@pytest.mark.revision(">=0.5.6")
def test_a_batch_whose_lengths_the_host_does_not_know_is_cut_by_the_release():
    batch = SimpleNamespace(extend_seq_lens_cpu=None, extend_prefix_lens_cpu=None)
    starts = torch.tensor([0, 3, 9])
    assert mamba2_chunks.cut(batch, lambda *given: given, starts, 4, 9) == (starts, 4, 9)
    assert mamba2_chunks.goes_on(batch, torch.tensor([False, True]))
    assert not mamba2_chunks.goes_on(batch, torch.tensor([False, False]))
    batch.extend_prefix_lens_cpu = [0]  # of one of two requests
    assert mamba2_chunks.goes_on(batch, torch.tensor([False, True]))
    for lengths in ([3, 5], [3, 7], [9], [3, 3, 3]):  # 9 tokens of two requests are cut
        batch.extend_seq_lens_cpu = lengths
        assert mamba2_chunks.cut(batch, lambda *given: given, starts, 4, 9) == (starts, 4, 9)
