"""One engine that is asked for next turns: `python next_turn_engine.py PLAN.json`. Started by
next_turn.py.

PLAN: as engine.py's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import engine as engines
import next_turn


def asked(engine) -> dict:
    """Both passes' answers, by call. Each next turn is asked by itself; the second time behind an
    empty cache each."""
    engines.ask(engine, next_turn.many(), logprobs=False)
    answers = engines.ask(engine, next_turn.few(), logprobs=False)["answers"]
    turns = next_turn.next_turns(answers)
    warm = {call.name: engines.ask(engine, call) for call in turns}
    cold = {}
    for call in turns:
        engines.flush(engine)
        cold[call.name] = engines.ask(engine, call)
    return {"warm": warm, "cold": cold}


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    engine, result = engines.start(plan)
    Path(plan["out"] + ".ready").touch()
    result |= asked(engine) | {"prefills": engines.watched(plan["watch"])}
    Path(plan["out"]).write_text(json.dumps(result))
    engine.shutdown()


if __name__ == "__main__":  # the engine's own processes import this file again
    main()
