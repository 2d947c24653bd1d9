"""One engine that is asked one thing: its answers are compared with its own, asked otherwise.

A question is a module with MODEL, ENGINE, asked(engine, plan) and judged(result, control).
engine.py calls `asked`. control: nothing was patched, so that answers must differ.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import cases
import compare
import judging
import modes
from experiment import (
    QUEUE,
    Experiment,
    Plan,
    Session,
    engine_job,
    engine_words,
    judged_run,
    otherwise,
    unanswered,
)


def row(question: ModuleType, what: str, checked: str, port: int) -> Experiment:
    """A row of the table."""
    return Experiment(
        name=question.__name__,
        what=what,
        models=(question.MODEL,),
        passes=("warm", "cold"),
        checked=checked,
        port=port,
        plan=plan,
        judge=judge,
        takes=("model",),
        controls=(QUEUE,),
        engine_limit=200,
        words=question.ENGINE,
    )


def plan(session: Session, row: Experiment, asked: Sequence[str]) -> Plan:
    """Prefills are eager: graphs for decoding alone are captured."""
    without, stages = session.options.without, []
    for model in asked:
        name = f"{row.name.replace('_', '-')}.{model}.{without or 'patched'}"
        words = {"engine": engine_words(session, model) | row.words, "question": row.name}
        one = engine_job(session, row, name, model, modes.EAGER, **words)
        one.place = session.untouched if without else None
        stages.append([one])
    return Plan(stages)


def judge(session: Session, row: Experiment, made: Plan) -> dict:
    question, runs = importlib.import_module(row.name), []
    for one in made.jobs:
        checks = unanswered(session, [one])
        if not checks:
            checks = question.judged(judging.answers(one), bool(session.options.without))
        runs.append(judged_run(row, one.plan["of"], [one], checks))
    return {"runs": runs}


def prompts(seed: int, count: int, length: int) -> list[tuple[int, ...]]:
    """Drawn tokens, each prompt one longer than the last."""
    source = random.Random(seed)
    return [cases.drawn(source, length + number) for number in range(count)]


def with_and_without_cache(engine: Any, calls: Sequence[cases.Call]) -> dict[str, dict[str, dict]]:
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


def judged(shown: compare.Verdict, what: str, result: dict, control: bool) -> list[compare.Verdict]:
    """Whether the question was met, nothing was found without a cache, and both answer alike.
    shown: that it was met; what: is alike."""
    warm, cold = result["warm"], result["cold"]
    agree = compare.same_answers(f"{what} answer as without a cache", warm, cold)
    found = any(call["answers"][0]["cached"] for call in cold.values())
    empty = compare.Verdict("without a cache nothing was found", not found, "the cache was empty")
    return [shown, empty, otherwise([agree], QUEUE) if control else agree]
