"""The overlay's scan of a Mamba2 prefill, its kernels interpreted: alone, and in the release's own
mixer, backend and pool."""

import contextlib
import os

import torch
from sglang.srt.prefill_graph.kernels import mamba2_scan, ssd, tiles

from host import graph, state_pool
from host.references import compare_mamba2, compare_ssd, mamba2

TILE = dict(states=dict(BLOCK_P=16, BLOCK_N=16), scan=dict(BLOCK_HEADS=2))


@contextlib.contextmanager
def small(chunk, **tile):
    """A CPU gets tiles, chunks have `chunk` rows. tile: of "states" and of "scan", unless TILE."""
    before = tiles.own, tiles.chunk
    tiles.own, tiles.chunk = lambda kernel, *_: (TILE | tile)[kernel], lambda *_: chunk
    mamba2_scan.known_shape.cache_clear()
    try:
        yield
    finally:
        tiles.own, tiles.chunk = before
        mamba2_scan.known_shape.cache_clear()


def kernels(
    lengths,
    prefixes,
    chunk=16,
    size=48,
    d_state=32,
    heads=4,
    groups=2,
    tail=0,
    tracked=None,
    alone=(),
    dtype="float32",
    pool="float32",
    **tile,
):
    """The three kernels on columns of wider tensors with `tail` rows of NaN behind the batch.
    tracked: rows of each request behind which its state is kept too. alone: requests to scan once
    more, without the others.

    Returns the largest differences from the recurrence in float64 of `output`, `state` and the
    `tracked` states; `others`: how many slots and rows that nobody owns have changed; `alone`: how
    many values differ from those among others.
    """
    torch.manual_seed(5)
    values = compare_ssd.drawn(
        lengths, prefixes, size, d_state, getattr(torch, dtype), heads, groups
    )
    x, dt, a, b, c, d, bias, states = values
    wide = torch.full(
        (sum(lengths) + tail, heads * size + 2 * groups * d_state), float("nan"), dtype=x.dtype
    )
    wide[: len(x)] = torch.cat([x.flatten(1), b.flatten(1), c.flatten(1)], -1)
    steps = torch.full((len(wide), 3 * heads), float("nan"), dtype=x.dtype)
    steps[: len(x), -heads:] = dt
    before = torch.randn(2 * len(lengths) + 3, heads, size, d_state)
    slots = torch.randperm(len(before))[: 2 * len(lengths)].to(torch.int32)
    own, also = slots.split(len(lengths))
    warm = torch.tensor(prefixes) > 0
    before[own[warm].long()] = states[warm]
    before = before.to(getattr(torch, pool))
    states = torch.where(warm[:, None, None, None], before[own.long()].float(), 0)
    if pool != "float32":
        # what a request does not go on from may be anything
        before[own[~warm].long()] = float("nan")
    kept, out = before.clone(), torch.full((len(wide), heads, size), 7.0, dtype=x.dtype)
    shape = ssd.Shape.of(heads, groups, size, d_state, chunk)

    def scan(pool, out, rows=slice(None), requests=slice(None)):
        kept_rows = tracked and (tracked[requests], also[requests].tolist())
        plan = ssd.plan(lengths[requests], chunk, torch.device("cpu"), kept_rows or None)
        cut = wide[rows].split([heads * size, groups * d_state, groups * d_state], -1)
        cut = (part.unflatten(-1, (n, -1)) for part, n in zip(cut, (heads, groups, groups)))
        given = *cut, steps[rows, -heads:], a, d, bias, out, pool, own[requests], warm[requests]
        launches = ssd.Launches(shape, plan, *given)
        launches.steps()
        launches.states((TILE | tile)["states"])
        launches.scan((TILE | tile)["scan"])

    scan(kept, out)
    wanted = compare_ssd.expected(lengths, *values[:-1], states)
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    worst = 0.0
    for i, rows in enumerate(tracked or ()):
        if rows:
            part = slice(starts[i], starts[i] + rows)
            _, state = compare_ssd.expected(
                [rows], x[part], dt[part], a, b[part], c[part], d, bias, states[i : i + 1]
            )
            worst = max(worst, (kept[also[i].item()] - state[0]).abs().max().item())
    written = {*own.tolist(), *(slot for slot, rows in zip(also.tolist(), tracked or ()) if rows)}
    changed = sum(
        not torch.equal(kept[slot], before[slot])
        for slot in range(len(before))
        if slot not in written and not before[slot].isnan().any()
    )
    apart = 0
    for i in alone:
        rows = slice(starts[i], starts[i] + lengths[i])
        single, made = before.clone(), torch.empty_like(out[rows])
        scan(single, made, rows, slice(i, i + 1))
        apart += (made != out[rows]).sum().item() + (
            single[own[i].item()] != kept[own[i].item()]
        ).sum().item()
        if tracked and tracked[i]:
            apart += (single[also[i].item()] != kept[also[i].item()]).sum().item()
    return dict(
        output=(out[: len(x)] - wanted[0]).abs().max().item(),
        state=(kept[own.long()] - wanted[1]).abs().max().item(),
        tracked=worst,
        others=changed + (out[len(x) :] != 7).sum().item(),
        alone=apart,
    )


