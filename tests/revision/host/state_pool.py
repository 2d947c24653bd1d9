"""A release's own pool of recurrent states, on the CPU, and streams that do their work late."""

from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch

from . import late, models, process

with late.modules():
    from sglang.srt.managers import scheduler
    from sglang.srt.mem_cache import memory_pool

_LISTS = "state_indices", "query_start_loc", "retrieve_next_token", "retrieve_next_sibling"


def build(slots):
    """The release's pool of requests with `slots` states, for one layer with a gated delta net."""
    arguments = process.default_server_args()
    process.use_server_args(arguments)
    process.start_groups()
    process.start_dp_attention(arguments, 128, None)
    params = models.config_of("qwen3_next", num_hidden_layers=4).mamba2_cache_params
    return process.call(
        memory_pool.HybridReqToTokenPool,
        size=slots,
        mamba_size=slots,
        mamba_spec_state_size=slots,
        max_context_len=64,
        device="cpu",
        enable_memory_saver=False,
        cache_params=params,
        mamba_layer_ids=params.layers,
        enable_mamba_extra_buffer=False,
    )


def keep_states(monkeypatch, *modules, interval, lazy=False, **more):
    """Let `modules` find a server whose prefix cache keeps the states of decoding behind each
    `interval` tokens (extra_buffer; lazy: extra_buffer_lazy), in each way that a release asks.

    more: further server arguments. Returns the server arguments.
    """
    typed = SimpleNamespace(
        mamba_track_interval=interval,
        enable_mamba_extra_buffer=lambda: True,
        enable_mamba_extra_buffer_lazy=lambda: lazy,
        **more,
    )
    resolved = SimpleNamespace(mamba_track_interval=interval, enable_mamba_extra_buffer_lazy=lazy)
    answers = dict(
        get_global_server_args=typed,
        get_server_args=typed,
        get_exec=SimpleNamespace(mamba=resolved),
        mamba_extra_buffer_enabled=True,
        mamba_extra_buffer_lazy_enabled=lazy,
        mamba_track_grid=interval,
    )
    for module in modules:
        for name, value in answers.items():
            monkeypatch.setattr(module, name, lambda *_, value=value: value, raising=False)
    return typed


def keep_steps(step, *modules):
    """Let `modules` find a server whose prefix cache keeps the states behind whole steps of so many
    tokens of a prefill. Nothing is put back: for programs that end."""
    arguments = SimpleNamespace(mamba_cache_chunk_size=step, enable_page_major_kv_layout=False)
    for module in modules:
        module.get_server_args = module.get_global_server_args = lambda: arguments
        module.mamba_cache_chunk_size = lambda: step  # from 0.5.18


def booking_class(module):
    """The class of the release's `module` that books which states the prefix cache may keep."""
    name = "_mamba_prefix_cache_update"
    [found] = [value for value in vars(module).values() if hasattr(value, name)]
    return found


def backend(kind, cache):
    """A backend of the release's class `kind`, without its __init__, over a pool whose slot i is
    request i's. cache: what a layer has of the pool."""
    made = kind.__new__(kind)
    made.device, made.pad_slot_id, made.topk = "cpu", -1, 0
    made.is_draft_worker = made.enable_unified_memory = False
    for name in (*_LISTS, "retrieve_parent_token"):
        setattr(made, f"{name}_list", [])
    made.req_to_token_pool = SimpleNamespace(
        mamba2_layer_cache=lambda layer_id: cache,
        get_mamba_indices=lambda requests: requests.to(torch.int32),
        translate_mamba_indices=lambda slots: slots,  # from 0.5.15
        mamba_pool=SimpleNamespace(enable_linear_replayssm=False),
    )
    return made


def turn_away(monkeypatch, request, match, answer="NO_TOKEN", **fields):
    """Let the release's scheduler look `request` up in the prefix cache with match(…), and find no
    room for it. fields: of the scheduler."""
    request.init_next_round_input = match
    adder = MagicMock(can_run_list=[])
    adder.add_one_req.return_value = getattr(scheduler.AddReqResult, answer)
    monkeypatch.setattr(scheduler, "PrefillAdder", lambda *_, **__: adder)
    names = "try_preemption", "enable_lora", "enable_hierarchical_cache", "enable_hicache_storage"
    off = dict.fromkeys((*names, "enable_priority_preemption"), False)
    one = MagicMock(waiting_queue=[request], chunked_req=None, dllm_config=None, **off, **fields)
    one.grammar_queue, one.running_batch.batch_is_full = [], False
    one._should_delay_dflash_prefill_for_batching.return_value = False
    one.grammar_manager.has_waiting_grammars.return_value = False
    one.get_num_allocatable_reqs.return_value = 8
    kind = scheduler.Scheduler
    if hasattr(kind, "_get_new_batch_prefill_raw"):
        assert kind._get_new_batch_prefill_raw(one, None) is None
    else:
        assert kind.get_new_batch_prefill(one) is None
    assert adder.add_one_req.called


def states_of(pool):
    """Each [layers, slots, ...]."""
    cache = pool.mamba_pool.mamba_cache
    conv = cache.conv if isinstance(cache.conv, list) else [cache.conv]
    return [*conv, cache.temporal]


class Stream:
    """left: launched work that is not done; waited: for which other streams it has waited."""

    def __init__(self):
        self.left, self.waited = [], []

    def finish(self):
        while self.left:
            self.left.pop(0)()

    def wait_stream(self, other):
        self.waited.append(other)
        other.finish()


class Module:
    """What stands for torch.cuda: work is done at once on the current stream, and behind what is
    left on another stream that is entered."""

    def __init__(self):
        self.current = Stream()

    def current_stream(self):
        return self.current

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        stream.finish()
        yield
        self.current = before


class Named:
    """A pool as far as runners and captured layers look at one: request i has slot i + 1, and slots
    have other names outside of the pool."""

    size = 32
    layer_transfer_counter = None
    enable_mamba_extra_buffer = False

    def mamba2_layer_cache(self, layer_id):
        return f"the states of layer {layer_id}"

    def get_mamba_indices(self, requests):
        return requests + 1

    def translate_mamba_indices(self, slots):
        return slots + 100
