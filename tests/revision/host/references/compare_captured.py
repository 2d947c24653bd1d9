"""A captured Mamba2 layer, and the states that it leaves for the prefix cache, its kernels
interpreted: beside the release's mixer and the plain reference.

The layer is captured in a recorded graph, with a placeholder, and each batch is a replay.
"""

import contextlib
import functools

import pytest
import torch
from sglang.srt.prefill_graph.captured import layers, tables
from sglang.srt.prefill_graph.captured import mamba2 as captured
from triton.runtime import interpreter

from host import graph, recorded
from host.references import compare_mamba2, compare_scan, compare_ssd, mamba2

NAN = float("nan")


@contextlib.contextmanager
def captures():
    """Inside, captures record launches; what the interpreter does of its own is no part of them."""
    with pytest.MonkeyPatch.context() as patch, recorded.recording(patch):
        own = interpreter.GridExecutor.__call__

        def call(self, *args, **kwargs):
            recorder = recorded.Graph.recorder
            target, recorder.target = recorder.target, None
            own(self, *args, **kwargs)
            recorder.target = target
            if target is not None:
                target.ops.append((functools.partial(own, self), args, kwargs, None))

        patch.setattr(interpreter.GridExecutor, "__call__", call)
        yield


def capture(made, run):
    """run() captured on tables that have a placeholder's batch, whose state goes to the slot that
    no request owns; the graph and the result."""
    made.fill([made.tokens], [False], made.slots)
    target = recorded.Graph()
    target.capture_begin()
    result = run()
    target.capture_end()
    return target, result


def row_by_row(projection, factors=1):
    """A projection's forward whose bits do not depend on how many rows there are. Its `words` are
    what else it was told. factors: of each column."""
    weight = projection.weight

    def forward(rows, **words):
        forward.words = words
        made = torch.cat([torch.nn.functional.linear(row[None], weight) for row in rows])
        return made * factors, None

    return forward


def mixer_row_by_row():
    mixer = compare_mamba2.layer().mixer
    for projection in (mixer.in_proj, mixer.out_proj):
        projection.forward = row_by_row(projection)
    return mixer


def compare(
    batches, rows, places, chunk=16, step=None, fuses_reduce=False, factors=None, eagerly=True
):
    """Each batch, (lengths, prefixes) or (lengths, prefixes, wanted), through the graph of one
    size, one after the other. wanted: as in graph.said_of; None where the batch says nothing. NaN
    is behind every batch, and in the slots of requests that begin. Request i has slot i + 1.

    fuses_reduce: the next norm sums over the ranks. factors: the first projection's columns are
    multiplied, as Falcon-H1's are. eagerly: compare with the release's mixer, too.

    Returns, over all batches, the largest differences of `output`, `conv` and `ssm` from the plain
    mixer, and of the states that are left for the prefix cache, `left_conv` and `left_ssm`; `bits`:
    how many values of output and states differ from the release's mixer, run eagerly on the same
    batch; `others`: how many slots have changed that nobody writes to; `left`: how many states were
    left; `launched`: the kernels of the last batch; `told`: what the last projection was told
    beside its rows.
    """
    mixer, step, tracks = mixer_row_by_row(), step or chunk, len(batches[0]) > 2
    names = "output", "conv", "ssm", "left_conv", "left_ssm"
    plain, weight = mixer.in_proj.forward, mixer.in_proj.weight
    vector = torch.linspace(0.5, 2, len(weight))[None] if factors else torch.ones(1, 1)
    project = row_by_row(mixer.in_proj, vector)
    worst, bits, others, left = dict.fromkeys(names, 0.0), 0, 0, 0
    made = tables.Tables(rows, places, chunk, torch.device("cpu"), tracks=tracks)
    hidden, pool = torch.zeros(rows, 128), compare_mamba2.drawn_pool(mixer, 2 * places + 3)
    cache = compare_mamba2.backend(*pool).req_to_token_pool.mamba2_layer_cache(0)
    given = mixer, cache, made, hidden, fuses_reduce, factors and vector
    with torch.no_grad(), compare_scan.small(chunk), compare_ssd.Launches() as launches, captures():
        assert captured.why_not(mixer, cache, hidden.dtype) is None
        captured_graph, output = capture(made, lambda: captured.run(*given))
    told = mixer.out_proj.forward.words
    mixer.in_proj.forward = project
    mixer.in_proj.weight = torch.nn.Parameter(weight * vector.T)  # the plain mixer's
    for number, (lengths, prefixes, *more) in enumerate(batches):
        torch.manual_seed(number)
        count, total, wanted = len(lengths), sum(lengths), more[0] if more else None
        conv, ssm = before = compare_mamba2.drawn_pool(mixer, len(pool[0]))
        for slot, prefix in enumerate(prefixes, start=1):
            conv[slot], ssm[slot] = (conv[slot], ssm[slot]) if prefix else (NAN, NAN)
        drawn = torch.randn(rows, 128)
        drawn[total:] = NAN
        said = {} if wanted is None else graph.said_of(lengths, prefixes, wanted)
        through = drawn[:total], lengths, prefixes, chunk, said, step
        eager = eagerly and compare_scan.eager(mixer, conv.clone(), ssm.clone(), *through)
        for static, new in zip((hidden, *pool), (drawn, *before)):
            static.copy_(new)
        with torch.no_grad():
            made.fill(lengths, [prefix > 0 for prefix in prefixes], torch.arange(1, count + 1))
            if tracks:
                layers.Captured(None, step).track(made, graph.batch_of(lengths, prefixes, **said))
            launches.seen.clear()
            captured_graph.replay()
        if eagerly:
            bits += mamba2.unlike((output[:total], *pool), eager)
        kept = {i: asked // step * step for i, asked in enumerate(wanted or ()) if asked > 0}
        left += len(kept)
        behind = mamba2.plain(mixer, hidden, before, prefixes)
        found = mamba2.judge(behind, output, pool, before, lengths, kept)
        others += found["others"]
        _keep_worst(worst, zip(names, found["own"]))
        for apart in found["left"].values():
            _keep_worst(worst, zip(names[3:], apart))
    mixer.in_proj.forward, mixer.in_proj.weight = plain, weight
    return worst | dict(bits=bits, others=others, left=left, launched=launches.names(), told=told)


def _keep_worst(worst, found):
    for name, difference in found:
        worst[name] = max(worst[name], difference)
