"""What users send to a server: when, which tokens, how long an answer. The same for every tree.

gsm8k   one shared beginning of 800 tokens and short questions, 128 in flight
chat    223 tokens asked and 140 answered, at each of RATES requests a second
long    4096 tokens asked and 64 answered, 16 in flight
prefill 8192 tokens asked and one answered, 8 in flight: what a prefill node gets
agent   conversations of TURNS turns: each turn sends all before it again, and some more
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import load

RATES = (4, 16, 32)  # requests a second
SECONDS = 12  # of arrivals at one rate
CHAT_PROMPT, CHAT_ANSWER = 223, 140
LONG_PROMPT, LONG_ANSWER, LONG_REQUESTS, LONG_IN_FLIGHT = 4096, 64, 48, 16
NODE_PROMPT, NODE_REQUESTS, NODE_IN_FLIGHT = 8192, 32, 8
USERS, TURNS = 8, 6
SYSTEM, OBSERVED, TURN_ANSWER = 2000, 250, 60  # tokens: first, new in a turn, and answered
KINDS = ("gsm8k", *(f"chat-{rate}" for rate in RATES), "long", "prefill", "agent")
RUNNING = load.IN_FLIGHT


@dataclass(frozen=True)
class Turn:
    """One request of a conversation. new: the tokens behind what was said before."""

    new: tuple[int, ...]
    answer: int


@dataclass(frozen=True)
class Conversation:
    """Turns that are sent one after the other. at_s: when the first one is sent."""

    at_s: float
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Load:
    """Conversations, and how many of them may be under way at once; 0: as many as come."""

    conversations: tuple[Conversation, ...]
    in_flight: int


def made(kind: str, number: int) -> Load:
    """The load of a kind. number: of the load, which settles its tokens and arrivals. Raises
    KeyError for no kind."""
    source = random.Random(f"traffic {kind} {number}")
    name, _, rate = kind.partition("-")
    makers = {"gsm8k": _gsm8k, "chat": _chat, "long": _long, "prefill": _prefill, "agent": _agent}
    return makers[name](source, rate)


def _gsm8k(source: random.Random, _: str) -> Load:
    asked = load.requests(seed=source.randrange(1 << 30))
    return Load(tuple(_single(0, one.prompt, one.answer) for one in asked), load.IN_FLIGHT)


def _chat(source: random.Random, rate: str) -> Load:
    at_s, found = 0.0, []
    while (at_s := at_s + source.expovariate(int(rate))) < SECONDS:
        found.append(_single(at_s, load.tokens(source, CHAT_PROMPT), CHAT_ANSWER))
    return Load(tuple(found), 0)


def _long(source: random.Random, _: str) -> Load:
    asked = [load.tokens(source, LONG_PROMPT) for _ in range(LONG_REQUESTS)]
    return Load(tuple(_single(0, prompt, LONG_ANSWER) for prompt in asked), LONG_IN_FLIGHT)


def _prefill(source: random.Random, _: str) -> Load:
    asked = [load.tokens(source, NODE_PROMPT) for _ in range(NODE_REQUESTS)]
    return Load(tuple(_single(0, prompt, 1) for prompt in asked), NODE_IN_FLIGHT)


def _agent(source: random.Random, _: str) -> Load:
    system = load.tokens(source, SYSTEM)

    def turn(number: int) -> Turn:
        new = load.tokens(source, OBSERVED)
        return Turn(new if number else system + new, TURN_ANSWER)

    talks = [tuple(turn(number) for number in range(TURNS)) for _ in range(USERS)]
    return Load(tuple(Conversation(0, turns) for turns in talks), 0)


def _single(at_s: float, prompt: tuple[int, ...], answer: int) -> Conversation:
    return Conversation(at_s, (Turn(prompt, answer),))


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
    request has more than one. input_tokens_per_s: of prompts, but for what was cached.
    """
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
    return {f"p{part}": round(load.percentile(ordered, part), 2) for part in parts}


def rate(found: dict) -> float:
    """The tokens a second of a load's summary: those that were written, or those that were read
    where each answer is one token."""
    return found["output_tokens_per_s" if found["later_ms"] else "input_tokens_per_s"]
