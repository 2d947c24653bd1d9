"""Which states a verified block of DFLASH leaves in the slots that the prefix cache keeps: the
release's own worker and input, on the CPU."""

from itertools import product
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.revision(">=0.5.14,<0.5.20")
INTERVAL = 8
DRAFTS = 4


@pytest.fixture(autouse=True)
def arguments(monkeypatch):
    """What the release asks for the strategy extra_buffer, in each place where it does."""
    from sglang.srt.speculative import dflash_worker_v2, spec_utils

    strategy = dict(mamba_track_interval=INTERVAL, enable_mamba_extra_buffer_lazy=False)
    arguments = SimpleNamespace(
        mamba_track_interval=INTERVAL,
        enable_mamba_extra_buffer=lambda: True,
        enable_mamba_extra_buffer_lazy=lambda: False,
    )
    for name, value in {
        "get_global_server_args": arguments,
        "get_server_args": arguments,
        "get_exec": SimpleNamespace(mamba=SimpleNamespace(**strategy)),
        "mamba_extra_buffer_enabled": True,
        "mamba_extra_buffer_lazy_enabled": False,
        "mamba_track_grid": INTERVAL,
    }.items():
        for module in (dflash_worker_v2, spec_utils):
            monkeypatch.setattr(module, name, lambda *_, value=value: value, raising=False)
    return arguments


def test_a_block_that_passes_the_end_of_an_interval_leaves_its_state(arguments):
    """The state behind the last token of the interval, counted from the block's first token."""
    import torch
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

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
    DFlashWorkerV2._update_target_mamba_state_after_verify(
        worker, batch=batch, seq_lens_pre_verify=before, commit_lens=kept.to(torch.int32)
    )
    assert written["mamba_steps_to_track"].tolist() == [
        2 * INTERVAL - length - 1 if length + count >= 2 * INTERVAL else -1
        for length, count in cases
    ]


def test_a_block_is_verified_with_the_slots_of_its_requests(monkeypatch):
    """It had those of an earlier batch, or none, and that batch's mask."""
    import torch
    from sglang.srt.managers import schedule_batch
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
    from sglang.srt.speculative import dflash_info

    tensor = torch.tensor
    monkeypatch.setattr(
        torch, "tensor", lambda *words, pin_memory=None, **named: tensor(*words, **named)
    )
    monkeypatch.setattr(schedule_batch, "is_pin_memory_available", lambda *_: False, raising=False)
    monkeypatch.setattr(
        dflash_info.ForwardBatch, "init_new", lambda batch, *_, **__: SimpleNamespace(batch=batch)
    )
    requests = [SimpleNamespace(mamba_next_track_idx=index) for index in (1, 0)]
    for request in requests:
        request.kv = request  # from 0.5.19 on
    slots = tensor([[0, 0], [1, 2], [3, 4]])
    batch = SimpleNamespace(
        reqs=requests,
        forward_mode=ForwardMode.DECODE,
        req_pool_indices=tensor([1, 2]),
        req_to_token_pool=SimpleNamespace(req_index_to_mamba_ping_pong_track_buffer_mapping=slots),
        mamba_track_indices=tensor([5, 6]),
        mamba_track_mask=tensor([True, True]),
    )
    tokens = tensor([7] * DRAFTS * 2)
    verified = dflash_info.DFlashVerifyInput(
        draft_token=tokens,
        positions=tokens,
        draft_token_num=DRAFTS,
        capture_hidden_mode=CaptureHiddenMode.FULL,
    )
    backend = SimpleNamespace(init_forward_metadata=lambda _: None)
    runner = SimpleNamespace(decode_cuda_graph_runner=None, attn_backend=backend)
    verified.prepare_for_verify(batch, SimpleNamespace(model_runner=runner))
    assert batch.mamba_track_indices.tolist() == [2, 3]
    assert batch.mamba_track_mask is None
