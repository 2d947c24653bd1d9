"""Routed experts that a server returns, where the MoE layer appends shared ones: the release's own
buffer and layer."""

import pytest

pytestmark = pytest.mark.revision(">=0.5.14,<0.5.23")


def test_a_routers_choice_fits_a_buffer_with_room_for_shared_experts():
    import torch
    from sglang.srt.state_capturer.base import BaseDeviceCache

    cache = BaseDeviceCache(
        max_batch_size=4, num_layers=2, topk_size=3, device="cpu", name="routed_experts"
    )
    chosen = torch.tensor([[5, 1], [0, 7]], dtype=torch.int32)
    cache.capture(1, chosen)
    assert cache.buffer[:2, 1, :2].equal(chosen)
    assert not cache.buffer[:, 0].any() and not cache.buffer[2:].any()
    whole = torch.arange(12, dtype=torch.int32).view(4, 3)
    cache.capture(0, whole)
    assert cache.buffer[:, 0].equal(whole)