def mixer(lengths, prefixes, chunk=16, release=False, **tile):
    """The release's mixer over its backend's metadata and pool. release: with
    SGLANG_MAMBA2_SCAN=release.

    Returns the largest differences of `output`, `conv` and `ssm` from the plain mixer; `launched`:
    what scanned; `others`: how many slots that nobody owns have changed.
    """
    torch.manual_seed(2)
    made, count = compare_mamba2.layer().mixer, len(lengths)
    conv, ssm = compare_mamba2.drawn_pool(made, count + 3)
    before = conv.clone(), ssm.clone()
    hidden_states = torch.randn(sum(lengths), 128)
    os.environ.pop("SGLANG_MAMBA2_SCAN", None)
    if release:
        os.environ["SGLANG_MAMBA2_SCAN"] = "release"
    with compare_ssd.Launches() as launches:
        output, *_ = eager(made, conv, ssm, hidden_states, lengths, prefixes, chunk, **tile)
    plain = mamba2.plain(made, hidden_states, before, prefixes)
    found = mamba2.judge(plain, output, (conv, ssm), before, lengths)
    own = dict(zip(("output", "conv", "ssm"), found["own"]))
    return own | dict(launched=launches.of_scan(), others=found["others"])


def eager(made, conv, ssm, hidden_states, lengths, prefixes, chunk, said=None, step=None, **tile):
    """The release's mixer `made`, on a batch whose request i has slot i + 1: its output, and the
    pools that it wrote to.

    said: what the batch says of the states that the prefix cache keeps, which is for multiples of
    `step` tokens.
    """
    from sglang.srt.layers.attention import hybrid_linear_attn_backend as backend

    state_pool.keep_steps(step or chunk, backend)
    batch = graph.batch_of(lengths, prefixes, **(said or {}))
    linear = compare_mamba2.backend(conv, ssm)
    linear.init_forward_metadata(batch)
    output = torch.full_like(hidden_states, float("nan"))
    words = compare_mamba2.words(made, hidden_states, output)
    if "forward_batch" in type(linear).forward.__annotations__:  # from 0.5.13
        words["forward_batch"] = batch
    with torch.no_grad(), small(chunk, **tile):
        linear.forward(**words)
    return output, conv, ssm


def tracked(chunk=16, **case):
    """test_tracked_states' comparison with chunks of `chunk` rows, and what is `launched`."""
    import test_tracked_states

    os.environ.pop("SGLANG_MAMBA2_SCAN", None)
    with compare_ssd.Launches() as launches, small(chunk):
        found = test_tracked_states.compare(**case)
    return found | dict(launched=launches.of_scan())


HOW = dict(kernels=kernels, mixer=mixer, tracked=tracked)


def compare(how, **case):
    return HOW[how](**case)
