"""When the index keys of a layer that is loaded from the host are read: the release's own pool."""

from types import SimpleNamespace

import pytest
from host import late

with late.modules():
    from sglang.srt.mem_cache import memory_pool

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.10")
FIRST_LAYER, LAYER = 3, 5


def test_keys_are_read_behind_the_load_of_their_layer(monkeypatch):
    order = []
    pool = SimpleNamespace(
        start_layer=FIRST_LAYER,
        index_k_with_scale_buffer=["keys"] * (LAYER + 1 - FIRST_LAYER),
        layer_transfer_counter=SimpleNamespace(wait_until=lambda layer: order.append(layer)),
    )
    accessor = memory_pool.index_buf_accessor.GetKAndS
    monkeypatch.setattr(accessor, "execute", lambda *_, **__: order.append("read"))
    read = memory_pool.NSATokenToKVPool.get_index_k_scale_buffer
    read(pool, LAYER, 64, None)
    assert order == [LAYER - FIRST_LAYER, "read"]
    pool.layer_transfer_counter = None  # without a cache on the host
    read(pool, LAYER, 64, None)
    assert order[2:] == ["read"]
