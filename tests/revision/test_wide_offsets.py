"""Prefill kernels on more than 2**31 elements: a row's number times its stride needs 64 bits."""

import os

import pytest
from packaging.version import Version

LIMIT = 2**31  # what an offset of 32 bits can be
# Rows of Nemotron-Nano-9B-v2's projection on one GPU: 94787 of them end before the limit.
PROJECTION = 22656
# With an offset of 32 bits the process can end by an access outside of its memory.
REFERENCE = "compare_wide_offsets"
CASES = {
    "convolution, row 90000": dict(kernel="convolved", first=90000, stride=PROJECTION),
    "convolution, row 100000": dict(kernel="convolved", first=100000, stride=PROJECTION),
    "convolution, one long request": dict(kernel="convolved", first=0, stride=LIMIT // 9),
    "gated norm, row 90000": dict(kernel="norm", stride=PROJECTION * 90000 // 4),
    "gated norm, row 100000": dict(kernel="norm", stride=PROJECTION * 100000 // 4),
    "states behind requests": dict(kernel="ended", stride=LIMIT // 25),
    "states before chunks": dict(kernel="carried", heads=2**18),
}
release = Version(os.environ["PATCHQUEUE_REVISION"])
for layout in ("", "_contiguous") if release >= Version("0.5.10") else ("",):
    CASES[f"projections{layout}"] = dict(kernel="split", layout=layout, tokens=180000)
if release >= Version("0.5.7"):
    CASES["decoded states"] = dict(kernel="tracked", stride=LIMIT // 3 + 64)


@pytest.mark.parametrize("case", CASES)
def test_rows_far_apart_give_the_bits_of_rows_close_together(case, compared):
    assert compared[case]
