"""Gated delta nets inside the graph of the release's own prefill runner, where they are asked for.

A small Qwen3.5 and a small Qwen3-Next are replayed on a recorded graph. Backend and nets are the
release's, and kernels are interpreted.
"""

import logging
from types import SimpleNamespace

import pytest
from host import late
from test_captured_gdn import net, runner

with late.modules():
    from sglang.srt.prefill_graph.captured import layers, own_runner

pytestmark = pytest.mark.revision(">=0.5.15,<0.5.19")
ONE_AFTER_THE_OTHER = dict(batches=[([5, 1], [0, 4]), ([1, 1, 3], [2, 0, 1])], sizes=[8])
REFERENCE = "compare_captured_own_gdn"
CASES = {
    "cold, warm, and one after the other": dict(
        batches=[([5, 1], [0, 4]), ([1, 1, 3], [2, 0, 1]), ([4, 4], [0, 0])], sizes=[8]
    ),
    "more than a chunk, in two sizes": dict(
        batches=[([2, 66, 1], [0, 3, 9]), ([8], [7])], sizes=[12, 72]
    ),
    "experts behind the nets": dict(ONE_AFTER_THE_OTHER, kind="qwen3_next"),
    "no net is captured": dict(ONE_AFTER_THE_OTHER, kind="qwen3_next", states="break"),
}
NETS = {  # of a model, its breaks, and how many nets ran eagerly
    "cold, warm, and one after the other": (6, 2, 0),
    "more than a chunk, in two sizes": (6, 2, 0),
    "experts behind the nets": (3, 1, 0),
    "no net is captured": (3, 4, 6),
}
BREAKS = "Layers with recurrent states run between the prefill graph's segments: %s"


@pytest.mark.parametrize("case", CASES)
def test_a_replay_leaves_what_an_eager_prefill_leaves_bit_for_bit(case, compared):
    """Logits, and each request's states in each layer. Rows behind the batches are NaN, and slots
    of requests that begin hold what others left."""
    found = compared[case]
    assert found["rows"]
    assert found["bits"] == found["others"] == found["missing"] == found["padding"] == 0


@pytest.mark.parametrize("case", CASES)
def test_attention_alone_breaks_where_nets_are_captured(case, compared):
    found = compared[case]
    assert (found["nets"], found["breaks"], found["ran"]) == NETS[case]


def settled(monkeypatch, caplog, switch="all", extra_buffer=False, **changes):
    """What a graph's runner keeps for its captures, and what it warns of."""
    made = runner(monkeypatch, switch=switch, **changes)
    strategy = "extra_buffer" if extra_buffer else "no_buffer"
    object.__setattr__(made.server_args, "mamba_radix_cache_strategy", strategy)
    monkeypatch.setattr(layers.ops, "mamba_cache_chunk_size", lambda: 64)
    made.tp_rank = 0
    graph = SimpleNamespace(model_runner=made, prefill_backend_name="breakable")
    with caplog.at_level(logging.WARNING, own_runner.__name__):
        states = own_runner._settled(graph)
    return states, [one.message for one in caplog.records if one.name == own_runner.__name__]


def test_nets_are_captured_without_a_warning(monkeypatch, caplog):
    states, warned = settled(monkeypatch, caplog)
    assert states.captured.chunk == 64 and not warned


REFUSED = {
    "states for the prefix cache": (
        dict(extra_buffer=True),
        "the prefix cache keeps states of each prefill",
    ),
    "drafts": (
        dict(speculative_algorithm="NEXTN"),
        "drafts are verified on states of their own",
    ),
    "Mamba2 alone is asked for": (
        dict(switch="capture"),
        "gated delta nets are captured with SGLANG_PREFILL_GRAPH_STATES=all alone",
    ),
    "three convolutions": (
        dict(net=lambda: net(conv_weights=(None,) * 3)),
        "layer 0: its convolution has weights for queries, keys and values apart",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_nets_break_and_a_warning_says_why(case, monkeypatch, caplog):
    changes, reason = REFUSED[case]
    states, warned = settled(monkeypatch, caplog, **changes)
    assert states is None and warned == [BREAKS % reason]


def test_nobody_is_warned_who_did_not_ask(monkeypatch, caplog):
    assert settled(monkeypatch, caplog, switch=None, extra_buffer=True) == (None, [])
