"""A release's own pool of recurrent states, on the CPU, and streams that do their work late."""

from contextlib import contextmanager
from types import SimpleNamespace

from . import models, process


def build(arguments, slots):
    """The release's pool of requests with states for one layer with a gated delta net, for `slots`
    states. arguments: the release's ServerArgs."""
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

    process.use_server_args(arguments)
    process.start_groups()
    process.start_dp_attention(arguments, 128, None)
    params = models.config_of("qwen3_next", num_hidden_layers=4).mamba2_cache_params
    return process.call(
        HybridReqToTokenPool,
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


def booking_class(module):
    """The class of the release's `module` that books which states the prefix cache may keep."""
    name = "_mamba_prefix_cache_update"
    [found] = [value for value in vars(module).values() if hasattr(value, name)]
    return found


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
