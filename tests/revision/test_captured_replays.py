"""Models whose layers with states are captured in a runner's graph: a replay leaves what an eager
prefill leaves.

What is replayed is a recorded graph. Backends and layers are the release's, and kernels are
interpreted.
"""

import pytest
from host import interpreted

pytestmark = pytest.mark.revision(">=0.5.13,<0.5.19,!=0.5.14.*")
OWN = pytest.mark.revision(">=0.5.15")

# (lengths, cached tokens, behind how many new tokens a state is kept; one more: a branching point)
SOME = ([37, 5, 16], [0, 0, 0], [37, -1, 16])
BEHIND_CACHED = ([21, 9, 20], [7, 15, 16], [21, -1, 20])
SILENT, NONE = ([33, 16], [0, 16], None), ([30, 7], [0, 4], [-1, -1])
BRANCH = ([50, 3, 10], [0, 1, 16], [17, -1, -1])
# of many requests, then of one: places behind it have slots of the batch before
MANY, ONE = ([16, 1, 1, 17, 2], [0, 16, 3, 0, 7], [16, -1, -1, 17, -1]), ([37], [16], None)
# extra_buffer is NemotronH's own strategy on these releases
MAMBA2 = {
    "one batch after the other": dict(
        batches=[SOME, SILENT, BEHIND_CACHED, NONE, BRANCH], sizes=[64], step=16
    ),
    "larger steps than chunks, in two sizes": dict(
        batches=[([38, 3, 32], [32, 0, 0], [38, -1, 32]), ([33], [32], [33])],
        sizes=[48, 80],
        step=32,
    ),
    "drafts are verified": dict(
        batches=[BEHIND_CACHED, NONE], sizes=[64], step=16, speculative="EAGLE"
    ),
    "padded to almost twice its rows": dict(batches=[MANY, ONE], sizes=[72], step=16),
}
SHORT = dict(batches=[([5, 1], [0, 4]), ([1, 1, 3], [2, 0, 1])], sizes=[8])
NETS = {
    "nets, cold, warm, and one after the other": dict(
        batches=[([5, 1], [0, 4]), ([1, 1, 3], [2, 0, 1]), ([4, 4], [0, 0])],
        sizes=[8],
        kind="qwen3_5",
    ),
    "nets, more than a chunk, in two sizes": dict(
        batches=[([2, 66, 1], [0, 3, 9]), ([8], [7])], sizes=[12, 72], kind="qwen3_5"
    ),
    "experts behind the nets": dict(SHORT, kind="qwen3_next"),
    "no net is captured": dict(SHORT, kind="qwen3_next", states="break"),
    "nets, states for the prefix cache": dict(
        batches=[
            ([70, 5, 64], [0, 3, 64], [70, -1, 64]),
            ([3, 130], [0, 9], [-1, 65]),
            ([2, 128], [64, 64], [-1, 128]),
            ([4], [64], [-1]),
        ],
        sizes=[8, 144],
        kind="qwen3_5",
        step=64,
    ),
    "nets, states of large pages, and drafts": dict(
        batches=[([9, 130], [128, 0], [-1, 130])],
        sizes=[144],
        kind="qwen3_5",
        step=128,
        speculative="EAGLE",
    ),
}
REFERENCE = "compare_replays"
CASES = MAMBA2 | NETS
KEPT = dict(zip(CASES, (5, 3, 2, 2, 0, 0, 0, 0, 4, 1)))
LAYERS = {"nemotron_h": (2, 1), "qwen3_5": (6, 2), "qwen3_next": (3, 1)}  # with states; breaks


@OWN
@pytest.mark.parametrize("case", CASES)
def test_a_replay_leaves_what_an_eager_prefill_leaves_bit_for_bit(case, compared):
    """Logits, and each request's states in each layer. Rows behind the batches are NaN, and slots
    of requests that begin hold what others left."""
    found = compared[case]
    assert found["rows"] and found["kept"] == KEPT[case]
    assert found["bits"] == found["others"] == found["missing"] == found["padding"] == 0


@OWN
@pytest.mark.parametrize("case", CASES)
def test_attention_alone_breaks_where_layers_are_captured(case, compared):
    """Nothing is planned for the others then, and the host does not wait to know which states are
    kept."""
    found, given = compared[case], CASES[case]
    layers, breaks = LAYERS[given.get("kind", "nemotron_h")]
    broken = "states" in given
    assert found["layers"] == layers
    assert found["breaks"] == breaks + layers * broken
    assert found["ran"] == layers * broken * len(given["batches"])
    assert found["planned"] == broken * len(given["batches"]) and found["waits"] == []


@OWN
def test_drafts_are_verified_eagerly_on_the_states_of_a_replay(compared):
    """The verification of each batch gives what it gives behind an eager prefill."""
    found = compared["drafts are verified"]
    assert found["drafts"] == 0 and found["refused"] == 2


@pytest.mark.revision("<0.5.14")
def test_the_overlays_runner_leaves_eager_prefills_logits_and_states():
    """Launches are in the recorded graph. Tokens of padding are in its rows, and in nobody's
    state."""
    case = dict(batches=[([5, 3], [0, 4]), ([1, 1, 1], [2, 0, 1])], sizes=[8], kind="qwen3_5")
    [found] = interpreted.run(f"host.references.{REFERENCE}", {"": case}).values()
    assert found["ran"] == 0 and found["others"] == 0 and found["layers"] == 6
    assert found["apart"] < 0.01, found
