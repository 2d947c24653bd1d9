"""Decoding goes on from the states that captured prefills leave: it gives what it gives behind
eager prefills."""

import pytest

REFERENCE = "compare_captured_decoding"
# One request has two chunks. One is shorter than the convolution's window, and goes on from it.
CASES = {
    "mamba2": dict(kind="mamba2", lengths=[18, 2, 5], prefixes=[0, 7, 0], rows=32, steps=3),
    "gdn": dict(kind="gdn", lengths=[66, 2, 5], prefixes=[0, 7, 0], rows=80, steps=3),
}
# Twenty seconds of interpreted kernels: one release is enough.
pytestmark = pytest.mark.revision(">=0.5.13,<0.5.14")


@pytest.mark.parametrize("kind", CASES)
def test_each_step_has_the_bits_that_it_has_behind_an_eager_prefill(kind, compared):
    assert compared[kind]["bits"] == 0


@pytest.mark.parametrize("lost", ["no window", "no state", "swapped"])
@pytest.mark.parametrize("kind", CASES)
def test_a_state_that_is_not_kept_or_is_kept_elsewhere_shows(kind, lost, compared):
    assert compared[kind][lost] > 0
