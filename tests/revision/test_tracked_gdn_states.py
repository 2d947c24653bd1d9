"""What gated delta net layers leave for the prefix cache, and what the host waits for meanwhile."""

import pytest
from host import interpreted

EAGER = pytest.mark.revision(">=0.5.7,<0.5.11")
LARGE_PAGES = pytest.mark.revision(">=0.5.13,<0.5.19")

REFERENCE = "compare_tracked_gdn"
# chunks of 64 tokens; what a request leaves is its state behind its last whole chunk
CASES = {
    "one that leaves a state, two that do not": dict(lengths=[5, 70, 9], prefixes=[0, 0, 0]),
    "at the end of whole chunks, and behind a cached beginning": dict(
        lengths=[64, 67], prefixes=[0, 64]
    ),
    "none leaves a state": dict(lengths=[7, 12], prefixes=[0, 64]),
}
# the same kernels, where the prefix cache keeps states of whole pages of 128 tokens
PAGES = {
    "behind one page and behind three": dict(lengths=[200, 389], prefixes=[0, 128], step=128),
    "at the end of a page, and in the first half of one": dict(
        lengths=[256, 130, 60], prefixes=[0, 0, 128], step=128
    ),
}


@pytest.mark.patch("gdn/keep-states-of-large-pages")
@LARGE_PAGES
def test_every_state_is_that_of_whole_pages():
    for case, found in interpreted.run("host.references.compare_tracked_gdn", PAGES).items():
        assert found["own"] < 0.02 and found["left"] < 0.01 and found["others"] == 0, (case, found)


@EAGER
@pytest.mark.parametrize("case", CASES)
def test_every_state_is_that_of_the_requests_own_tokens(case, compared):
    """Largest differences of float16 kernels from a float32 reference. No layer asks which requests
    leave a state: the metadata of the batch says so; on a GPU each question makes the host wait."""
    found = compared[case]
    assert found["own"] < 0.01 and found["left"] < 0.01 and found["others"] == 0, found
    assert found["waits"] == [[], []]
