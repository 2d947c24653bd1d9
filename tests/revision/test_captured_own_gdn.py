"""Gated delta nets inside the graph of the release's own prefill runner.

A small Qwen3.5 and a small Qwen3-Next are replayed on a recorded graph. Backend and nets are the
release's, and kernels are interpreted.
"""

import logging
from types import SimpleNamespace

import pytest
from host import late
from test_captured_gdn import runner

with late.modules():
    from sglang.srt.model_executor import forward_batch_info
    from sglang.srt.prefill_graph.captured import layers, own_runner

pytestmark = pytest.mark.revision(">=0.5.15,<0.5.19")
ONE_AFTER_THE_OTHER = dict(batches=[([5, 1], [0, 4]), ([1, 1, 3], [2, 0, 1])], sizes=[8])
# (lengths, cached tokens, behind how many new tokens a state is kept; one more: a branching point)
KEPT = dict(
    batches=[
        ([70, 5, 64], [0, 3, 64], [70, -1, 64]),
        ([3, 130], [0, 9], [-1, 65]),
        ([2, 128], [64, 64], [-1, 128]),
        ([4], [64], [-1]),
    ],
    sizes=[8, 144],
)
PAGES = dict(batches=[([9, 130], [128, 0], [-1, 130])], sizes=[144])
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
    "states for the prefix cache": dict(KEPT, step=64),
    "states of large pages, and drafts": dict(PAGES, step=128, speculative="EAGLE"),
}
LEFT = {"states for the prefix cache": 4, "states of large pages, and drafts": 1}
NETS = {  # of a model, its breaks, and how many nets ran eagerly
    "cold, warm, and one after the other": (6, 2, 0),
    "more than a chunk, in two sizes": (6, 2, 0),
    "experts behind the nets": (3, 1, 0),
    "no net is captured": (3, 4, 6),
    "states for the prefix cache": (6, 2, 0),
    "states of large pages, and drafts": (6, 2, 0),
}
BREAKS = "Layers with recurrent states run between the prefill graph's segments: %s"


@pytest.mark.parametrize("case", CASES)
def test_a_replay_leaves_what_an_eager_prefill_leaves_bit_for_bit(case, compared):
    """Logits, and each request's states in each layer. Rows behind the batches are NaN, and slots
    of requests that begin hold what others left."""
    found = compared[case]
    assert found["rows"]
    assert found["bits"] == found["others"] == found["missing"] == found["padding"] == 0
    assert found["kept"] == LEFT.get(case, 0)


@pytest.mark.parametrize("case", CASES)
def test_attention_alone_breaks_where_nets_are_captured(case, compared):
    found = compared[case]
    assert (found["nets"], found["breaks"], found["ran"]) == NETS[case]


def offered(monkeypatch, caplog, switch=None, extra_buffer=False, step=64, **changes):
    """What a graph's runner captures, and what it logs."""
    made = runner(monkeypatch, switch=switch, **changes)
    strategy = "extra_buffer" if extra_buffer else "no_buffer"
    object.__setattr__(made.server_args, "mamba_radix_cache_strategy", strategy)
    monkeypatch.setattr(layers.ops, "mamba_cache_chunk_size", lambda: step)
    made.tp_rank, made.attn_backend.full_attn_backend = 0, None
    backend = type(own_runner.BACKEND, (), {})()
    graph = SimpleNamespace(model_runner=made, backend=backend, use_captured_attn_metadata=False)
    with caplog.at_level(logging.INFO, own_runner.__name__):
        own_runner.offer(graph)
    logged = [(one.levelname, one.message) for one in caplog.records]
    return graph, [line for line in logged if line[1].startswith(BREAKS[:30])]


@pytest.mark.parametrize("switch", [None, "capture", "all"])
@pytest.mark.parametrize("extra_buffer", [False, True])
@pytest.mark.parametrize("drafts", [None, "EAGLE"])
def test_nets_are_captured_by_default(monkeypatch, caplog, switch, extra_buffer, drafts):
    changes = dict(speculative_algorithm=drafts) if drafts else {}
    graph, logged = offered(monkeypatch, caplog, switch, extra_buffer, **changes)
    states = graph.captured_states
    assert graph.use_captured_attn_metadata and not logged
    assert states.chunk == 64 and states.step == (64 if extra_buffer else None)


REFUSED = {
    "other steps": (
        dict(extra_buffer=True, step=96),
        "the prefix cache keeps states behind each 96 tokens, and chunks have 64",
    ),
    "another kernel": (
        dict(kernel="FlashInferGDNKernel"),
        "prefills run in a FlashInferGDNKernel; --linear-attn-prefill-backend triton captures them",
    ),
    "switched off": (dict(switch="break"), "SGLANG_PREFILL_GRAPH_STATES=break is set"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_nets_break_and_the_log_says_why(case, monkeypatch, caplog):
    changes, reason = REFUSED[case]
    graph, logged = offered(monkeypatch, caplog, **changes)
    assert graph.captured_states is None and not graph.use_captured_attn_metadata
    level = "WARNING" if "switch" in changes else "INFO"
    assert logged == [(level, BREAKS % reason)]


def test_a_verification_never_enters_the_graph(monkeypatch, caplog):
    """Drafts are verified on states of their own: their batch is no prefill."""
    graph, _ = offered(monkeypatch, caplog, speculative_algorithm="EAGLE")
    mode = forward_batch_info.ForwardMode
    for drafts, reason in (
        (mode.TARGET_VERIFY, "drafts are being verified"),
        (mode.EXTEND, None),
    ):
        batch = SimpleNamespace(forward_mode=drafts, batch_size=2, mamba_track_mask=None)
        assert own_runner.why_not(graph, batch) == reason
