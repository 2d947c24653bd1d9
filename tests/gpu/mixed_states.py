#!/usr/bin/env python3
"""Hold prompts that share a beginning against the same prompts without a cache, where the beginning
was prefilled beside decoding requests: `python mixed_states.py --out RESULTS`, in an unpacked
bundle.

A NemotronH with --enable-mixed-chunk keeps Mamba2 states inside of prompts (extra_buffer, 0.5.14
and later). Short requests decode, and long prompts prefill beside them. Each long prompt is asked
again with some tokens more, once behind the cache and once without. Both must answer alike.

--without queue makes the control, the release's own tree: up to 0.5.22 it must answer otherwise.
Writes RESULTS/mixed_states.json. Exit code 0: all good.
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
    return behind_cache.prompts(seed, DECODING, 40)


def shared(seed: int = 32) -> list[tuple[int, ...]]:
    return behind_cache.prompts(seed, SHARED, LENGTH)


def continued(seed: int = 33) -> list[cases.Call]:
    """Each shared beginning again, with some tokens behind it."""
    more = iter(behind_cache.prompts(seed, SHARED * CONTINUED, 30))
    return [
        cases.Call(f"shared-{number}-{turn}", "turn", (prompt + next(more),))
        for number, prompt in enumerate(shared())
        for turn in range(CONTINUED)
    ]


def judged(result: dict, control: bool) -> list[compare.Verdict]:
    """control: nothing was patched, so that answers must differ."""
    cached = behind_cache.cached(result)
    mixed = [ran for ran in result["prefills"] if ran["mode"] == "MIXED"]
    return [
        compare.Verdict(
            "long prompts were prefilled beside decoding requests",
            bool(mixed),
            f"{len(mixed)} of {len(result['prefills'])} prefills were;"
            f" {min(cached)} to {max(cached)} tokens were cached behind them",
        ),
        *behind_cache.judged("shared beginnings", result, control),
    ]


QUESTION = solo.Question("mixed_states", MODEL, ENGINE, 32000, judged)


def main(words: Sequence[str] | None = None) -> int:
    return solo.main(QUESTION, __doc__, words)


if __name__ == "__main__":
    raise SystemExit(main())
