"""Gates of a gated delta net that are views of one projection, as Qwen3.5-27B's are."""

import pytest
from host import interpreted

pytestmark = pytest.mark.revision(">=0.5.10,<0.5.11")


def test_gates_that_are_views_are_read_as_tensors_of_their_own_are():
    cases = {
        "three value heads for each key head": dict(rows=6, keys=2, values=6, requests=2),
        "more heads than a block has": dict(rows=4, keys=4, values=12, requests=4),
    }
    results = interpreted.run("host.references.compare_split_gates", cases)
    for case, differences in results.items():
        assert differences == {"prefill": 0.0, "verify": 0.0}, case
