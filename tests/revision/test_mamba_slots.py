"""Which Mamba states a capture writes, and which ones requests get: the release's own pool and
backend, on the CPU."""

from inspect import signature
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.9")
SLOTS = 4


@pytest.fixture
def pool(default_server_args):
    """The release's pool of requests with states for one layer with a gated delta net, for SLOTS
    states."""
    from host import models, process
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

    process.use_server_args(default_server_args())
    process.start_groups()
    process.start_dp_attention(default_server_args(), 128, None)
    params = models.config_of("qwen3_next", num_hidden_layers=4).mamba2_cache_params
    given = dict(
        size=SLOTS,
        mamba_size=SLOTS,
        max_context_len=64,
        device="cpu",
        enable_memory_saver=False,
        cache_params=params,
    )
    # 0.5.7 wants these too
    given |= dict(mamba_spec_state_size=SLOTS, enable_mamba_extra_buffer=False)
    known = signature(HybridReqToTokenPool.__init__).parameters
    return HybridReqToTokenPool(**{name: value for name, value in given.items() if name in known})


def capture(pool):
    """The slots that a captured decode batch writes: those that the backend hands its kernels, each
    then written."""
    import torch
    from sglang.srt.layers.attention.hybrid_linear_attn_backend import GDNAttnBackend
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    backend = GDNAttnBackend(SimpleNamespace(device="cpu", req_to_token_pool=pool))
    backend.init_cuda_graph_state(2, 2)
    # As CudaGraphRunner has it: no request is known, so that all of them are number 0.
    backend.init_forward_metadata_capture_cuda_graph(
        2, 2, torch.zeros(2, dtype=torch.int64), torch.ones(2), None, ForwardMode.DECODE, None
    )
    written = backend.forward_metadata.mamba_cache_indices.unique().tolist()
    for states in states_of(pool):
        states[:, written] = 7.0
    return written


def states_of(pool):
    cache = pool.mamba_pool.mamba_cache
    conv = cache.conv if isinstance(cache.conv, list) else [cache.conv]
    return [*conv, cache.temporal]


def admit(pool, count):
    """The slots of `count` requests that come."""
    requests = [SimpleNamespace(mamba_pool_idx=None, req_pool_idx=None) for _ in range(count)]
    assert pool.alloc(count, requests) is not None
    return [int(request.mamba_pool_idx) for request in requests]


def test_the_first_request_after_a_capture_starts_from_an_empty_state(pool):
    """Gated delta nets take what the slot holds for the state behind a cached beginning."""
    capture(pool)
    [slot] = admit(pool, 1)
    assert all(not states[:, slot].any() for states in states_of(pool))


@pytest.mark.revision("<0.5.7")
@pytest.mark.parametrize("emptied", [False, True], ids=["at start", "after a flush"])
def test_no_request_gets_a_state_that_a_capture_writes(pool, emptied):
    written = set(capture(pool))
    if emptied:
        admit(pool, SLOTS)
        pool.clear()
    assert pool.mamba_pool.available_size() == SLOTS
    slots = admit(pool, SLOTS)
    assert len(set(slots)) == SLOTS and pool.mamba_pool.available_size() == 0
    assert not written & set(slots)
    assert max(slots) < min(states.shape[1] for states in states_of(pool))
