"""One engine that is asked for shared beginnings: `python mixed_states_engine.py PLAN.json`.
Started by mixed_states.py.

PLAN: as engine.py's.
"""

from __future__ import annotations

import behind_cache
import mixed_states
import solo_engine


def asked(engine) -> dict:
    """Both passes' answers, by call; the second time behind an empty cache each.

    The requests that decode and the long prompts come in one call: what does not fit into the first
    chunk is prefilled beside those that decode.
    """
    prompts = [*mixed_states.decoding(), *mixed_states.shared()]
    tokens = [mixed_states.DECODED] * mixed_states.DECODING + [1] * mixed_states.SHARED
    sampling = [dict(max_new_tokens=one, temperature=0, ignore_eos=True) for one in tokens]
    engine.generate(input_ids=[list(prompt) for prompt in prompts], sampling_params=sampling)
    return behind_cache.both(engine, mixed_states.continued())


if __name__ == "__main__":  # the engine's own processes import this file again
    solo_engine.main(asked)
