"""One engine that is asked for shared beginnings: `python mixed_states_engine.py PLAN.json`.
Started by mixed_states.py.

PLAN: as engine.py's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import engine as engines
import mixed_states


def asked(engine) -> dict:
    """Both passes' answers, by call; the second time behind an empty cache each.

    The requests that decode and the long prompts come in one call: what does not fit into the first
    chunk is prefilled beside those that decode.
    """
    prompts = [*mixed_states.decoding(), *mixed_states.shared()]
    tokens = [mixed_states.DECODED] * mixed_states.DECODING + [1] * mixed_states.SHARED
    sampling = [dict(max_new_tokens=one, temperature=0, ignore_eos=True) for one in tokens]
    engine.generate(input_ids=[list(prompt) for prompt in prompts], sampling_params=sampling)
    turns = mixed_states.continued()
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
