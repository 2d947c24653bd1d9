"""Which slot the scheduler books as the state behind a track interval where the grammar of an
answer ends amid the drafts of a step: the release's own booking of a verified step, on the CPU."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch
from host import late

with late.modules():
    from sglang.srt.managers.scheduler_components import batch_result_processor
    from sglang.srt.model_executor import forward_batch_info
    from sglang.srt.speculative import spec_info

pytestmark = pytest.mark.revision(">=0.5.14,<0.5.22")
INTERVAL = 8
DRAFTS = 4


class Grammar:
    """Ends with the token 0, like the end of a JSON object."""

    finished = ended = False

    def accept_token(self, token):
        self.ended = token == 0

    def is_terminated(self):
        return self.ended


@pytest.fixture
def processor(monkeypatch):
    arguments = SimpleNamespace(
        mamba_track_interval=INTERVAL, enable_mamba_extra_buffer_lazy=lambda: False
    )
    execution = SimpleNamespace(
        mamba=SimpleNamespace(mamba_track_interval=INTERVAL, enable_mamba_extra_buffer_lazy=False)
    )
    for name, value in {
        "get_global_server_args": arguments,
        "get_server_args": arguments,
        "get_exec": execution,
        "mamba_extra_buffer_lazy_enabled": False,
        "mamba_track_grid": INTERVAL,
    }.items():
        monkeypatch.setattr(
            batch_result_processor, name, lambda *_, value=value: value, raising=False
        )
    [kind] = [
        value
        for value in vars(batch_result_processor).values()
        if hasattr(value, "_mamba_prefix_cache_update")
    ]
    processor = kind.__new__(kind)
    worker = SimpleNamespace(on_verify_complete_cpu=lambda *_, **__: None)
    object.__setattr__(processor, "model_worker", worker)  # the class is frozen
    object.__setattr__(processor, "tree_cache", SimpleNamespace(page_size=1))
    return processor


def request_of(length):
    """A request whose slots hold the number of tokens whose state was written last."""
    request = SimpleNamespace(
        rid="one",
        grammar=Grammar(),
        is_retracted=False,
        finished=lambda: False,
        output_ids=[],
        kv_committed_len=length,
        spec_verify_ct=0,
        spec_num_correct_drafts=0,
        update_spec_correct_drafts_histogram=lambda _: None,
        mamba_ping_pong_track_buffer=torch.tensor([0, 1]),
        mamba_next_track_idx=0,
        mamba_last_track_idx=None,
        mamba_last_track_seqlen=None,
    )
    request.kv = request
    return request


def step(processor, request, length, tokens, slots):
    """A verified step: its forward leaves the state behind each interval that its tokens pass."""
    end = (length + len(tokens)) // INTERVAL * INTERVAL
    slot = request.mamba_next_track_idx
    if end > length:
        slots[slot] = end
    batch = SimpleNamespace(
        reqs=[request],
        has_grammar=True,
        forward_mode=forward_batch_info.ForwardMode.DECODE,
        spec_algorithm=spec_info.SpeculativeAlgorithm.EAGLE,
        mamba_track_buffer_indices=[slot],
        req_to_token_pool=SimpleNamespace(get_mamba_ping_pong_other_idx=lambda index: 1 - index),
    )
    result = SimpleNamespace(
        next_token_ids=torch.tensor(tokens + [9] * (DRAFTS - len(tokens))),
        accept_lens=torch.tensor([len(tokens)]),
        block_accept_lens=None,
        cap_lens=None,
        copy_done=None,
        speculative_num_draft_tokens=DRAFTS,
        speculative_output_stride=DRAFTS,
        num_non_draft_tokens_per_req=1,
        grammar_advanced=False,
        grammar_retained_tokens=None,
    )
    if hasattr(processor, "advance_grammar_fsm"):
        processor.advance_grammar_fsm(result, batch)
    [kept] = processor._resolve_spec_v2_tokens(result, batch)
    request.output_ids.extend(kept)
    request.seqlen = length + len(kept) + 1  # the last token has no state yet
    processor._mamba_prefix_cache_update(request, batch, result, 0)
    return length + len(kept)


def kept_state(request, slots):
    """The state that the prefix cache gets if the request ends now."""
    index = request.mamba_last_track_idx
    return slots[1 - request.mamba_next_track_idx if index is None else index]


@pytest.mark.parametrize("end", range(DRAFTS))
def test_a_grammar_that_ends_amid_drafts_books_the_state_that_is_kept(processor, end):
    """Every run of three steps, the last of which is cut behind its token number `end`."""
    wrong = []
    for start, *accepted in product(range(INTERVAL), *[range(1, DRAFTS + 1)] * 3, range(DRAFTS)):
        *whole, behind = accepted
        request, length, slots = request_of(INTERVAL + start), INTERVAL + start, {0: None, 1: None}
        for count in whole:
            length = step(processor, request, length, [9] * count, slots)
        last = [9] * end + [0] + [9] * behind
        length = step(processor, request, length, last[:DRAFTS], slots)
        booked, passed = request.mamba_last_track_seqlen, length // INTERVAL * INTERVAL
        if passed > INTERVAL + start and (booked, kept_state(request, slots)) != (passed, passed):
            wrong.append((start, whole, last, booked, slots))
    assert not wrong, f"{len(wrong)} runs, the first: {wrong[0]}"
