"""A captured gated delta net, interpreted: beside the release's eager layer, and the plain one."""

import sys
from collections import Counter
from unittest import mock

import torch
from sglang.srt.mem_cache.memory_pool import MambaPool
from sglang.srt.prefill_graph.captured import gdn as captured
from sglang.srt.prefill_graph.captured import tables
from sglang.srt.prefill_graph.kernels import delta_states, tracked_states

from host import graph
from host.references import compare_captured, compare_tracked_gdn, gdn, mamba2
from host.served import published

TYPE, WIDTH, SPARE = compare_tracked_gdn.TYPE, compare_tracked_gdn.WIDTH, 3


def one_layer():
    made = compare_tracked_gdn.layer_on_one_stream()
    for projection in (made.in_proj_qkvz, made.in_proj_ba, made.out_proj):
        projection.forward = compare_captured.row_by_row(projection)
    return made


def replays(batches, rows, places, step=None):
    """Each batch, (lengths, prefixes), through the graph of one size, one after the other. NaN is
    behind every batch. Slots of requests that begin hold what others left, and the pool's order is
    not the batch's.

    step: behind each multiple of how many tokens the prefix cache keeps states; batches then say
    `wanted`, as in compare_captured, too. Returns, over all batches, the largest differences of
    `output`, `conv` and `ssm` from the plain layer; `bits`: how many values of output and states
    differ from the release's layer, run eagerly on the same batch; `others`: how many slots that
    nobody owns have changed; `kept`: how many states were kept; `behind`: the largest value that
    the delta rule leaves behind a batch.
    """
    layer, found = one_layer(), [0.0, 0.0, 0.0]
    bits, others, behind, left = 0, 0, 0.0, 0
    made = tables.Tables(rows, places, captured.CHUNK, torch.device("cpu"), step is not None)
    hidden, (now, then) = torch.zeros(rows, 128, dtype=TYPE), drawn_pool(layer, places + SPARE)
    kept = MambaPool.State(conv=[now], temporal=then)
    with compare_captured.captures():
        made_graph, (output, mixed) = compare_captured.capture(
            made, lambda: with_launches(layer, kept, made, hidden)
        )
    for number, (lengths, prefixes, *wanted) in enumerate(batches):
        torch.manual_seed(number)
        count, total = len(lengths), sum(lengths)
        order = 1 + torch.randperm(places + SPARE - 1)
        slots, said = order[:count], said_of(lengths, prefixes, order, step, *wanted)
        conv, state = drawn_pool(layer, places + SPARE)
        drawn = torch.randn(rows, 128).to(TYPE)
        drawn[total:] = float("nan")
        old = conv.clone(), cleared(state, slots, prefixes)
        pool = [part.clone() for part in old]
        through = lengths, prefixes, slots, said, step
        eagerly = eager(layer, pool, drawn[:total], *through)
        for static, new in zip((hidden, now, then), (drawn, conv, state)):
            static.copy_(new)
        with torch.no_grad():
            made.fill(lengths, [prefix > 0 for prefix in prefixes], slots)
            if said:
                batch = graph.batch_of(lengths, prefixes, req_pool_indices=slots, **said)
                made.track(tracked_states.rows_before(batch, step), batch.mamba_track_indices)
            made_graph.replay()
        written = slots.tolist() + kept_of(said)
        left += len(written) - count
        new = output[:total], now[written], then[written]
        bits += mamba2.unlike(new, (eagerly[0], eagerly[1][written], eagerly[2][written]))
        behind = max([behind, *mixed[0, total:].abs().flatten().tolist()])
        spare = [slot for slot in range(places + SPARE) if slot not in written]
        others += mamba2.changed((now, then), (conv, state), spare)
        for i, _length in enumerate(lengths):
            part, slot = slice(sum(lengths[:i]), sum(lengths[: i + 1])), slots[i]
            before = old[0][slot] * bool(prefixes[i]), compare_tracked_gdn._plain(old[1][slot])
            with torch.no_grad():
                plain = gdn.net(layer, hidden[part], *before)
            new = output[part], now[slot], compare_tracked_gdn._plain(then[slot])
            found = [max(most, one) for most, one in zip(found, mamba2.apart(new, plain))]
    return dict(zip(("output", "conv", "ssm"), found)) | dict(
        bits=bits, others=others, behind=behind, kept=left
    )


def drawn_pool(layer, slots):
    """Random windows and states."""
    heads = layer.num_v_heads, layer.head_v_dim, layer.head_k_dim
    return torch.randn(slots, layer.conv_dim, WIDTH).to(TYPE), 0.1 * torch.randn(slots, *heads)


