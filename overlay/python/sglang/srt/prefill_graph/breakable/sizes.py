"""Which sizes the breakable graph captures where nobody chose any: the release's own, and more
where padding would cost much.

A batch replays the smallest size that holds it, and the GPU works on all of its rows. Up to some
hundred rows that costs little, since a layer's weights are read once for all rows. The releases'
default sizes are 64 to 512 tokens apart from 512 tokens on, where rows cost what they count: 1025
tokens were padded to 1280.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..compat import arguments

FULL = 512  # tokens from which on the time of a prefill grows as they do
MOST_PADDING = 10  # percent of a batch's tokens, from FULL on
STEP = 32  # what divides a size in between


@dataclass(frozen=True)
class Sizes:
    """tokens: ascending. why: where they come from, for the report."""

    tokens: list[int]
    why: str


def choose(server_args: Any, fitting: Sequence[int]) -> Sizes:
    """The sizes to capture. fitting: those of the arguments that the server can have, ascending."""
    if not arguments.has_default_sizes(server_args):
        return Sizes(list(fitting), "those that were asked for")
    made = with_less_padding(fitting)
    if len(made) == len(fitting):
        return Sizes(made, "the release's default ones")
    why = (
        f"the release's default ones, and more between them so that batches of {FULL} tokens or"
        f" more are padded by less than {MOST_PADDING} %"
    )
    return Sizes(made, why)


def with_less_padding(sizes: Sequence[int]) -> list[int]:
    """`sizes`, ascending, and those between that a batch of FULL tokens or more needs for less than
    MOST_PADDING."""
    made: list[int] = []
    for size in sizes:
        while made and made[-1] >= FULL and _padding(made[-1] + 1, size) >= MOST_PADDING:
            made.append(_next(made[-1]))
        made.append(size)
    return made


def _padding(tokens: int, size: int) -> float:
    return 100 * (size - tokens) / tokens


def _next(size: int) -> int:
    """The largest multiple of STEP that pads no batch beyond `size` too much."""
    tokens = size + 1
    largest = -(-tokens * (100 + MOST_PADDING) // 100) - 1  # below, never at MOST_PADDING
    return max(largest // STEP, size // STEP + 1) * STEP
