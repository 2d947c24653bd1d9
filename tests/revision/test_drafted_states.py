"""The states of hybrid models behind a verification of drafts, and the slots that it writes: the
release's own scheduler and workers, on the CPU."""

import ast
import inspect
import textwrap
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from host import graph, late, process, state_pool

with late.modules():
    from sglang.srt.layers.attention import hybrid_linear_attn_backend
    from sglang.srt.managers import schedule_batch
    from sglang.srt.managers import scheduler_output_processor_mixin as mixin
    from sglang.srt.model_executor import forward_batch_info
    from sglang.srt.speculative import (
        dflash_info,
        dflash_worker_v2,
        eagle_info,
        eagle_worker_v2,
        spec_utils,
    )

INTERVAL, DRAFTS = 8, 4
BOUNDARIES = pytest.mark.revision(">=0.5.7,<0.5.11")
STALE = pytest.mark.revision(">=0.5.7,<0.5.10")
LIGHTNING = pytest.mark.revision(">=0.5.10,<0.5.13")
ENTRIES = pytest.mark.revision(">=0.5.5,<0.5.10")
ENDED = pytest.mark.revision(">=0.5.13,<0.5.22")
DFLASH = pytest.mark.revision(">=0.5.14,<0.5.20")


def tracked_point(before, after):
    """The length whose state a verification leaves in the tracked slot, or None: what
    EAGLEWorker._mamba_verify_update computes of the lengths around it."""
    return after // INTERVAL * INTERVAL if before // INTERVAL != after // INTERVAL else None


@BOUNDARIES
@pytest.mark.parametrize("accepted", [0, 1, 3])
@pytest.mark.parametrize("before", range(INTERVAL, 3 * INTERVAL))
def test_the_key_of_a_kept_state_is_its_length(monkeypatch, before, accepted):
    state_pool.keep_states(monkeypatch, mixin, interval=INTERVAL)
    after = before + accepted + 1  # the accepted drafts and the token before them
    pool = SimpleNamespace(get_mamba_ping_pong_other_idx=lambda index: index)
    request = SimpleNamespace(
        origin_input_ids=[0] * 4,
        output_ids=[0] * (after + 1 - 4),
        seqlen=after + 1,
        mamba_ping_pong_track_buffer=[5],
        mamba_next_track_idx=0,
        mamba_last_track_seqlen=INTERVAL,
    )
    drafts = SimpleNamespace(is_none=lambda: False)
    batch = SimpleNamespace(spec_algorithm=drafts, req_to_token_pool=pool)
    result = SimpleNamespace(accept_length_per_req_cpu=[accepted])
    update = mixin.SchedulerOutputProcessorMixin._mamba_prefix_cache_update
    update(SimpleNamespace(), request, batch, result, 0)
    assert request.mamba_last_track_seqlen == (tracked_point(before, after) or INTERVAL)


@LIGHTNING
@pytest.mark.parametrize("config", ["hybrid_gdn", "mamba2", "hybrid_lightning", None])
def test_a_verification_moves_the_states_of_every_hybrid(config):
    """The condition under which EAGLEWorkerV2.verify does."""
    source = textwrap.dedent(inspect.getsource(eagle_worker_v2.EAGLEWorkerV2.verify))
    [moving] = [
        part
        for part in ast.walk(ast.parse(source))
        if isinstance(part, ast.If) and "self._mamba_verify_update(" in ast.unparse(part.body[0])
    ]
    names = "hybrid_gdn", "mamba2", "hybrid_lightning"
    configs = {f"{name}_config": object() if name == config else None for name in names}
    target = SimpleNamespace(model_runner=SimpleNamespace(**configs))
    worker = SimpleNamespace(target_worker=target)
    assert eval(ast.unparse(moving.test), {"self": worker}) is bool(config)


# --- entries


