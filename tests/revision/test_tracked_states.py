"""Mamba2 behind a cached beginning: what a prefill starts from, and which states it leaves for the
prefix cache."""

import pytest

pytestmark = pytest.mark.revision(">=0.5.13,<0.5.20")

REFERENCE = "compare_tracked"
# chunks of 16 tokens; what a request leaves is its state behind its last whole chunk
CASES = {
    "one request": dict(lengths=[40], prefixes=[0]),
    "behind a request that ends between chunks": dict(lengths=[5, 40, 37], prefixes=[0, 0, 0]),
    "on a chunk's border of the batch": dict(lengths=[32, 40], prefixes=[0, 0]),
    "behind cached beginnings": dict(lengths=[21, 40, 18], prefixes=[16, 0, 32]),
    "a few tokens behind a cached beginning": dict(lengths=[3], prefixes=[16]),
    "whole chunks, and too short ones": dict(lengths=[3, 48, 15, 33], prefixes=[0, 0, 16, 0]),
    "larger pages than chunks": dict(lengths=[7, 70, 50], prefixes=[0, 0, 0], step=32),
    "another prompt branches off before the end": dict(
        lengths=[9, 55, 50], prefixes=[0, 0, 0], branching={"1": 32, "2": 16}
    ),
    "more requests than are made at once": dict(lengths=[3] + [17] * 9, prefixes=[0] * 10),
}


def assert_left(found, case):
    """Each request that is long enough leaves a state, and the state is right."""
    assert found["others"] == 0
    lengths = case["lengths"]
    assert len(found["left"]) == sum(length >= case.get("step", 16) for length in lengths)
    assert all(conv <= 1e-5 and ssm <= 1e-3 for conv, ssm, _ in found["left"].values()), found


@pytest.mark.parametrize("case", CASES)
def test_every_tracked_state_is_that_of_the_requests_own_tokens(case, compared):
    """Largest differences in float32; states are of order 10."""
    assert_left(compared[case], CASES[case])


@pytest.mark.parametrize("case", CASES)
def test_every_request_goes_on_from_its_cached_state(case, compared):
    """Whether it leaves a state or is too short for that; outputs are of order 1."""
    output, conv, ssm = compared[case]["own"]
    assert output < 1e-4 and conv < 1e-5 and ssm < 1e-3, compared[case]


@pytest.mark.parametrize("case", CASES)
def test_no_layer_asks_which_requests_leave_a_state(case, compared):
    """The metadata of the batch says so; on a GPU each question makes the host wait."""
    assert compared[case]["waits"] == []
