"""What a gated delta net's prefill copies between its projections and its delta rule, and that it
answers rightly."""

import pytest

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.10")

REFERENCE = "compare_gdn_copies"
SPLIT = {
    "uneven, one of one token": dict(lengths=[5, 1, 70, 9], prefixes=[0, 0, 0, 0]),
    "cached beginnings, one of fewer tokens than the window": dict(
        lengths=[3, 1, 66, 2], prefixes=[64, 7, 2, 0]
    ),
    "one token": dict(lengths=[1], prefixes=[5]),
    "rows of no request": dict(lengths=[5, 8], prefixes=[0, 3], rows=24),
    "a value head for each key head": dict(
        lengths=[7, 2], prefixes=[0, 4], linear_num_value_heads=2
    ),
    "four value heads for each key head": dict(
        lengths=[7, 2], prefixes=[0, 4], linear_num_value_heads=8
    ),
}
OTHERS = {
    "three value heads for each key head": dict(
        lengths=[7, 2], prefixes=[0, 4], linear_num_value_heads=6
    ),
}


CASES = SPLIT | OTHERS


@pytest.mark.parametrize("case", SPLIT)
def test_one_kernel_splits_the_projections(case, compared):
    """No op of PyTorch copies any of their parts, and none joins them."""
    assert compared[case]["before"] == []


@pytest.mark.parametrize("case", OTHERS)
def test_pytorch_splits_what_the_kernel_cannot(case, compared):
    """Blocks of Triton have sizes that are powers of two."""
    assert "cat" in compared[case]["before"]


@pytest.mark.parametrize("case", CASES)
def test_rows_are_convolved_as_they_lie(case, compared):
    """No copy turns them to suit CUDA's kernel; q, k and v are cut out of its rows afterwards."""
    assert compared[case]["cuda"] == 0
    assert [name for name in compared[case]["behind"] if "turned" in name] == []


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_states_are_those_of_the_reference(case, compared):
    """Largest difference of float16 kernels from a float32 reference, in outputs, convolution
    states and states."""
    assert compared[case]["apart"] < 0.01 and compared[case]["untouched"], compared[case]
