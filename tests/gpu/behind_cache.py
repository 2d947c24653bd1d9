"""What questions share that hold answers behind the prefix cache against those without one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import cases
import compare
from experiment import QUEUE, otherwise


def prompts(seed: int, count: int, length: int) -> list[tuple[int, ...]]:
    """Drawn tokens, each prompt one longer than the last."""
    source = random.Random(seed)
    return [
        tuple(source.randrange(cases.SMALLEST, cases.LARGEST) for _ in range(length + number))
        for number in range(count)
    ]


def both(engine: Any, calls: Sequence[cases.Call]) -> dict[str, dict[str, dict]]:
    """What each call is answered by itself, by its name: "warm" behind the cache, then "cold"
    behind an empty one each."""
    import engine as engines

    warm = {call.name: engines.ask(engine, call) for call in calls}
    cold = {}
    for call in calls:
        engines.flush(engine)
        cold[call.name] = engines.ask(engine, call)
    return {"warm": warm, "cold": cold}


def cached(result: dict) -> list[int]:
    """Tokens that were found in the cache, by call."""
    return [call["answers"][0]["cached"] for call in result["warm"].values()]


def judged(what: str, result: dict, control: bool) -> list[compare.Verdict]:
    """Whether nothing was found without a cache, and whether both answer alike. what: is alike;
    control: nothing was patched, so that answers must differ."""
    warm, cold = result["warm"], result["cold"]
    agree = compare.same_answers(f"{what} answer as without a cache", warm, cold)
    if control:
        agree = otherwise([agree], QUEUE)
    found = any(call["answers"][0]["cached"] for call in cold.values())
    return [
        compare.Verdict("without a cache nothing was found", not found, "the cache was empty"),
        agree,
    ]
