"""A model whose Mamba2 layers are captured in the release's own prefill runner, where the prefix
cache keeps states of prefills.

extra_buffer is NemotronH's own strategy on these releases. What is replayed is a recorded graph.
Backend and mixers are the release's, and kernels are interpreted.
"""

import pytest

pytestmark = pytest.mark.revision(">=0.5.15,<0.5.19")

# (lengths, cached tokens, behind how many new tokens a state is left; None: the batch says nothing)
SOME = ([37, 5, 16], [0, 0, 0], [37, -1, 16])
BEHIND_CACHED = ([21, 9, 20], [7, 15, 16], [21, -1, 20])
SILENT, NONE = ([33, 16], [0, 16], None), ([30, 7], [0, 4], [-1, -1])
BRANCH = ([50, 3, 10], [0, 1, 16], [17, -1, -1])
# of many requests, then of one: places behind it have slots of the batch before
MANY, ONE = ([16, 1, 1, 17, 2], [0, 16, 3, 0, 7], [16, -1, -1, 17, -1]), ([37], [16], None)
REFERENCE = "compare_captured_own_model"
CASES = {
    "one batch after the other": dict(
        batches=[SOME, SILENT, BEHIND_CACHED, NONE, BRANCH], sizes=[64]
    ),
    "larger steps than chunks, in two sizes": dict(
        batches=[([38, 3, 32], [32, 0, 0], [38, -1, 32]), ([33], [32], [33])],
        sizes=[48, 80],
        step=32,
    ),
    "drafts are verified": dict(batches=[BEHIND_CACHED, NONE], sizes=[64], speculative="EAGLE"),
    "padded to almost twice its rows": dict(batches=[MANY, ONE], sizes=[72]),
}
LEFT = [5, 3, 2, 2]


@pytest.mark.parametrize("case, left", [*zip(CASES, LEFT)], ids=str)
def test_a_replay_leaves_what_an_eager_prefill_leaves_bit_for_bit(case, left, compared):
    """Logits, and each slot's states in each layer. Rows behind the batches are NaN."""
    found = compared[case]
    assert found["left"] == left
    assert found["bits"] == found["others"] == found["missing"] == found["padding"] == 0


@pytest.mark.parametrize("case", CASES)
def test_mamba2_layers_stay_in_the_graph(case, compared):
    """None of them runs eagerly, and nothing is planned for them."""
    assert compared[case]["eager"] == compared[case]["planned"] == 0


@pytest.mark.parametrize("case", CASES)
def test_the_host_does_not_wait_to_know_which_states_are_kept(case, compared):
    assert compared[case]["waits"] == []


def test_drafts_are_verified_eagerly_on_the_states_of_a_replay(compared):
    """The verification of each batch gives what it gives behind an eager prefill."""
    found = compared["drafts are verified"]
    assert found["drafts"] == 0 and found["refused"] == 2
