#!/usr/bin/env python3
"""Hold next turns against the same prompts without a cache: `python next_turn.py --out RESULTS`, in
an unpacked bundle.

A NemotronH keeps Mamba2 states in its prefix cache while it decodes (extra_buffer, 0.5.15 and
later). First many requests decode at once, then a few, in a smaller decoding graph. Each of the few
goes on in eight ways: its prompt, its answer, and some tokens more. Then the cache is emptied and
the same prompts are asked again. Both must answer alike, and the first must have found a decoded
state.

--without queue makes the control, the release's own tree: on 0.5.15 and 0.5.16 it must answer
otherwise. Writes RESULTS/next_turn.json. Exit code 0: all good.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import behind_cache
import cases
import compare
import solo

MODEL = "nemotron-h-buffer"
MANY, FEW = 8, 3  # requests at once: in the largest decoding graph, and in a smaller one
# next turns of each of the few: behind a tie no token is compared, and one tie in 24 tokens is much
CONTINUED = 8
DECODED = 300  # tokens: states are kept behind each 256 (mamba_track_interval)
STATE_AT = 256
ENGINE = dict(cuda_graph_max_bs=MANY, cuda_graph_bs=[1, 2, 4, MANY], disable_radix_cache=False)


def many(seed: int = 21) -> cases.Call:
    """What the largest decoding graph answers first: its slots stay in the graph's buffer."""
    return cases.Call("many", "decode", tuple(behind_cache.prompts(seed, MANY, 40)), DECODED)


def few(seed: int = 22) -> cases.Call:
    return cases.Call("few", "decode", tuple(behind_cache.prompts(seed, FEW, 20)), DECODED)


def next_turns(answers: Sequence[dict], seed: int = 23) -> list[cases.Call]:
    """Each of the few requests again with its answer, and some tokens behind it, several times."""
    more = iter(behind_cache.prompts(seed, FEW * CONTINUED, 30))
    return [
        cases.Call(
            f"next-{number}-{turn}", "turn", (prompt + tuple(answer["tokens"]) + next(more),)
        )
        for number, (prompt, answer) in enumerate(zip(few().prompts, answers, strict=True))
        for turn in range(CONTINUED)
    ]


def judged(result: dict, control: bool) -> list[compare.Verdict]:
    """control: nothing was patched, so that answers must differ."""
    cached = behind_cache.cached(result)
    return [
        compare.Verdict(
            "next turns went on from decoded states",
            min(cached) >= STATE_AT,
            f"{min(cached)} to {max(cached)} tokens were cached, in {len(cached)} turns",
        ),
        *behind_cache.judged("next turns", result, control),
    ]


QUESTION = solo.Question("next_turn", MODEL, ENGINE, 30000, judged)


def main(words: Sequence[str] | None = None) -> int:
    return solo.main(QUESTION, __doc__, words)


if __name__ == "__main__":
    raise SystemExit(main())
