"""Which sizes a graph captures where nobody chose any: the release's own, more where padding would
cost much (up to some hundred rows it costs little), none from where eager prefill is as fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..compat import arguments

FULL = 512  # tokens from which on the time of a prefill grows as they do
MOST_PADDING = 10  # percent of a batch's tokens, from FULL on
STEP = 32  # what divides a size in between


class CannotCapture(RuntimeError):
    """No size could be captured. str() says why."""


@dataclass(frozen=True)
class Sizes:
    """tokens: ascending. why: where they come from, for the report."""

    tokens: list[int]
    why: str


def sizes_that_fit(runner: Any) -> list[int]:
    """arguments.sizes_that_fit. Raises CannotCapture where there is none."""
    sizes = arguments.sizes_that_fit(runner)
    if not sizes:
        raise CannotCapture(arguments.no_size_fits(runner))
    return sizes


def choose(server_args: Any, fitting: Sequence[int], enough: int | None = None) -> Sizes:
    """The sizes to capture. fitting: those of the arguments that the server can have, ascending.
    enough: from how many tokens on eager prefill is as fast, where that is known."""
    if not arguments.has_default_sizes(server_args):
        return Sizes(list(fitting), "those that were asked for")
    return of_defaults(fitting, enough)


def of_defaults(fitting: Sequence[int], enough: int | None = None) -> Sizes:
    """The same where nobody chose any: `fitting` are the release's own."""
    useful = up_to(fitting, enough)
    made = with_less_padding(useful)
    why = ["the release's default ones"]
    if len(made) > len(useful):
        why.append(
            f"more between them so that batches of {FULL} tokens or more are padded by less than"
            f" {MOST_PADDING} %"
        )
    if len(useful) < len(fitting):
        why.append(f"none beyond: from {enough} tokens on eager prefill is as fast")
    return Sizes(made, ", and ".join(why))


def up_to(sizes: Sequence[int], enough: int | None) -> list[int]:
    """`sizes`, ascending, as far as a batch of fewer than `enough` tokens needs them; the first one
    always."""
    if enough is None:
        return list(sizes)
    return [size for before, size in zip([0, *sizes], sizes) if not before or before + 1 < enough]


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
