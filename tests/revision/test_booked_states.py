"""Which slot the scheduler books as the state behind a track interval, and which states the prefix
cache may keep: the release's own preparation, copy and booking of batches, on the CPU."""

from itertools import product
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from host import late, state_pool
from host.unsaid import Unsaid

with late.modules():
    from sglang.srt.managers import schedule_batch
    from sglang.srt.managers.scheduler_components import batch_result_processor as results
    from sglang.srt.model_executor import forward_batch_info
    from sglang.srt.speculative import spec_info

STEPS = pytest.mark.revision(">=0.5.13,<0.5.18")
DRAFTS = pytest.mark.revision(">=0.5.14,<0.5.22")
INTERVAL, SLOTS = 4, 8
LONG_INTERVAL, COUNT = 8, 4  # of drafts: tokens of an interval, and of a step
PROMPT, COMPUTED = 100, 300


# --- each order of decoding and prefill batches


class Pool:
    """What each slot holds: the number of tokens whose state was written last."""

    def __init__(self, lazy):
        self.lazy, self.free = lazy, list(range(SLOTS))
        self.states = dict.fromkeys(range(SLOTS), 0)
        self.mamba_allocator = SimpleNamespace(
            alloc=lambda count: [self.free.pop()],
            free=lambda slots: self.free.extend(slots.tolist()),
        )

    def get_mamba_ping_pong_other_idx(self, index):
        return 1 - index

    def set_mamba_ping_pong_slot(self, request, index, slot):
        request.mamba_ping_pong_track_buffer[index] = slot

    def kept(self, request):
        """The state that the prefix cache gets if the request ends now."""
        index = request.mamba_next_track_idx
        slot = int(request.mamba_ping_pong_track_buffer[index if self.lazy else 1 - index])
        return self.states[slot]


