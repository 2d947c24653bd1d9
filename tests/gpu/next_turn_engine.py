"""One engine that is asked for next turns: `python next_turn_engine.py PLAN.json`. Started by
next_turn.py.

PLAN: as engine.py's.
"""

from __future__ import annotations

import behind_cache
import engine as engines
import next_turn
import solo_engine


def asked(engine) -> dict:
    """Both passes' answers, by call. Each next turn is asked by itself; the second time behind an
    empty cache each."""
    engines.ask(engine, next_turn.many(), logprobs=False)
    answers = engines.ask(engine, next_turn.few(), logprobs=False)["answers"]
    return behind_cache.both(engine, next_turn.next_turns(answers))


if __name__ == "__main__":  # the engine's own processes import this file again
    solo_engine.main(asked)
