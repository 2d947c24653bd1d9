"""Decoding behind a captured prefill and behind an eager one, with the release's own layers and
interpreted kernels."""

import functools
from types import SimpleNamespace

import torch
from sglang.srt.mem_cache.memory_pool import MambaPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.prefill_graph.captured import gdn, mamba2, tables

from host import graph
from host.references import (
    compare_captured,
    compare_captured_gdn,
    compare_mamba2,
    compare_scan,
    compare_tracked_gdn,
)
from host.references import mamba2 as plain
from host.served import published

SPARE, CHUNK = 3, 16


def compare(kind, lengths, prefixes, rows, steps):
    """Decode `steps` tokens of each request, from the pool that a prefill in `rows` rows has left.
    Request i has slot i + 1.

    Returns `bits`: how many values of the outputs and of the pool differ from those behind the
    release's eager prefill. And of the first outputs alone, where a request's window or state was
    not kept (`no window`, `no state`), or where two requests have each other's (`swapped`).
    """
    torch.manual_seed(4)
    layer, before, eager, captured = dict(mamba2=_mamba2, gdn=_gdn)[kind](lengths, prefixes, rows)
    tokens = torch.randn(steps, len(lengths), 128, dtype=captured[0].dtype)
    lost = {"no window": _stale(0), "no state": _stale(1), "swapped": _swapped}
    decode = functools.partial(_decoded, kind, layer, lengths, prefixes)
    wanted = decode(eager, tokens)
    found = {
        name: plain.unlike(wanted[:1], decode(change(_copied(captured), before), tokens[:1])[:1])
        for name, change in lost.items()
    }
    return found | dict(bits=plain.unlike(wanted, decode(captured, tokens)))


def _mamba2(lengths, prefixes, rows):
    """The layer, and the pool before a prefill, behind an eager one and behind a captured one."""
    mixer = compare_captured.mixer_row_by_row()
    conv, ssm = compare_mamba2.drawn_pool(mixer, len(lengths) + SPARE)
    hidden, before = _hidden(rows, lengths, torch.float32), (conv, ssm)
    eager, captured = _copied(before), _copied(before)
    compare_scan.eager(mixer, *eager, hidden[: sum(lengths)], lengths, prefixes, CHUNK)
    made = _filled(lengths, prefixes, rows, CHUNK)
    cache = MambaPool.State(conv=[captured[0]], temporal=captured[1])
    with torch.no_grad(), compare_scan.small(CHUNK):
        mamba2.run(mixer, cache, made, hidden)
    return mixer, before, eager, captured


def _gdn(lengths, prefixes, rows):
    """As _mamba2."""
    layer, count = compare_captured_gdn.one_layer(), len(lengths)
    conv = torch.randn(count + SPARE, layer.conv_dim, 3).to(compare_captured_gdn.TYPE)
    state = 0.1 * torch.randn(count + SPARE, layer.num_v_heads, layer.head_v_dim, layer.head_k_dim)
    hidden, slots = _hidden(rows, lengths, conv.dtype), torch.arange(1, count + 1)
    before = conv, compare_captured_gdn.cleared(state, slots, prefixes)
    eager, captured = _copied(before), _copied(before)
    words = lengths, prefixes, slots
    compare_captured_gdn.eager(layer, eager, hidden[: sum(lengths)], *words)
    made = _filled(lengths, prefixes, rows, gdn.CHUNK)
    cache = MambaPool.State(conv=[captured[0]], temporal=captured[1])
    compare_captured_gdn.replayed(layer, cache, made, hidden, *words)
    return layer, before, eager, captured


def _hidden(rows, lengths, dtype):
    """A batch's rows, and NaN behind it."""
    hidden = torch.randn(rows, 128).to(dtype)
    hidden[sum(lengths) :] = float("nan")
    return hidden


def _filled(lengths, prefixes, rows, chunk):
    made = tables.Tables(rows, len(lengths) + 1, chunk, torch.device("cpu"))
    made.fill(lengths, [cached > 0 for cached in prefixes], torch.arange(1, len(lengths) + 1))
    return made


def _decoded(kind, layer, lengths, prefixes, pool, tokens):
    """What the release's layer makes of each step's tokens, and the pool behind them."""
    made = []
    for step, hidden in enumerate(tokens, start=1):
        batch = _batch([sum(pair) + step for pair in zip(lengths, prefixes)])
        with torch.no_grad():
            made.append(dict(mamba2=_mamba2_step, gdn=_gdn_step)[kind](layer, pool, batch, hidden))
    return [*made, *pool]


def _batch(lengths):
    """A decode of requests that have so many tokens, the new one among them."""
    return graph.batch_of(
        [1] * len(lengths),
        [length - 1 for length in lengths],
        forward_mode=ForwardMode.DECODE,
        extend_num_tokens=None,
        seq_lens_cpu=torch.tensor(lengths),
    )


def _mamba2_step(mixer, pool, batch, hidden):
    from sglang.srt.layers.attention.mamba import ops

    ops.initialize_mamba_selective_state_update_backend(SimpleNamespace(mamba_backend="triton"))
    linear = compare_mamba2.backend(*pool)
    linear.init_forward_metadata(batch)
    output = torch.full_like(hidden, float("nan"))
    words = compare_mamba2.words(mixer, hidden, output)
    if "forward_batch" in type(linear).forward.__annotations__:  # from 0.5.13
        words["forward_batch"] = batch
    linear.forward(**words)
    return output


def _gdn_step(layer, pool, batch, hidden):
    linear = compare_tracked_gdn.backend(batch, pool)
    linear.forward = linear.forward_decode
    kept = MambaPool.State(conv=[pool[0]], temporal=pool[1])
    linear.req_to_token_pool.mamba2_layer_cache = lambda layer_id: kept
    linear.init_forward_metadata(batch)
    with published(linear):
        return layer(hidden, batch)


def _copied(pool):
    return tuple(states.clone() for states in pool)


def _stale(part):
    """The second request's window (0) or state (1) as it was before the prefill."""

    def change(pool, before):
        pool[part][2] = before[part][2]
        return pool

    return change


def _swapped(pool, before):
    """The first two requests' states, each in the other's slot."""
    for states in pool:
        states[[1, 2]] = states[[2, 1]]
    return pool
