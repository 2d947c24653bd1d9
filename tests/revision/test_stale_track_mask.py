"""Drafts that are verified take nothing along of the prefill before them."""

import pytest
import torch
from host import graph, late, process

with late.modules():
    from sglang.srt.layers.attention import hybrid_linear_attn_backend
    from sglang.srt.managers import schedule_batch
    from sglang.srt.model_executor import forward_batch_info
    from sglang.srt.speculative import eagle_info

pytestmark = pytest.mark.revision(">=0.5.7,<0.5.10")


@pytest.fixture
def verified(monkeypatch):
    """Two requests behind a prefill that left a state of each; their drafts are about to be
    verified."""
    process.use_server_args(
        process.default_server_args(mamba_scheduler_strategy="extra_buffer", page_size=1)
    )
    monkeypatch.setattr(eagle_info, "alloc_token_slots", lambda _, count: torch.arange(count))
    monkeypatch.setattr(eagle_info, "assign_req_to_token_pool_func", lambda *_: None)
    batch = schedule_batch.ScheduleBatch(reqs=[Request(), Request()])
    batch.forward_mode, batch.device = forward_batch_info.ForwardMode.DECODE, "cpu"
    batch.seq_lens, batch.req_pool_indices = torch.tensor([70, 130]), torch.tensor([1, 2])
    batch.req_to_token_pool = Pool()
    batch.mamba_track_mask = torch.tensor([True, True])
    batch.mamba_track_seqlens = torch.tensor([70, 130])
    named = eagle_info.EagleVerifyInput.__dataclass_fields__
    drafts = dict.fromkeys(named) | dict(draft_token=torch.arange(6), draft_token_num=3)
    eagle_info.EagleVerifyInput(**drafts).prepare_for_verify(batch, page_size=1)
    return batch


class Request:
    mamba_next_track_idx = 1

    def __init__(self):
        self.mamba_ping_pong_track_buffer = torch.tensor([5, 6])


class Pool:
    req_to_token = None

    def get_mamba_indices(self, requests):
        return requests


def test_the_prefills_own_mask_is_gone(verified):
    # where states go behind the verification
    assert verified.mamba_track_indices.tolist() == [6, 6]
    assert verified.mamba_track_mask is None and verified.mamba_track_seqlens is None


def test_drafts_go_on_for_the_requests_that_are_left(verified):
    """One has ended in between. A layer's metadata of the rest were cut by the mask of both."""
    attention = hybrid_linear_attn_backend.GDNAttnBackend.__new__(
        hybrid_linear_attn_backend.GDNAttnBackend
    )
    attention.device, attention.req_to_token_pool = "cpu", Pool()
    attention.conv_states_shape = (8, 16, 3)
    left = graph.prefill_batch(
        2,
        forward_mode=forward_batch_info.ForwardMode.DRAFT_EXTEND,
        req_pool_indices=torch.tensor([2]),
        extend_start_loc=torch.tensor([0]),
        extend_seq_lens=torch.tensor([2]),
        extend_prefix_lens=torch.tensor([130]),
        mamba_track_mask=verified.mamba_track_mask,
        mamba_track_seqlens=verified.mamba_track_seqlens,
        mamba_track_indices=verified.mamba_track_indices,
    )
    found = attention._forward_metadata(left)
    assert found.query_start_loc.tolist() == [0, 2] and found.track_conv_indices is None