def batch_of(ended, entries, mode):
    """A batch behind its forward. ended: of each request; entries: its drafts' first token."""
    flags = dict.fromkeys(("return_logprob", "stream", "grammar", "return_hidden_states"), False)
    requests = [SimpleNamespace(finished=lambda end=end: end, **flags) for end in ended]
    rows, drafts = torch.arange(len(ended)), torch.tensor(entries)
    columns = dict.fromkeys(("topk_p", "topk_index", "hidden_states"), drafts[:, None])
    return schedule_batch.ScheduleBatch(
        **dict(reqs=requests, device="cpu", forward_mode=mode, enable_overlap=False),
        **dict(req_pool_indices=rows, seq_lens=rows, seq_lens_cpu=rows, orig_seq_lens=rows),
        **dict(output_ids=rows, spec_algorithm=SimpleNamespace(is_none=lambda: False)),
        model_config=SimpleNamespace(is_encoder_decoder=False),
        sampling_info=SimpleNamespace(filter_batch=lambda *_: None),
        spec_info=eagle_info.EagleDraftInput(verified_id=drafts, **columns),
    )


@ENTRIES
def test_a_request_goes_on_from_its_own_token():
    """The first of three ends with the prefill; behind a verification none is left of it."""
    prefill = batch_of([True, False, False], [10, 11, 12], forward_batch_info.ForwardMode.EXTEND)
    prefill.filter_batch(chunked_req_to_exclude=[])
    assert prefill.spec_info.verified_id.tolist() == [11, 12]
    decoded = batch_of([True, False, False], [11, 12], forward_batch_info.ForwardMode.DECODE)
    taken = inspect.signature(decoded.filter_batch).parameters.keys() & {"v1_spec_info_filtered"}
    decoded.filter_batch(**dict.fromkeys(taken, True))
    assert decoded.spec_info.verified_id.tolist() == [11, 12]


# --- slots


def requests_at(*indices):
    """Requests whose next slot is the one of the index; None: the request has ended."""
    made = [SimpleNamespace(mamba_next_track_idx=index) for index in indices]
    for request in made:
        request.kv = request  # from 0.5.19 on
    return made


@ENDED
def test_an_ended_request_writes_into_no_slot_of_others(unpinned):
    """Its two slots, 5 and 6, have other owners by then."""
    slots = torch.tensor([[0, 0], [1, 2], [5, 6], [3, 4]])
    batch = SimpleNamespace(
        reqs=requests_at(1, None, 0),
        req_pool_indices=torch.tensor([1, 2, 3]),
        req_to_token_pool=SimpleNamespace(req_index_to_mamba_ping_pong_track_buffer_mapping=slots),
    )
    schedule_batch.set_mamba_track_indices_from_reqs(batch)
    assert batch.mamba_track_indices.tolist() == [2, 0, 3]


@pytest.fixture
def arguments(monkeypatch):
    return state_pool.keep_states(monkeypatch, dflash_worker_v2, spec_utils, interval=INTERVAL)


@DFLASH
def test_a_block_that_passes_the_end_of_an_interval_leaves_its_state(arguments):
    """The state behind the last token of the interval, counted from the block's first token."""
    cases = list(product(range(INTERVAL, 2 * INTERVAL), range(1, DRAFTS + 1)))
    before, kept = (torch.tensor(column) for column in zip(*cases, strict=True))
    written = {}
    backend = SimpleNamespace(update_mamba_state_after_mtp_verify=written.update)
    runner = SimpleNamespace(attn_backend=backend, model=None)
    worker = SimpleNamespace(
        target_worker=SimpleNamespace(model_runner=runner),
        server_args=arguments,
        _need_mamba_verify_commit=True,
    )
    batch = SimpleNamespace(
        seq_lens=before.clone(),  # the lengths do not move until the next step
        mamba_track_indices=torch.arange(len(cases)),
        req_pool_indices=torch.arange(len(cases)),
        tree_cache=SimpleNamespace(page_size=1),
    )
    dflash_worker_v2.DFlashWorkerV2._update_target_mamba_state_after_verify(
        worker, batch=batch, seq_lens_pre_verify=before, commit_lens=kept.to(torch.int32)
    )
    assert written["mamba_steps_to_track"].tolist() == [
        2 * INTERVAL - length - 1 if length + count >= 2 * INTERVAL else -1
        for length, count in cases
    ]


