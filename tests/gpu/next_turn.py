"""Next turns against the same prompts without a cache.

A NemotronH keeps Mamba2 states in its prefix cache while it decodes (extra_buffer, 0.5.15 and
later). Many requests decode at once, then a few, in a smaller decoding graph. Each of the few goes
on in a hundred ways, behind the cache and without one. Both must answer alike, and the first must
have found a decoded state.

The control, the release's own tree, must answer otherwise on 0.5.15 and 0.5.16. With drafts
(nemotron-h-mtp) it agreed there in all of 300 turns.
"""

from __future__ import annotations

from collections.abc import Sequence

import cases
import compare
import solo

MODEL = "nemotron-h-buffer"
MANY, FEW = 8, 3  # requests at once: in the largest decoding graph, and in a smaller one
# next turns of each of the few: behind a tie no token is compared, and one tie in 24 tokens is much
CONTINUED = 100
DECODED = 300  # tokens: states are kept behind each 256 (mamba_track_interval)
STATE_AT = 256
ENGINE = dict(cuda_graph_max_bs=MANY, cuda_graph_bs=[1, 2, 4, MANY], disable_radix_cache=False)


def many(seed: int = 21) -> cases.Call:
    """What the largest decoding graph answers first: its slots stay in the graph's buffer."""
    return cases.Call("many", "decode", tuple(solo.prompts(seed, MANY, 40)), DECODED)


def few(seed: int = 22) -> cases.Call:
    return cases.Call("few", "decode", tuple(solo.prompts(seed, FEW, 20)), DECODED)


def next_turns(answers: Sequence[dict], seed: int = 23) -> list[cases.Call]:
    """Each of the few requests again with its answer, and some tokens behind it, several times. In
    turn, so that no request's states are the oldest in the cache."""
    more = iter(solo.prompts(seed, FEW * CONTINUED, 30))
    pairs = zip(few().prompts, answers, strict=True)
    begun = [prompt + tuple(answer["tokens"]) for prompt, answer in pairs]
    return [
        cases.Call(f"next-{number}-{turn}", "turn", (prompt + next(more),))
        for turn in range(CONTINUED)
        for number, prompt in enumerate(begun)
    ]


def asked(engine, _: dict) -> dict:
    """Both passes' answers, by call. Each next turn is asked by itself; the second time behind an
    empty cache each."""
    import engine as engines

    engines.ask(engine, many(), logprobs=False)
    answers = engines.ask(engine, few(), logprobs=False)["answers"]
    return solo.with_and_without_cache(engine, next_turns(answers))


def judged(result: dict, control: bool) -> list[compare.Verdict]:
    cached = solo.cached(result)
    why = f"{min(cached)} to {max(cached)} tokens were cached, in {len(cached)} turns"
    what = "next turns went on from decoded states"
    shown = compare.Verdict(what, min(cached) >= STATE_AT, why)
    return solo.judged(shown, "next turns", result, control)
