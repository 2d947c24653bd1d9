"""When recurrent states are emptied and copied beside a forward under way: the release's own
scheduler, pool and prefix cache, on the CPU, with streams that do their work late."""

import inspect
import textwrap
from types import SimpleNamespace

import pytest
import torch
from host import late, prefix_cache, state_pool

with late.modules():
    from sglang.srt.disaggregation import prefill
    from sglang.srt.managers import scheduler as managers_scheduler
    from sglang.srt.mem_cache import mamba_radix_cache, radix_cache
    from sglang.srt.prefill_graph.cache import state_slots

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.13")
SLOTS = 3
EXTRA_BUFFER = pytest.mark.revision(">=0.5.7")  # the prefix cache keeps states inside of prompts
WRITTEN, CACHED = 7.0, 3.0  # by the forward under way; in the cached slot


class Server:
    """The release's pool, ordered as the release's Scheduler.__init__ orders the pool, and a
    forward under way that writes some slots."""

    def __init__(self, monkeypatch, **options):
        self.pool = state_pool.build(SLOTS)
        self.module, self.forward = state_pool.Module(), state_pool.Stream()
        self.scheduler = scheduler(self.pool, self.forward, self.module, **options)
        start_overlap(self.scheduler, monkeypatch)

    def launch(self, slots):
        """A forward that writes the states of `slots`, and is under way."""

        def write():
            for states in state_pool.states_of(self.pool):
                states[:, slots] = WRITTEN

        self.forward.left.append(write)

    def values(self, slot):
        """What the states of `slot` hold once all work is done."""
        self.forward.finish()
        found = [states[:, slot].unique() for states in state_pool.states_of(self.pool)]
        return {float(value) for values in found for value in values}

    def was_host_free(self):
        """Whether the scheduler's stream, which the host reads from, waited for no forward."""
        return self.forward not in self.module.current.waited


def scheduler(pool, forward, module, overlap=True, stages=1, role="null", hierarchical=False):
    """What the functions under test read of a scheduler."""
    return SimpleNamespace(
        enable_overlap=overlap,
        pp_size=stages,
        server_args=SimpleNamespace(
            disaggregation_mode=role, enable_hierarchical_cache=hierarchical
        ),
        device="cpu",
        device_module=module,
        is_hybrid_ssm=True,
        forward_stream=forward,
        req_to_token_pool=pool,
        dllm_config=None,
        _abort_on_waiting_timeout=lambda: None,
        _abort_on_queued_timeout=lambda: None,
        _abort_on_running_timeout=lambda: None,
    )


def start_overlap(scheduler, monkeypatch):
    """Run the lines of the release's Scheduler.__init__ from init_overlap to the next blank one."""
    source = inspect.getsource(managers_scheduler.Scheduler.__init__)
    first = source.index("        self.init_overlap()\n")
    lines = source[first : source.index("\n\n", first)]
    scheduler.init_overlap = lambda: None
    with monkeypatch.context() as patched:
        patched.setattr(torch, "get_device_module", lambda *_: scheduler.device_module)
        exec(textwrap.dedent(lines), {"self": scheduler})


def given_again(server):
    """The slot of a request that has ended, given to the next request at once, while a batch under
    way still decodes the first."""
    states = server.pool.mamba_pool
    slots = states.alloc(SLOTS)
    server.launch(slots[:1])
    states.free(slots[:1])
    [slot] = states.alloc(1)
    assert slot == slots[0]
    return int(slot)


@pytest.mark.parametrize("options", [{}, dict(overlap=False, stages=2)], ids=["overlap", "stages"])
@pytest.mark.parametrize("role", ["null", "prefill"])
def test_a_slot_that_is_given_again_is_empty(monkeypatch, options, role):
    """Gated delta nets start from what a slot holds, whoever wrote it."""
    one = Server(monkeypatch, role=role, **options)
    assert one.values(given_again(one)) == {0.0}
    assert one.was_host_free()