@DFLASH
def test_a_block_is_verified_with_the_slots_of_its_requests(arguments, unpinned, monkeypatch):
    """It had those of an earlier batch, or none, and that batch's mask."""
    monkeypatch.setattr(schedule_batch, "is_pin_memory_available", lambda *_: False, raising=False)
    monkeypatch.setattr(
        dflash_info.ForwardBatch, "init_new", lambda batch, *_, **__: SimpleNamespace(batch=batch)
    )
    slots = torch.tensor([[0, 0], [1, 2], [3, 4]])
    batch = SimpleNamespace(
        reqs=requests_at(1, 0),
        forward_mode=forward_batch_info.ForwardMode.DECODE,
        req_pool_indices=torch.tensor([1, 2]),
        req_to_token_pool=SimpleNamespace(req_index_to_mamba_ping_pong_track_buffer_mapping=slots),
        mamba_track_indices=torch.tensor([5, 6]),
        mamba_track_mask=torch.tensor([True, True]),
    )
    tokens = torch.tensor([7] * DRAFTS * 2)
    drafted = dflash_info.DFlashVerifyInput(
        draft_token=tokens,
        positions=tokens,
        draft_token_num=DRAFTS,
        capture_hidden_mode=forward_batch_info.CaptureHiddenMode.FULL,
    )
    backend = SimpleNamespace(init_forward_metadata=lambda _: None)
    runner = SimpleNamespace(decode_cuda_graph_runner=None, attn_backend=backend)
    drafted.prepare_for_verify(batch, SimpleNamespace(model_runner=runner))
    assert batch.mamba_track_indices.tolist() == [2, 3]
    assert batch.mamba_track_mask is None


# --- drafts take nothing along of the prefill before them


class Pool:
    req_to_token = None

    def get_mamba_indices(self, requests):
        return requests


@pytest.fixture
def verified(monkeypatch):
    """Two requests behind a prefill that left states; their drafts are about to be verified."""
    process.use_server_args(
        process.default_server_args(mamba_scheduler_strategy="extra_buffer", page_size=1)
    )
    monkeypatch.setattr(eagle_info, "alloc_token_slots", lambda _, count: torch.arange(count))
    monkeypatch.setattr(eagle_info, "assign_req_to_token_pool_func", lambda *_: None)
    requests = requests_at(1, 1)
    for request in requests:
        request.mamba_ping_pong_track_buffer = torch.tensor([5, 6])
    batch = schedule_batch.ScheduleBatch(reqs=requests)
    batch.forward_mode, batch.device = forward_batch_info.ForwardMode.DECODE, "cpu"
    batch.seq_lens, batch.req_pool_indices = torch.tensor([70, 130]), torch.tensor([1, 2])
    batch.req_to_token_pool = Pool()
    batch.mamba_track_mask = torch.tensor([True, True])
    batch.mamba_track_seqlens = torch.tensor([70, 130])
    named = eagle_info.EagleVerifyInput.__dataclass_fields__
    drafts = dict.fromkeys(named) | dict(draft_token=torch.arange(6), draft_token_num=3)
    eagle_info.EagleVerifyInput(**drafts).prepare_for_verify(batch, page_size=1)
    return batch


@STALE
def test_the_prefills_own_mask_is_gone(verified):
    # where states go behind the verification
    assert verified.mamba_track_indices.tolist() == [6, 6]
    assert verified.mamba_track_mask is None and verified.mamba_track_seqlens is None


@STALE
def test_drafts_go_on_for_the_requests_that_are_left(verified):
    """One has ended in between. A layer's metadata of the rest were cut by the mask of both."""
    kind = hybrid_linear_attn_backend.GDNAttnBackend
    attention = kind.__new__(kind)
    attention.device, attention.req_to_token_pool = "cpu", Pool()
    attention.conv_states_shape = (8, 16, 3)
    left = graph.batch_of(
        [2],
        [130],
        forward_mode=forward_batch_info.ForwardMode.DRAFT_EXTEND,
        req_pool_indices=torch.tensor([2]),
        mamba_track_mask=verified.mamba_track_mask,
        mamba_track_seqlens=verified.mamba_track_seqlens,
        mamba_track_indices=verified.mamba_track_indices,
    )
    found = attention._forward_metadata(left)
    assert found.query_start_loc.tolist() == [0, 2] and found.track_conv_indices is None
