"""What lightning attention leaves for the prefix cache."""

import pytest

pytestmark = pytest.mark.revision(">=0.5.13,<0.5.17")

REFERENCE = "compare_lightning"
# chunks of 16 tokens; what a request leaves is its state behind its last whole chunk
CASES = {
    "one request": dict(lengths=[37], prefixes=[0]),
    "at the end of a chunk": dict(lengths=[32], prefixes=[0]),
    "behind cached beginnings, one too short": dict(
        lengths=[21, 5, 48, 35], prefixes=[16, 0, 0, 32]
    ),
    "one token behind a chunk, each": dict(lengths=[17, 33], prefixes=[0, 16]),
    "none leaves a state": dict(lengths=[3, 9], prefixes=[0, 16]),
    "decoding": dict(lengths=[1, 1, 1], prefixes=[31, 40, 47], decoded=[True, False, True]),
    "decoding in a graph": dict(
        lengths=[1, 1, 1], prefixes=[31, 40, 47], decoded=[True, False, True], largest=8
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_state_is_that_of_the_requests_own_tokens(case, compared):
    """Largest differences in float32; states are of order 4."""
    found = compared[case]
    assert found["others"] == 0
    assert {request for request, apart in found["left"].items() if apart > 1e-4} == set(), found


@pytest.mark.parametrize("case", CASES)
def test_every_request_goes_on_from_its_own_state(case, compared):
    """Outputs are of order 0.1."""
    found = compared[case]
    assert found["outputs"] < 1e-4 and found["own"] < 1e-4, found
