"""Prompts that share a beginning against the same prompts without a cache, where the beginning was
prefilled beside decoding requests.

A NemotronH with --enable-mixed-chunk keeps Mamba2 states inside of prompts (extra_buffer, 0.5.14
and later). Short requests decode, and long prompts prefill beside them. Each long prompt is asked
again with some tokens more, once behind the cache and once without. Both must answer alike.

The control, the release's own tree, must answer otherwise up to 0.5.22.
"""

from __future__ import annotations

import cases
import compare
import solo

MODEL = "nemotron-h-buffer"
DECODING, DECODED = 8, 200  # requests that decode meanwhile, and their tokens
SHARED, LENGTH = 12, 700  # beginnings, and the tokens of each
CONTINUED = 2  # prompts behind each beginning
ENGINE = dict(
    enable_mixed_chunk=True,
    chunked_prefill_size=512,
    disable_radix_cache=False,
    cuda_graph_max_bs=DECODING,
)


def decoding(seed: int = 31) -> list[tuple[int, ...]]:
    return solo.prompts(seed, DECODING, 40)


def shared(seed: int = 32) -> list[tuple[int, ...]]:
    return solo.prompts(seed, SHARED, LENGTH)


def continued(seed: int = 33) -> list[cases.Call]:
    """Each shared beginning again, with some tokens behind it."""
    more = iter(solo.prompts(seed, SHARED * CONTINUED, 30))
    return [
        cases.Call(f"shared-{number}-{turn}", "turn", (prompt + next(more),))
        for number, prompt in enumerate(shared())
        for turn in range(CONTINUED)
    ]


def asked(engine, _: dict) -> dict:
    """Both passes' answers, by call; the second time behind an empty cache each. The requests that
    decode and the long prompts come in one call: what does not fit into the first chunk is
    prefilled beside those that decode."""
    prompts = [*decoding(), *shared()]
    tokens = [DECODED] * DECODING + [1] * SHARED
    sampling = [dict(max_new_tokens=one, temperature=0, ignore_eos=True) for one in tokens]
    engine.generate(input_ids=[list(prompt) for prompt in prompts], sampling_params=sampling)
    return solo.with_and_without_cache(engine, continued())


def judged(result: dict, control: bool) -> list[compare.Verdict]:
    cached = solo.cached(result)
    mixed = [ran for ran in result["prefills"] if ran["mode"] == "MIXED"]
    why = f"{len(mixed)} of {len(result['prefills'])} prefills were;"
    why += f" {min(cached)} to {max(cached)} tokens were cached behind them"
    what = "long prompts were prefilled beside decoding requests"
    shown = compare.Verdict(what, bool(mixed), why)
    return solo.judged(shown, "shared beginnings", result, control)