@pytest.fixture(params=[False, True], ids=["extra_buffer", "extra_buffer_lazy"])
def lazy(request, monkeypatch):
    """Whether the second slot is given out at a boundary alone."""
    modules = schedule_batch, results
    state_pool.keep_states(monkeypatch, *modules, interval=INTERVAL, lazy=request.param)
    monkeypatch.setattr(schedule_batch, "alloc_for_decode", lambda *_, **__: torch.zeros(1))
    monkeypatch.setattr(schedule_batch, "set_mamba_track_indices_from_reqs", lambda *_: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    return request.param


def decoding(pool, length):
    """A batch of one request with this many tokens whose prefill is behind it."""
    first, second = pool.free.pop(), -1 if pool.lazy else pool.free.pop()
    request = SimpleNamespace(
        mamba_ping_pong_track_buffer=torch.tensor([first, second]),
        mamba_next_track_idx=0,
        mamba_last_track_seqlen=None,
        decode_batch_idx=0,
        kv_committed_len=length,
        kv_allocated_len=length,
        finished=lambda: False,
    )
    penalties = SimpleNamespace(is_required=False)
    return schedule_batch.ScheduleBatch(
        reqs=[request],
        req_to_token_pool=pool,
        model_config=SimpleNamespace(is_encoder_decoder=False),
        sampling_info=SimpleNamespace(penalizer_orchestrator=penalties),
        spec_algorithm=spec_info.SpeculativeAlgorithm.NONE,
        enable_overlap=True,
        device="cpu",
        seq_lens=torch.tensor([length]),
        seq_lens_cpu=torch.tensor([length]),
        orig_seq_lens=torch.tensor([length]),
    )


def launched(pool, batch):
    """Prepare and launch a step: its forward leaves the state behind an interval in a slot."""
    batch.prepare_for_decode()
    [request], length = batch.reqs, int(batch.seq_lens_cpu[0])
    if bool(batch.mamba_track_mask[0]):
        slot = request.mamba_ping_pong_track_buffer[request.mamba_next_track_idx]
        pool.states[int(slot)] = length
    return batch.copy()


def serve(order, lazy, length):
    """Pairs of tokens booked and tokens whose state is kept, behind each result; last the tokens
    that were decoded. A batch is launched before the result of the batch before is processed."""
    kind = state_pool.booking_class(results)
    processor, pool = kind.__new__(kind), Pool(lazy)
    batch, now, booked = decoding(pool, length), None, []
    [request] = batch.reqs
    for kind_of_batch in (*order, "prefill"):
        previous, now = now, None
        if kind_of_batch == "decode":
            now = launched(pool, batch)
        if previous is not None:
            processor._mamba_prefix_cache_update(request, previous, SimpleNamespace(), 0)
            booked.append((request.mamba_last_track_seqlen, pool.kept(request)))
    return booked, request.kv_committed_len


@STEPS
@pytest.mark.parametrize("length", [INTERVAL, INTERVAL + 1, 2 * INTERVAL - 1])
def test_every_order_of_batches_books_the_state_that_is_kept(lazy, length):
    wrong = []
    for order in product(("decode", "prefill"), repeat=8):
        booked, decoded = serve(order, lazy, length)
        last = decoded // INTERVAL * INTERVAL
        pairs = [pair for pair in booked if pair[0] is not None]
        right = all(tokens == state for tokens, state in pairs)
        complete = last <= length or booked[-1][0] == last
        if not right or not complete:
            wrong.append((order, booked))
    assert not wrong, f"{len(wrong)} of 256 orders, the first: {wrong[0]}"


# --- steps of drafts, where the grammar of an answer ends amid them


class Grammar:
    """Ends with the token 0, like the end of a JSON object."""

    finished = ended = False

    def accept_token(self, token):
        self.ended = token == 0

    def is_terminated(self):
        return self.ended


@pytest.fixture
def processor(monkeypatch):
    state_pool.keep_states(monkeypatch, results, interval=LONG_INTERVAL)
    kind = state_pool.booking_class(results)
    made = kind.__new__(kind)
    worker = SimpleNamespace(on_verify_complete_cpu=lambda *_, **__: None)
    object.__setattr__(made, "model_worker", worker)  # the class is frozen
    object.__setattr__(made, "tree_cache", SimpleNamespace(page_size=1))
    return made


def drafting(length):
    """A request whose slots hold the number of tokens whose state was written last."""
    request = Unsaid(
        rid="one",
        grammar=Grammar(),
        finished=lambda: False,
        output_ids=[],
        kv_committed_len=length,
        spec_verify_ct=0,
        spec_num_correct_drafts=0,
        update_spec_correct_drafts_histogram=lambda _: None,
        mamba_ping_pong_track_buffer=torch.tensor([0, 1]),
        mamba_next_track_idx=0,
        mamba_last_track_seqlen=None,
    )
    request.kv = request
    return request


def verified(processor, request, length, tokens, slots):
    """A verified step: its forward leaves the state behind each interval that its tokens pass."""
    end = (length + len(tokens)) // LONG_INTERVAL * LONG_INTERVAL
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
    result = Unsaid(
        next_token_ids=torch.tensor(tokens + [9] * (COUNT - len(tokens))),
        accept_lens=torch.tensor([len(tokens)]),
        speculative_num_draft_tokens=COUNT,
        speculative_output_stride=COUNT,
        num_non_draft_tokens_per_req=1,
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


@DRAFTS
@pytest.mark.parametrize("end", range(COUNT))
def test_a_grammar_that_ends_amid_drafts_books_the_state_that_is_kept(processor, end):
    """Every run of three steps, the last of which is cut behind its token number `end`."""
    wrong = []
    counts = [range(1, COUNT + 1)] * 3
    for start, *accepted in product(range(LONG_INTERVAL), *counts, range(COUNT)):
        *whole, behind = accepted
        begin = length = LONG_INTERVAL + start
        request, slots = drafting(begin), {0: None, 1: None}
        for count in whole:
            length = verified(processor, request, length, [9] * count, slots)
        last = [9] * end + [0] + [9] * behind
        length = verified(processor, request, length, last[:COUNT], slots)
        booked, passed = request.mamba_last_track_seqlen, length // LONG_INTERVAL * LONG_INTERVAL
        if passed > begin and (booked, kept_state(request, slots)) != (passed, passed):
            wrong.append((start, whole, last, booked, slots))
    assert not wrong, f"{len(wrong)} runs, the first: {wrong[0]}"


# --- the end of a request


def ends(monkeypatch, request):
    """Ends a request as the release does; the answer says whether its state may be kept."""
    asked = []
    arguments = state_pool.keep_states(
        monkeypatch,
        results,
        interval=LONG_INTERVAL,
        enable_hisparse=False,
        disaggregation_decode_enable_offload_kvcache=False,
    )
    for name in ("get_disagg", "get_memory"):
        monkeypatch.setattr(results, name, lambda: arguments, raising=False)
    monkeypatch.setattr(
        results, "release_kv_cache", lambda request, cache, is_insert: asked.append(is_insert)
    )
    kind = state_pool.booking_class(results)
    processor = MagicMock(spec=kind)
    processor.server_args, processor.draft_worker = arguments, None
    processor.model_worker = SimpleNamespace()
    batch = SimpleNamespace(mamba_track_mask_cpu=None)
    kind._handle_finish_state_updated_req(processor, request, batch, None, 0, None)
    return asked.pop()


def request_of(
    monkeypatch, *, stripped=False, tracked=None, drafted=False, grammar=None, hybrid=True
):
    """A request of a hybrid model that ends after COMPUTED tokens; `tracked`: of how many tokens
    the state is that extra_buffer would keep, None with no_buffer."""
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


@DRAFTS
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
def test_a_state_is_kept_where_its_key_reaches(monkeypatch, words, kept):
    """`--strip-thinking-cache` ends the key behind the prompt. A grammar may have cut the last step
    of drafts, whose whole state no_buffer would keep."""
    assert ends(monkeypatch, request_of(monkeypatch, **words)) is kept
