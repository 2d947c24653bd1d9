"""One engine that is asked one thing: its answers are held against its own, asked otherwise.

A question is a module with ENGINE, asked(engine) and judged(result, control), which solo_engine.py
runs in the engine's own process. `captured` of a result is as judging.captures reads it from the
log; control: nothing was patched, so that answers must differ.
"""

from __future__ import annotations

from dataclasses import asdict
from types import ModuleType

import judging
import launch
import modes
from experiment import (
    HERE,
    QUEUE,
    Experiment,
    Plan,
    Session,
    Stage,
    answer_of,
    base_plan,
    engine_words,
    judged,
    log_of,
    unanswered,
)


def row(question: ModuleType, what: str, passes: tuple[str, ...], checked: str, port: int):
    """A row of the table."""
    return Experiment(
        name=question.__name__,
        what=what,
        models=(question.MODEL,),
        passes=passes,
        checked=checked,
        port=port,
        plan=lambda session, row, _: plan(session, row, question.ENGINE),
        judge=lambda session, row, made: judge(session, row, made, question),
        controls=(QUEUE,),
        engine_limit=200,
    )


def plan(session: Session, row: Experiment, words: dict) -> Plan:
    """Prefills are eager: graphs for decoding alone are captured."""
    [model], without = row.models, session.options.without
    name = f"{row.name.replace('_', '-')}.{without or 'patched'}"
    made = base_plan(session, name, model) | {
        "question": row.name,
        "mode": modes.EAGER,
        "engine": engine_words(session, model) | words,
    }
    one = launch.Job(name, HERE / "solo_engine.py", made, session.engine_limit(row))
    return Plan([Stage([one], session.untouched if without else None, lead=False)])


def judge(session: Session, row: Experiment, made: Plan, question: ModuleType) -> dict:
    [one] = made.jobs
    checks = unanswered(session, [one])
    if not checks:
        captured = [asdict(found) for found in judging.captures(log_of(session, one))]
        result = answer_of(one) | {"captured": captured}
        checks = question.judged(result, bool(session.options.without))
    return {"runs": [judged(row, one.plan["of"], [one], checks)]}
