"""Mamba2 behind a cached beginning: what a prefill starts from, and which states it leaves for the
prefix cache, by the release's own backend, mixer and interpreted kernels."""

import pytest
import torch
from host import graph, late, state_pool, waits
from host.references import compare_mamba2, mamba2

with late.modules():
    from sglang.srt.layers.attention import hybrid_linear_attn_backend as backend

pytestmark = pytest.mark.revision(">=0.5.13,<0.5.20")

# what a request leaves is its state behind its last whole chunk
CASES = {
    "behind a request that ends between chunks": dict(lengths=[5, 40, 37], prefixes=[0, 0, 0]),
    "on a chunk's border of the batch": dict(lengths=[32, 40], prefixes=[0, 0]),
    "behind cached beginnings": dict(lengths=[21, 40, 18], prefixes=[16, 0, 32]),
    "whole chunks, and too short ones": dict(lengths=[3, 48, 15, 33], prefixes=[0, 0, 16, 0]),
    "larger pages than chunks": dict(lengths=[7, 70, 50], prefixes=[0, 0, 0], step=32),
    "another prompt branches off before the end": dict(
        lengths=[9, 55, 50], prefixes=[0, 0, 0], branching={"1": 32, "2": 16}
    ),
    "more requests than are made at once": dict(lengths=[3] + [17] * 9, prefixes=[0] * 10),
}


SIZE = 16  # tokens of a chunk of the scan


def compare(lengths, prefixes, step=SIZE, branching=None):
    """New tokens and cached ones of each request; step: of how many tokens a multiple the cache
    keeps states for; branching: {request: tokens} for requests that leave the state behind so many
    tokens, not behind their last whole chunk.

    Returns what mamba2.judge does, and `waits`: the ops of the layer in which a host would wait for
    its GPU.
    """
    state_pool.keep_steps(step, backend)
    torch.manual_seed(2)
    mixer, count = compare_mamba2.layer().mixer, len(lengths)
    conv, ssm = compare_mamba2.drawn_pool(mixer, 2 * count + 2)
    before = conv.clone(), ssm.clone()
    said = branching or {}
    whole = [said.get(str(i), length // step * step) for i, length in enumerate(lengths)]
    # managers/schedule_batch.py:2426 in 0.5.16: a state that is not the last one is asked for by
    # one token more
    seen = [
        -1 if length < step else length if tokens == length // step * step else tokens + 1
        for length, tokens in zip(lengths, whole)
    ]
    batch = graph.batch_of(lengths, prefixes, **graph.said_of(lengths, prefixes, seen))
    linear = compare_mamba2.backend(conv, ssm)
    hidden_states = torch.randn(sum(lengths), 128)
    output = torch.empty_like(hidden_states)
    words = compare_mamba2.words(mixer, hidden_states, output)
    linear.init_forward_metadata(batch)
    with torch.no_grad(), waits.MaskReads() as reads:
        linear.forward(**words, forward_batch=batch)
    plain = mamba2.plain(mixer, hidden_states, before, prefixes)
    kept = {i: tokens for i, tokens in enumerate(whole) if tokens}
    found = mamba2.judge(plain, output, (conv, ssm), before, lengths, kept)
    return found | dict(waits=reads.names)


def assert_left(found, case):
    """Each request that is long enough leaves a state, and the state is right."""
    assert found["others"] == 0
    lengths = case["lengths"]
    assert len(found["left"]) == sum(length >= case.get("step", 16) for length in lengths)
    assert all(conv <= 1e-5 and ssm <= 1e-3 for conv, ssm in found["left"].values()), found


@pytest.mark.parametrize("case", CASES)
def test_states_are_those_of_the_requests_own_tokens(case, compared):
    """Those that are left, and those that requests go on with. Largest differences in float32;
    outputs are of order 1, states of order 10."""
    found = compared[case]
    assert_left(found, CASES[case])
    output, conv, ssm = found["own"]
    assert output < 1e-4 and conv < 1e-5 and ssm < 1e-3, found


@pytest.mark.patch("mamba2/track-mask-once")
@pytest.mark.parametrize("case", CASES)
def test_no_layer_asks_which_requests_leave_a_state(case, compared):
    """The metadata of the batch says so, and on a GPU each question makes the host wait."""
    assert compared[case]["waits"] == []
