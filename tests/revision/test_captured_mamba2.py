"""Mamba2 layers inside the breakable graph: their tables, their launches, and the runner that fills the tables."""

import pytest

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.14")

COLD, WARM = ([37, 5, 1, 16], [0, 0, 0, 0]), ([20, 1, 2, 3, 16], [7, 3, 5, 1, 0])
CASES = {
    "one request": dict(batches=[([20], [0])], rows=32, places=2),
    "a full size": dict(batches=[([32], [4])], rows=32, places=2),
    "a full table": dict(batches=[([3, 7, 2], [0, 1, 0])], rows=16, places=3),
    "cold": dict(batches=[COLD], rows=64, places=8),
    "cached beginnings": dict(batches=[WARM], rows=64, places=8),
    "short requests": dict(batches=[([1, 2, 3, 1], [0, 0, 0, 9]), ([2, 1], [2, 1])], rows=16, places=4),
    "one batch after the other": dict(batches=[WARM, ([64], [0]), COLD, ([1], [3])], rows=64, places=8),
    "chunks of 128": dict(batches=[([150, 3], [0, 2]), ([1, 128], [1, 0])], rows=192, places=4, chunk=128),
}


@pytest.fixture(scope="module")
def compared():
    from host import interpreted

    return interpreted.run("host.references.compare_captured", CASES)


@pytest.mark.parametrize("case", CASES)
def test_output_and_states_are_those_of_an_eager_prefill_bit_for_bit(case, compared):
    """NaN stands behind every batch. From the plain mixer they differ as float32 does."""
    found = compared[case]
    assert found["bits"] == 0
    assert found["others"] == 0
    assert all(found[name] < 1e-3 for name in ("output", "conv", "ssm")), found


def test_only_its_own_kernels_are_launched(compared):
    names = [name for name in compared["cold"]["launched"] if "norm" not in name]
    assert names == ["_convolve_kernel", "_steps_kernel", "_states_kernel", "_scan_kernel"]
