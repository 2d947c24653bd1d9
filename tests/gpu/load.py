"""What gain.py sends: a GSM8K-shaped load, and that of a prefill node. The same tokens in every
mode."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

SMALLEST, LARGEST = 100, 100_000  # token ids
REQUESTS, IN_FLIGHT = 200, 128
SHOTS = 800  # tokens of the five worked examples that every prompt begins with
QUESTION = (60, 100)  # shortest and longest question behind them
# shortest, mean and longest answer; the model is kept from ending earlier or later
ANSWER = (40, 120, 300)
CHUNK = 4096  # longest piece of prompts that one forward takes
# requests of a decode step that a graph is captured for
DECODE = (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128)
# what gain.py sends at once: a prefill node's load
PREFILL_REQUESTS, PREFILL_PROMPT, PREFILL_IN_FLIGHT = (32, 4096, 16)
# Before each timed call. Schedulers that prepare the next step early also decode behind a last
# token: 5 ms in which the next call would wait for the call before.
PAUSE_S = 0.03


@dataclass(frozen=True)
class Request:
    """prompt: token ids; answer: how many tokens are generated; at_s: when it is sent."""

    prompt: tuple[int, ...]
    answer: int
    at_s: float = 0.0


def requests(count: int = REQUESTS, seed: int = 11) -> list[Request]:
    """The load: one shared beginning, a question and an answer length of its own for each
    request."""
    source = random.Random(seed)
    shots = tokens(source, SHOTS)
    return [
        Request(shots + tokens(source, source.randint(*QUESTION)), answer_length(source))
        for _ in range(count)
    ]


def prefills(seed: int, count: int) -> list[Request]:
    """The load of a node that only prefills: prompts that share nothing, one token each."""
    source = random.Random(f"prefills {seed}")
    return [Request(tokens(source, PREFILL_PROMPT), 1) for _ in range(count)]


def answer_length(source: random.Random) -> int:
    """Spread as answers are: many short ones, few long ones, ANSWER's mean (a gamma distribution,
    cut at both ends)."""
    shortest, mean, longest = ANSWER
    return min(longest, shortest + round(source.gammavariate(2.5, (mean - shortest) / 2.5)))


def tokens(source: random.Random, count: int) -> tuple[int, ...]:
    """Token ids."""
    return tuple(source.randrange(SMALLEST, LARGEST) for _ in range(count))


def percentile(ordered: Sequence[float], part: float) -> float:
    """Between its two neighbours where it falls between them. Raises ValueError of nothing."""
    if not ordered:
        raise ValueError("no values")
    place = (len(ordered) - 1) * part / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
