"""Where a verified draft's state goes, for requests that go on and for one that has ended."""

from types import SimpleNamespace

import pytest
import torch
from host import late

with late.modules():
    from sglang.srt.managers import schedule_batch

pytestmark = pytest.mark.revision(">=0.5.13,<0.5.22")


def test_an_ended_request_writes_into_no_slot_of_others(monkeypatch):
    """Its two slots, 5 and 6, have other owners by then."""
    tensor = torch.tensor
    monkeypatch.setattr(
        torch, "tensor", lambda *words, pin_memory, **named: tensor(*words, **named)
    )
    requests = [SimpleNamespace(mamba_next_track_idx=index) for index in (1, None, 0)]
    for request in requests:
        request.kv = request  # from 0.5.19 on
    slots = tensor([[0, 0], [1, 2], [5, 6], [3, 4]])
    batch = SimpleNamespace(
        reqs=requests,
        req_pool_indices=tensor([1, 2, 3]),
        req_to_token_pool=SimpleNamespace(req_index_to_mamba_ping_pong_track_buffer_mapping=slots),
    )
    schedule_batch.set_mamba_track_indices_from_reqs(batch)
    assert batch.mamba_track_indices.tolist() == [2, 0, 3]
