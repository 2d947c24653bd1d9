"""One engine whose first answer is held against its later ones: `python first_answer_engine.py
PLAN.json`. Started by first_answer.py.

PLAN: as engine.py's.
"""

from __future__ import annotations

import engine as engines
import first_answer
import solo_engine


def asked(engine) -> dict:
    """The first answer, the later ones to the same prompt, and those to others. Nothing may be
    asked before."""
    prompt = first_answer.first()
    first = engines.ask(engine, prompt)
    later = {f"next-{number}": engines.ask(engine, prompt) for number in range(first_answer.LATER)}
    others = {call.name: engines.ask(engine, call) for call in first_answer.others()}
    engines.flush(engine)
    for number in range(first_answer.LATER):
        later[f"flushed-{number}"] = engines.ask(engine, prompt)
    return {"first": first, "later": later, "others": others}


if __name__ == "__main__":  # the engine's own processes import this file again
    solo_engine.main(asked)
