"""States that a prefill is to copy from the prefix cache, or to clear, before its layers run."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from host import graph, late, state_pool

with late.modules():
    from sglang.srt.layers.attention import hybrid_linear_attn_backend
    from sglang.srt.layers.attention.linear import lightning_backend
    from sglang.srt.managers import schedule_batch
    from sglang.srt.model_executor import forward_batch_info
    from sglang.srt.prefill_graph.compat import capture

pytestmark = pytest.mark.revision(">=0.5.13,<0.5.15")


class Pool:
    """One number for each slot's state; slots 0 to 9 hold 10 times their number."""

    def __init__(self):
        self.states = [10 * slot for slot in range(10)]

    def clear_slots(self, slots):
        for slot in slots.tolist():
            self.states[slot] = 0

    def copy_from(self, sources, targets):
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self.states[target] = self.states[source]


def prepare(kind, mode, requests, draft_tokens=1, through=None):
    """The pool behind the release's own preparation of a batch. The prefill behind which it comes
    began with request 1 at the cached state of slot 7, and with request 2 at none. through(backend,
    batch): what prepares it in place of the backend."""
    cls = {
        "lightning": lightning_backend.LightningAttentionBackend,
        "mamba2": hybrid_linear_attn_backend.Mamba2AttnBackend,
    }[kind]
    made, pool = cls.__new__(cls), Pool()
    made.device, made.is_draft_worker, made.topk, made.mamba_chunk_size = "cpu", False, 1, 16
    made.req_to_token_pool = SimpleNamespace(
        mamba_pool=pool, get_mamba_indices=lambda rows: rows.to(torch.int32)
    )
    batch = graph.batch_of(
        [draft_tokens] * requests,
        [16] * requests,
        forward_mode=forward_batch_info.ForwardMode[mode],
        seq_lens=torch.full((requests,), 20),
        spec_info=SimpleNamespace(draft_token_num=draft_tokens),
        mamba_cow_src_indices=torch.tensor([7]),
        mamba_cow_dst_indices=torch.tensor([1]),
        mamba_clear_indices=torch.tensor([2]),
    )
    if through:
        through(made, batch)
    else:
        made.init_forward_metadata(batch)
    return pool.states[1:3]


@pytest.mark.parametrize("kind", ["mamba2", "lightning"])
def test_a_prefill_begins_at_its_cached_state(kind):
    """Lightning attention is Ling 2.5's."""
    assert prepare(kind, "EXTEND", 2) == [70, 0]


def test_what_drafts_say_is_verified_on_the_requests_own_state():
    """The batch still says what its prefill began with."""
    assert prepare("mamba2", "TARGET_VERIFY", 2, draft_tokens=3) == [10, 20]


# whose graph is this package's where it captures layers with states
@pytest.mark.revision("<0.5.14")
def test_a_replay_with_captured_layers_begins_at_the_cached_state():
    """No layer asks for the plan of linear attention then. What it copies first is not left out."""
    planned = []
    full = SimpleNamespace(
        token_to_kv_pool=None, req_to_token_pool=None, init_forward_metadata=planned.append
    )

    def replay(linear, batch):
        linear._forward_metadata = None  # waits for the GPU
        backend = hybrid_linear_attn_backend.HybridLinearAttnBackend(full, linear, [0])
        capture.prepare_attention(SimpleNamespace(attn_backend=backend), batch, alone=True)
        assert planned == [batch]

    assert prepare("mamba2", "EXTEND", 2, through=replay) == [70, 0]


def test_a_request_that_finds_no_room_forgets_its_cached_state(monkeypatch):
    """Its next try finds nothing in the cache, and gets an empty slot."""
    request = MagicMock(mamba_pool_idx=None, mamba_cow_src_index=None, session=None)

    def match(*_, **__):
        request.mamba_pool_idx, request.mamba_cow_src_index = torch.tensor(1), torch.tensor([7])

    state_pool.turn_away(monkeypatch, request, match)
    assert request.mamba_pool_idx is None
    request.mamba_pool_idx, request.mamba_needs_clear = torch.tensor(2), True
    batch = SimpleNamespace()
    schedule_batch.ScheduleBatch._collect_deferred_mamba_cow_and_clear(batch, [request])
    assert batch.mamba_cow_src_indices is None
    assert batch.mamba_clear_indices.tolist() == [2]
