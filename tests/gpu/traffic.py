"""What gain.py sends: prompts of a shape, a prefill node's load, and what users send: when, which
tokens, how long an answer. The same tokens for every tree.

gsm8k   one shared beginning of 800 tokens and short questions, 128 in flight
chat    223 tokens asked and 140 answered, at each of RATES requests a second
long    4096 tokens asked and 64 answered, 16 in flight
prefill 8192 tokens asked and one answered, 8 in flight: what a prefill node gets
turns   64 requests at once, of 1 to 16 new tokens behind 2048 that are in the prefix cache
decode  short prompts and 256 tokens answered, each of RUNS requests at once
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

SMALLEST, LARGEST = 100, 100_000  # token ids
CHUNK = 4096  # longest piece of prompts that one forward takes
# requests of a decode step that a graph is captured for
DECODE = (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128)
# of a prefill node's load: all requests, the tokens of each, and how many are under way at once
PREFILL_REQUESTS, PREFILL_PROMPT, PREFILL_IN_FLIGHT = (32, 4096, 16)
# Before each timed call. Schedulers that prepare the next step early also decode behind a last
# token: 5 ms in which the next call would wait for the call before.
PAUSE_S = 0.03
# gsm8k: requests; tokens of the five worked examples that every prompt begins with; shortest and
# longest question behind them; shortest, mean and longest answer
REQUESTS, RUNNING, SHOTS, QUESTION, ANSWER = 200, 128, 800, (60, 100), (40, 120, 300)
RATES = (4, 16, 32)  # requests a second
SECONDS = 12  # of arrivals at one rate
CHAT_PROMPT, CHAT_ANSWER = 223, 140
LONG_PROMPT, LONG_ANSWER, LONG_REQUESTS, LONG_IN_FLIGHT = 4096, 64, 48, 16
NODE_PROMPT, NODE_REQUESTS, NODE_IN_FLIGHT = 8192, 32, 8
TURNS, PREFIX, MOST_NEW = 64, 2048, 16  # requests; tokens
RUNS = (1, 8, 32, 128)  # requests that decode at once
DECODE_PROMPT, DECODE_ANSWER = 16, 256
KINDS = (
    *("gsm8k", "long", "prefill", "turns"),
    *(f"chat-{rate}" for rate in RATES),
    *(f"decode-{count}" for count in RUNS),
)


@dataclass(frozen=True)
class Request:
    """prompt: token ids; answer: how many tokens are generated; at_s: when it is sent."""

    prompt: tuple[int, ...]
    answer: int
    at_s: float = 0.0


@dataclass(frozen=True)
class Load:
    """Requests, and how many of them may be under way at once; 0: as many as come. cached: prompts
    that are answered before, so that the prefix cache has them."""

    requests: tuple[Request, ...]
    in_flight: int
    cached: tuple[tuple[int, ...], ...] = ()


def made(kind: str, number: int) -> Load:
    """The load of a kind. number: of the load, which settles its tokens and arrivals. Raises
    KeyError for no kind."""
    source = random.Random(f"traffic {kind} {number}")
    # requests of so many tokens each, which share none; tokens answered; under way at once
    alike = {f"decode-{count}": (count, DECODE_PROMPT, DECODE_ANSWER, 0) for count in RUNS} | {
        "long": (LONG_REQUESTS, LONG_PROMPT, LONG_ANSWER, LONG_IN_FLIGHT),
        "prefill": (NODE_REQUESTS, NODE_PROMPT, 1, NODE_IN_FLIGHT),
    }
    if kind in alike:
        count, prompt, answer, in_flight = alike[kind]
        found = (Request(tokens(source, prompt), answer) for _ in range(count))
        return Load(tuple(found), in_flight)
    name, _, rate = kind.partition("-")
    return {"gsm8k": _gsm8k, "chat": _chat, "turns": _turns}[name](source, rate)


def _gsm8k(source: random.Random, _: str) -> Load:
    source = random.Random(source.randrange(1 << 30))
    shots, found = tokens(source, SHOTS), []
    for _ in range(REQUESTS):
        question = tokens(source, source.randint(*QUESTION))
        found.append(Request(shots + question, _answer_length(source)))
    return Load(tuple(found), RUNNING)


def _answer_length(source: random.Random) -> int:
    """Spread as answers are: many short ones, few long ones, ANSWER's mean (a gamma distribution,
    cut at both ends)."""
    shortest, mean, longest = ANSWER
    return min(longest, shortest + round(source.gammavariate(2.5, (mean - shortest) / 2.5)))


def _chat(source: random.Random, rate: str) -> Load:
    at_s, found = 0.0, []
    while (at_s := at_s + source.expovariate(int(rate))) < SECONDS:
        found.append(Request(tokens(source, CHAT_PROMPT), CHAT_ANSWER, at_s))
    return Load(tuple(found), 0)


def _turns(source: random.Random, _: str) -> Load:
    cached = tuple(tokens(source, PREFIX) for _ in range(TURNS))
    new = (tokens(source, source.randint(1, MOST_NEW)) for _ in cached)
    return Load(tuple(Request(one + more, 1) for one, more in zip(cached, new)), 0, cached)


def prefills(number: int, count: int) -> list[list[int]]:
    """The load of a node that only prefills, one token each: prompts that share nothing."""
    source = random.Random(f"prefills {number}")
    return [list(tokens(source, PREFILL_PROMPT)) for _ in range(count)]


def tokens(source: random.Random, count: int) -> tuple[int, ...]:
    """Token ids."""
    return tuple(source.randrange(SMALLEST, LARGEST) for _ in range(count))


@dataclass(frozen=True)
class Answered:
    """One request as its sender saw it, in seconds. cached: prompt tokens that were in the prefix
    cache."""

    first_s: float
    whole_s: float
    prompt: int
    cached: int
    answer: int


def summary(found: Sequence[Answered], span_s: float) -> dict:
    """Of a load: seconds, tokens a second, and percentiles of first tokens in milliseconds.
    later_ms: of the time between tokens behind the first one, each request's mean; empty where no
    request has more than one. input_tokens_per_s: of prompts, but for what was cached."""
    firsts = sorted(one.first_s * 1e3 for one in found)
    later = sorted(
        (one.whole_s - one.first_s) * 1e3 / (one.answer - 1) for one in found if one.answer > 1
    )
    return {
        "requests": len(found),
        "seconds": round(span_s, 3),
        "output_tokens_per_s": round(sum(one.answer for one in found) / span_s, 1),
        "input_tokens_per_s": round(sum(one.prompt - one.cached for one in found) / span_s, 1),
        "prompt_tokens": sum(one.prompt for one in found),
        "cached_tokens": sum(one.cached for one in found),
        "first_ms": _percentiles(firsts, (50, 90, 99)),
        "later_ms": _percentiles(later, (50, 99)) if later else {},
    }


def _percentiles(ordered: Sequence[float], parts: Sequence[int]) -> dict[str, float]:
    return {f"p{part}": round(percentile(ordered, part), 2) for part in parts}


def percentile(ordered: Sequence[float], part: float) -> float:
    """Between its two neighbours where it falls between them. Raises IndexError of nothing."""
    place = (len(ordered) - 1) * part / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def rate(found: dict) -> float:
    """The tokens a second of a load's summary: those that were written, or those that were read
    where each answer is one token."""
    return found["output_tokens_per_s" if found["later_ms"] else "input_tokens_per_s"]
