"""Whether the scheduler lets the prefix cache keep the state of a request that ends: the release's
own end of a request, on the CPU."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

pytestmark = pytest.mark.revision(">=0.5.14,<0.5.22")
PROMPT, COMPUTED = 100, 300


@pytest.fixture
def ends(monkeypatch):
    """Ends a request as the release does; the answer says whether its state may be kept."""
    from sglang.srt.managers.scheduler_components import batch_result_processor as module

    asked = []
    arguments = SimpleNamespace(
        enable_mamba_extra_buffer_lazy=lambda: False,
        enable_hisparse=False,
        disaggregation_decode_enable_offload_kvcache=False,
        mamba=SimpleNamespace(enable_mamba_extra_buffer_lazy=False),
    )
    for name in ("server_args", "global_server_args", "exec", "disagg", "memory"):
        monkeypatch.setattr(module, f"get_{name}", lambda: arguments, raising=False)
    monkeypatch.setattr(module, "mamba_extra_buffer_lazy_enabled", lambda: False, raising=False)
    monkeypatch.setattr(
        module, "release_kv_cache", lambda request, cache, is_insert: asked.append(is_insert)
    )
    [kind] = [
        value for value in vars(module).values() if hasattr(value, "_mamba_prefix_cache_update")
    ]
    processor = MagicMock(spec=kind)
    processor.server_args, processor.draft_worker = arguments, None
    processor.model_worker = SimpleNamespace()
    batch = SimpleNamespace(mamba_track_mask_cpu=None)

    def end(request):
        kind._handle_finish_state_updated_req(processor, request, batch, None, 0, None)
        return asked.pop()

    return end


@pytest.fixture
def request_of(monkeypatch):
    """A request of a hybrid model that ends after COMPUTED tokens; `tracked`: of how many tokens
    the state is that extra_buffer would keep, None with no_buffer."""
    import torch
    from sglang.srt.managers import schedule_batch

    def make(*, stripped=False, tracked=None, drafted=False, grammar=None, hybrid=True):
        arguments = SimpleNamespace(strip_thinking_cache=stripped)
        for name in ("server_args", "global_server_args", "serving"):
            monkeypatch.setattr(schedule_batch, f"get_{name}", lambda: arguments, raising=False)
        request = schedule_batch.Req.__new__(schedule_batch.Req)
        kind = getattr(schedule_batch, "ReqKvInfo", SimpleNamespace)  # from 0.5.16 on
        record = kind.__new__(kind)
        of_states = record if hasattr(kind, "mamba_pool_idx") else request
        of_states.mamba_pool_idx = torch.tensor(3) if hybrid else None
        of_states.mamba_ping_pong_track_buffer = None if tracked is None else torch.tensor([5, 6])
        of_states.mamba_last_track_seqlen = tracked
        (record if hasattr(kind, "kv_committed_len") else request).kv_committed_len = COMPUTED
        request.kv, request.rid, request.origin_input_ids = record, "one", [1] * PROMPT
        request.reasoning_tokens, request.grammar = 50, grammar
        request.spec_verify_ct = int(drafted)
        request.multimodal_inputs = request.session = None
        request.time_stats, request.mamba_lazy_is_insert = MagicMock(), True
        request.finished_reason = "stop"
        return request

    return make


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ({"tracked": 256}, True),
        ({}, True),
        ({"stripped": True, "tracked": 256}, False),
        ({"stripped": True, "tracked": 64}, True),
        ({"stripped": True}, False),
        ({"drafted": True}, True),
        ({"drafted": True, "grammar": "json"}, False),
        ({"drafted": True, "grammar": "json", "tracked": 256}, True),
        ({"grammar": "json"}, True),
        ({"stripped": True, "hybrid": False}, True),
    ],
    ids=str,
)
def test_a_state_is_kept_where_its_key_reaches(ends, request_of, words, kept):
    """`--strip-thinking-cache` ends the key behind the prompt. A grammar may have cut the last step
    of drafts, whose whole state no_buffer would keep."""
    assert ends(request_of(**words)) is kept
