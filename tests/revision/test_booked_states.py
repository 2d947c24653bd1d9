"""Which slot the scheduler books as the state behind a track interval, in each order of decoding
and prefill batches: the release's own preparation, copy and booking of a batch, on the CPU."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch
from host import late

with late.modules():
    from sglang.srt.managers import schedule_batch
    from sglang.srt.managers.scheduler_components import batch_result_processor
    from sglang.srt.speculative import spec_info

pytestmark = pytest.mark.revision(">=0.5.13,<0.5.18")
INTERVAL = 4
SLOTS = 8


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
    arguments = SimpleNamespace(
        mamba_track_interval=INTERVAL,
        enable_mamba_extra_buffer=lambda: True,
        enable_mamba_extra_buffer_lazy=lambda: request.param,
    )
    execution = SimpleNamespace(mamba=arguments)
    for module in (schedule_batch, batch_result_processor):
        for name in ("get_global_server_args", "get_server_args"):
            monkeypatch.setattr(module, name, lambda: arguments, raising=False)
        monkeypatch.setattr(module, "get_exec", lambda: execution, raising=False)
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


def step(pool, batch):
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
    [kind] = [
        value
        for value in vars(batch_result_processor).values()
        if hasattr(value, "_mamba_prefix_cache_update")
    ]
    processor, pool = kind.__new__(kind), Pool(lazy)
    batch, launched, booked = decoding(pool, length), None, []
    [request] = batch.reqs
    for kind_of_batch in (*order, "prefill"):
        previous, launched = launched, None
        if kind_of_batch == "decode":
            launched = step(pool, batch)
        if previous is not None:
            processor._mamba_prefix_cache_update(request, previous, SimpleNamespace(), 0)
            booked.append((request.mamba_last_track_seqlen, pool.kept(request)))
    return booked, request.kv_committed_len


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