def test_a_cached_state_is_copied_behind_the_forward_that_writes_the_slot(monkeypatch):
    """The slot of a request that has ended gets the state of a cached beginning."""
    one = Server(monkeypatch)
    states = one.pool.mamba_pool
    cached, ended = states.alloc(1), states.alloc(1)
    for tensor in state_pool.states_of(one.pool):
        tensor[:, cached] = CACHED
    cache = cache_of(one.pool, cached)
    states.alloc(1)
    one.launch(ended)
    states.free(ended)
    request = SimpleNamespace(mamba_pool_idx=None)
    match(cache, request)
    assert request.mamba_pool_idx == ended
    assert one.values(int(ended)) == {CACHED}
    assert one.was_host_free()


def cache_of(pool, state):
    """The release's prefix cache, which holds `state` [1] behind the tokens 1 to 8."""
    cache = prefix_cache.build(mamba_radix_cache.MambaRadixCache, pool)
    call(cache, "insert", "InsertParams", value=torch.arange(8), mamba_value=state)
    return cache


def match(cache, request):
    call(cache, "match_prefix", "MatchPrefixParams", req=request, cow_mamba=True)


def call(cache, name, params, **words):
    """A method of the prefix cache, for the tokens 1 to 8, in this release's way."""
    key = radix_cache.RadixKey(list(range(1, 9)), None)
    return prefix_cache.call(cache, name, params, key=key, **words)


class Stashed(Exception):
    """The scheduler got as far as that."""


def by_scheduler(scheduler, monkeypatch):
    if hasattr(managers_scheduler.Scheduler, "stash_chunked_request"):
        managers_scheduler.Scheduler.stash_chunked_request(scheduler, scheduler.chunked_req)
    else:
        managers_scheduler.Scheduler.get_next_batch_to_run(scheduler)


def by_prefill_server(scheduler, monkeypatch):
    def cache_chunk(request, cache, chunked):
        cache.cache_unfinished_req(request, chunked=chunked)

    monkeypatch.setattr(prefill, "maybe_cache_unfinished_req", cache_chunk, raising=False)
    prefill.SchedulerDisaggregationPrefillMixin.process_prefill_chunk(scheduler)


@EXTRA_BUFFER
@pytest.mark.parametrize("stash", [by_scheduler, by_prefill_server])
def test_a_chunks_state_is_copied_behind_the_forward_that_writes_it(monkeypatch, stash):
    """Who shared the prompt went on from what the slot had held before."""
    one, kept = Server(monkeypatch), []
    states = one.pool.mamba_pool
    tracked = states.alloc(1)

    def cache_unfinished_req(request, chunked):
        kept.append(int(states.fork_from(tracked)))
        raise Stashed

    one.scheduler.tree_cache = SimpleNamespace(
        cache_unfinished_req=cache_unfinished_req, supports_mamba=lambda: True
    )
    one.scheduler.chunked_req = object()
    one.launch(tracked)
    with pytest.raises(Stashed):
        stash(one.scheduler, monkeypatch)
    assert one.values(kept[0]) == {WRITTEN}
    assert one.was_host_free()


def test_streams_of_the_hierarchical_cache_find_states_in_order(monkeypatch):
    """They wait for the scheduler's stream alone."""
    one = Server(monkeypatch, hierarchical=True)
    given_again(one)
    assert not one.was_host_free()


@pytest.mark.parametrize(
    "options", [dict(overlap=False), dict(role="decode")], ids=["one stream", "decode server"]
)
def test_others_wait_for_nothing(monkeypatch, options):
    """One stream alone, or slots that another host writes."""
    one = Server(monkeypatch, **options)
    given_again(one)
    assert one.forward.left and not one.forward.waited
    assert one.was_host_free()


def test_numbers_of_slots_are_kept_until_the_forwards_stream_has_read_them(monkeypatch):
    """The allocator would give their memory to the scheduler's next tensor."""
    one, recorded = Server(monkeypatch), []
    numbers = SimpleNamespace(
        device=SimpleNamespace(type="cuda"), record_stream=lambda stream: recorded.append(stream)
    )
    ordered = state_slots.OrderedSlots(one.pool.mamba_pool, one.forward, one.module, False)
    with ordered._behind_forwards(numbers):
        pass
    assert recorded == [one.forward]
