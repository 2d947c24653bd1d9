"""Qwen3.5's attention turns queries and keys of image tokens by time, height and width."""

from types import SimpleNamespace

import pytest
from host import late

with late.modules():
    from sglang.srt.prefill_graph.kernels import rope_lanes

pytestmark = pytest.mark.revision(">=0.5.15")

SECTIONS = (6, 5, 5)
REFERENCE = "compare_image_rope"
CASES = {
    "image, interleaved": dict(rows=3, sections=SECTIONS, interleaved=True),
    "image, sections": dict(rows=3, sections=SECTIONS),
    "image, a graph's buffer": dict(rows=3, sections=SECTIONS, interleaved=True, room=24),
    "text, one row": dict(rows=1, sections=SECTIONS, interleaved=True),
    "text model": dict(rows=1),
}


@pytest.mark.parametrize("case", CASES)
def test_each_lane_turns_by_its_own_position(case, compared):
    found = compared[case]
    assert max(found["apart"]) < 0.02
    assert (found["by_time_alone"] > 1) == (CASES[case]["rows"] == 3)


@pytest.mark.revision("<0.5.19")
def test_an_order_of_lanes_that_the_kernel_does_not_know_is_refused():
    rotary = SimpleNamespace(
        mrope_section=[8, 12, 12], mrope_interleaved=True, mrope_interleaved_glm=True
    )
    with pytest.raises(ValueError, match="GLM"):
        rope_lanes.of(rotary)