def said_of(lengths, prefixes, order, step, wanted=None):
    """What a batch says of the states that the prefix cache keeps. order: of the slots; those
    behind the requests' own are the cache's."""
    if step is None:
        return {}
    said = graph.said_of(lengths, prefixes, wanted)
    said["mamba_track_indices"] = order[len(lengths) : 2 * len(lengths)]
    return said


def kept_of(said):
    """The slots of states that the prefix cache keeps."""
    return said["mamba_track_indices"][said["mamba_track_mask"]].tolist() if said else []


def cleared(state, slots, prefixes):
    """As the scheduler hands slots out: of requests that begin they are zero."""
    state = state.clone()
    state[slots] *= (torch.tensor(prefixes) > 0)[:, None, None, None]
    return state


def eager(layer, pool, hidden, *through):
    """What the release's layer and backend make of a batch: its output, and the pool behind it."""
    batch, linear = _through(layer, pool, *through)
    linear.init_forward_metadata(batch)
    with torch.no_grad(), published(linear):
        output = layer(hidden, batch)
    return output, *pool


def with_launches(layer, kept, made, hidden):
    """The layer's output with captured launches between its projections, and what they leave."""
    pool, seen = (kept.conv[0], kept.temporal), []
    batch, linear = _through(layer, pool, [len(hidden)], [0], made.slots[:1], {}, None)

    def mix(*, layer, mixed_qkv, a, b, **_):
        assert captured.why_not(layer, kept, TYPE) is None
        output = captured.run(layer, kept, made, mixed_qkv, a, b)
        seen.append(output)
        return output

    linear.forward = mix
    with torch.no_grad(), published(linear):
        return layer(hidden, batch), seen[0]


def _through(layer, pool, lengths, prefixes, slots, said, step):
    batch = graph.batch_of(lengths, prefixes, req_pool_indices=slots, **said)
    linear = compare_tracked_gdn.backend(batch, pool, step or captured.CHUNK)
    kept = MambaPool.State(conv=[pool[0]], temporal=pool[1])
    linear.req_to_token_pool.mamba2_layer_cache = lambda layer_id: kept
    return batch, linear


def begin(lengths, warm, rows, places, parts):
    """What the first launch says of a batch, on tables that another batch has filled whole before;
    and which slots it zeroed."""
    made = tables.Tables(rows, places, captured.CHUNK, torch.device("cpu"))
    made.fill([1] * places, [False] * places, torch.arange(places, 0, -1))
    made.fill(lengths, warm, torch.arange(1, len(lengths) + 1))
    pool = torch.ones(places + 1, 2, 70, 70)
    begun = delta_states.begin(pool, made.plan, made.owner, made.slots, made.warm, parts)
    zero = [slot for slot in range(len(pool)) if pool[slot].eq(0).all()]
    assert all(pool[slot].eq(1).all() for slot in range(len(pool)) if slot not in zero)
    return dict(
        pairs=begun.pairs.tolist(),
        parts=None if begun.parts is None else begun.parts.tolist(),
        slots=begun.slots.tolist(),
        zeroed=zero,
    )


KERNELS = (
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
    "chunk_fwd_kernel_o",
    "recompute_w_u_fwd_kernel",
)


def work(lengths, rows, places):
    """How often each of KERNELS reads a tile, while a batch goes through tables of this size; where
    Triton has no such reads, how often it writes one."""
    layer, read = one_layer(), Counter()
    made = tables.Tables(rows, places, captured.CHUNK, torch.device("cpu"))
    made.fill(lengths, [False] * len(lengths), torch.arange(1, len(lengths) + 1))
    conv, state = drawn_pool(layer, places + 1)
    kept = MambaPool.State(conv=[conv], temporal=state)
    from triton.runtime.interpreter import interpreter_builder as builder

    name = "create_tensor_pointer_load"  # up to Triton 3.6
    name = name if hasattr(builder, name) else "create_masked_store"
    own = getattr(builder, name)

    def counted(*words):
        frame = sys._getframe()
        while frame and frame.f_code.co_name not in KERNELS:
            frame = frame.f_back
        read[frame.f_code.co_name if frame else ""] += 1
        return own(*words)

    with mock.patch.object(builder, name, counted):
        hidden = torch.zeros(rows, 128, dtype=TYPE)
        with_launches(layer, kept, made, hidden)
    return {name: read[name] for name in KERNELS}


def compare(**case):
    if "warm" in case:
        return begin(**case)
    return work(**case) if "lengths" in case else replays(**case)
