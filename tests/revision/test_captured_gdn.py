"""Gated delta nets inside the breakable graph: what their launches are told, what they compute, and what is refused."""

import pytest

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.14")

COLD, WARM = ([70, 5, 1, 16], [0, 0, 0, 0]), ([20, 1, 64, 3, 66], [7, 3, 5, 1, 0])
CASES = {
    "one request": dict(batches=[([20], [0])], rows=32, places=2),
    "a full size": dict(batches=[([128], [4])], rows=128, places=2),
    "a full table": dict(batches=[([3, 7, 2], [0, 1, 0])], rows=16, places=3),
    "cold": dict(batches=[COLD], rows=160, places=8),
    "cached beginnings": dict(batches=[WARM], rows=160, places=8),
    "single tokens": dict(
        batches=[([1, 1, 1, 1], [0, 9, 0, 1]), ([2, 1], [2, 1])], rows=8, places=4
    ),
    "one batch after the other": dict(
        batches=[WARM, ([160], [0]), COLD, ([1], [3])], rows=160, places=8
    ),
}
FAR = 1 << 20
BEGUN = {
    "chunks": dict(lengths=[65, 3], warm=[False, True], rows=192, places=4, parts=0),
    "chunks in parts": dict(lengths=[65, 20], warm=[True, False], rows=128, places=3, parts=4),
}


@pytest.fixture(scope="module")
def compared():
    from host import interpreted

    return interpreted.run("host.references.compare_captured_gdn", CASES | BEGUN)


@pytest.mark.parametrize("case", CASES)
def test_output_and_states_are_those_of_the_releases_layer_bit_for_bit(case, compared):
    """NaN stands behind every batch. From the plain layer they differ as float16 does."""
    found = compared[case]
    assert found["bits"] == 0
    assert found["others"] == 0
    assert found["behind"] == 0.0
    assert all(found[name] < 0.01 for name in ("output", "conv", "ssm")), found


def test_places_behind_a_batch_have_no_chunk_and_nobodys_slot(compared):
    """Another batch had filled the table. Only requests that begin have their states zeroed."""
    found = compared["chunks"]
    assert found["pairs"] == [[0, 0], [0, 1], [1, 0]] + [[0, FAR]] * 4
    assert found["slots"] == [1, 2, 0, 0] and found["zeroed"] == [1] and found["parts"] is None


def test_chunks_are_cut_into_parts_that_have_rows(compared):
    found = compared["chunks in parts"]
    first = [[0, 0], [0, 1], [0, 2], [0, 3]]
    second = [[0, 4], [0, FAR], [0, FAR], [0, FAR]]
    third = [[1, 0], [1, 1], [1, FAR], [1, FAR]]
    assert found["parts"] == first + second + third + [[0, FAR]] * 8
    assert found["slots"] == [1, 2, 0] and found["zeroed"] == [2]
