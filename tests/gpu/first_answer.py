"""An engine's first answer against its later ones.

An engine has no warm-up, so that its first request gets the first slot of the state pool. Capturing
graphs for decoding writes to slot 0. A gated delta net starts a prompt from what its slot holds. A
Qwen3-Next with such graphs, eager prefills and no prefix cache is asked one prompt, before anything
else. It is asked the same prompt again, from slots that no capture has written to, and behind a
flush, which empties every slot. All must answer alike.

The first answer of the control, the release's own tree, must be another on 0.5.5.post3 and
0.5.6.post2 (sglang#17404).
"""

from __future__ import annotations

import random

import cases
import compare
from experiment import QUEUE, otherwise

MODEL = "qwen3-next"
# Triton's attention: FlashInfer's would be compiled first. No prefix cache: a slot is given back,
# and emptied, when its request has ended.
ENGINE = dict(attention_backend="triton", cuda_graph_bs=[1, 2, 4, 8], disable_radix_cache=True)
# A short prompt adds little to the state that it starts from: nets decay, and long ones forget it.
PROMPT, DECODED = 4, 24  # tokens
LATER = 3  # times in a row: each from the next slot
OTHERS = 4  # prompts that must get other answers: else an answer says nothing about its state


def first() -> cases.Call:
    """The prompt that an engine is asked before any other."""
    return cases.Call("first", "first", (_prompts()[0],), DECODED)


def others() -> list[cases.Call]:
    return [
        cases.Call(f"other-{number}", "other", (prompt,), DECODED)
        for number, prompt in enumerate(_prompts()[1:])
    ]


def _prompts(seed: int = 31) -> list[tuple[int, ...]]:
    source = random.Random(seed)
    return [
        tuple(source.randrange(cases.SMALLEST, cases.LARGEST) for _ in range(PROMPT))
        for _ in range(1 + OTHERS)
    ]


def asked(engine) -> dict:
    """The first answer, the later ones to the same prompt, and those to others. Nothing may be
    asked before."""
    import engine as engines

    prompt = first()
    answer = engines.ask(engine, prompt)
    later = {f"next-{number}": engines.ask(engine, prompt) for number in range(LATER)}
    different = {call.name: engines.ask(engine, call) for call in others()}
    engines.flush(engine)
    for number in range(LATER):
        later[f"flushed-{number}"] = engines.ask(engine, prompt)
    return {"first": answer, "later": later, "others": different}


def judged(result: dict, control: bool) -> list[compare.Verdict]:
    first, later, captured = result["first"], result["later"], result["captured"]
    *again, reference = later.values()
    agree = compare.same_answers(
        "the first answer agrees with a later one", {"first": first}, {"first": reference}
    )
    if control:
        agree = otherwise([agree], QUEUE)
    return [
        compare.Verdict(
            "graphs for decoding were captured",
            bool(captured),
            ", ".join(one["what"] for one in captured) or "the log tells of none",
        ),
        compare.same_answers(
            "later answers agree with each other",
            {f"later-{number}": answer for number, answer in enumerate(again)},
            {f"later-{number}": reference for number, _ in enumerate(again)},
        ),
        compare.varied({"first": reference} | result["others"]),
        agree,
    ]
