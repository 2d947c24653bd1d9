"""One engine that is asked for many prompts at once: `python saturated_engine.py PLAN.json`.
Started by saturated.py.

PLAN: as engine.py's.
"""

from __future__ import annotations

import engine as engines
import saturated
import solo_engine


def asked(engine) -> dict:
    """The answers by call: all at once, then each alone. Only the latter have log-probabilities,
    without which a prefill may be mixed with decoding. There is no prefix cache to empty."""
    one_token = dict(max_new_tokens=1, temperature=0, ignore_eos=True)
    made = saturated.calls()
    answers = engine.generate(
        input_ids=[list(call.prompts[0]) for call in made],
        sampling_params=[one_token | dict(max_new_tokens=call.new_tokens) for call in made],
    )
    together = {
        call.name: {"answers": [engines.read(answer, len(call.prompts[0]))]}
        for call, answer in zip(made, answers, strict=True)
    }
    return {"together": together, "alone": {call.name: engines.ask(engine, call) for call in made}}


if __name__ == "__main__":  # the engine's own processes import this file again
    solo_engine.main(asked)
