"""Which Mamba states a capture and a flush write, and which slots requests get and give back: the
release's own pool, backend and scheduler, on the CPU."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from host import graph, late, state_pool

with late.modules():
    from sglang.srt.layers.attention import hybrid_linear_attn_backend
    from sglang.srt.model_executor import forward_batch_info
    from sglang.srt.prefill_graph.cache import state_slots

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.11")
SLOTS = 4


@pytest.fixture
def pool():
    return state_pool.build(SLOTS)


def capture(pool):
    """The slots that a captured decode batch hands its kernels, each then written."""
    backend = hybrid_linear_attn_backend.GDNAttnBackend(
        SimpleNamespace(device="cpu", req_to_token_pool=pool)
    )
    backend.init_cuda_graph_state(2, 2)
    # As CudaGraphRunner has it: no request is known, so that all of them are number 0.
    requests, mode = torch.zeros(2, dtype=torch.int64), forward_batch_info.ForwardMode.DECODE
    words = 2, 2, requests, torch.ones(2), None, mode, None
    backend.init_forward_metadata_capture_cuda_graph(*words)
    written = backend.forward_metadata.mamba_cache_indices.unique().tolist()
    for states in state_pool.states_of(pool):
        states[:, written] = 7.0
    return written


def admit(pool, count):
    """The slots of `count` requests that come."""
    requests = [SimpleNamespace(mamba_pool_idx=None, req_pool_idx=None) for _ in range(count)]
    assert pool.alloc(count, requests) is not None
    return [int(request.mamba_pool_idx) for request in requests]


@pytest.mark.revision("<0.5.9")
def test_the_first_request_after_a_capture_starts_from_an_empty_state(pool):
    """Gated delta nets take what the slot holds for the state behind a cached beginning."""
    capture(pool)
    [slot] = admit(pool, 1)
    assert all(not states[:, slot].any() for states in state_pool.states_of(pool))


def test_a_flush_writes_no_state_and_a_request_gets_an_empty_one(pool):
    """A flush follows a pause: the memory of states is away then, and undefined after a wake."""
    for states in state_pool.states_of(pool):
        states.fill_(7.0)
    pool.clear()
    assert all(bool((states == 7.0).all()) for states in state_pool.states_of(pool))
    [slot] = pool.mamba_pool.alloc(1)
    assert all(not states[:, slot].any() for states in state_pool.states_of(pool))


@pytest.mark.revision("<0.5.10")
@pytest.mark.patch("mamba2/free-slot-of-waiting-request")
@pytest.mark.parametrize("answer", ["NO_TOKEN", "OTHER"])
def test_a_request_that_finds_no_room_keeps_no_slot(pool, monkeypatch, answer):
    """The next try may find its beginning evicted, and would start from what the slot holds."""
    request = MagicMock(mamba_pool_idx=None)

    def match(cache):
        request.mamba_pool_idx = pool.mamba_pool.alloc(1)[0]

    state_pool.turn_away(monkeypatch, request, match, answer, req_to_token_pool=pool)
    assert request.mamba_pool_idx is None
    assert pool.mamba_pool.available_size() == SLOTS


def test_an_admitted_request_keeps_its_slot(pool):
    """The last request that fits fills the budget, and is answered as one without room is."""
    request = SimpleNamespace(mamba_pool_idx=pool.mamba_pool.alloc(1)[0])
    state_slots.give_back(pool, request, [request])
    assert request.mamba_pool_idx is not None
    assert pool.mamba_pool.available_size() == SLOTS - 1


def test_a_row_that_dp_attention_pads_with_has_no_state(pool, unpinned):
    """Its request number is 0, which may be another's, whose state then went a token further."""
    made = state_pool.backend(hybrid_linear_attn_backend.MambaAttnBackendBase, None)
    made.get_cuda_graph_seq_len_fill_value = lambda: 1
    batch = graph.batch_of([1] * 3, forward_mode=forward_batch_info.ForwardMode.DECODE)
    batch.global_num_tokens_cpu = batch.global_num_tokens_for_logprob_cpu = [4]
    batch.global_num_tokens_gpu, batch.lora_ids, batch.seq_lens_sum = torch.zeros(1), [None] * 3, 3
    batch.prepare_mlp_sync_batch(SimpleNamespace(attn_backend=made, is_draft_worker=False))
    assert made._forward_metadata(batch).mamba_cache_indices.tolist() == [1, 2, 3, -1]
