"""Which of a token's positions (time, height and width of an image) turns which lane of a rotary
embedding: a model's sections lie one behind another, or alternate (arXiv 2409.12191, section
2.1)."""

from typing import Any

import triton
import triton.language as tl


def of(rotary: Any) -> dict[str, int]:
    """The lanes of height and of width, as slices with one step: arguments of `position_row`. All
    other lanes turn by time. Raises ValueError for an order that two slices do not describe."""
    sections = getattr(rotary, "mrope_section", None)
    if not sections:
        return _slices(0, 0, 0, 0, 1)
    if getattr(rotary, "mrope_interleaved_glm", False):
        raise ValueError("GLM's order of rotary lanes is not two slices")
    time, height, width = sections
    if rotary.mrope_interleaved:
        return _slices(1, 3 * height, 2, 3 * width, 3)
    return _slices(time, time + height, time + height, time + height + width, 1)


def _slices(*ends: int) -> dict[str, int]:
    names = "HEIGHT", "HEIGHT_END", "WIDTH", "WIDTH_END", "LANE_STEP"
    return dict(zip(names, ends))


@triton.jit
def position_row(
    lane,
    HEIGHT: tl.constexpr,
    HEIGHT_END: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_END: tl.constexpr,
    LANE_STEP: tl.constexpr,
):
    """The row of [3, tokens] positions that a lane (int32, any shape) turns by."""
    height = (lane >= HEIGHT) & (lane < HEIGHT_END) & ((lane - HEIGHT) % LANE_STEP == 0)
    width = (lane >= WIDTH) & (lane < WIDTH_END) & ((lane - WIDTH) % LANE_STEP == 0)
    return height.to(tl.int32) + 2 * width.to(tl.int32)
