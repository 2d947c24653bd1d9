#!/usr/bin/env python3
"""Hold 300 prompts that a saturated server answers at once against the same prompts alone: `python
saturated.py --out RESULTS`, in an unpacked bundle.

A Qwen3-Next with few slots for states (extra_buffer, overlap schedule, --enable-mixed-chunk, 0.5.7
and later). First some long beginnings are prefilled in chunks. Then all prompts come at once. The
first of them go on from a beginning's first chunk. Each slot goes from a finished request to the
next prompt while a long forward still writes the slot. Last, each prompt is asked alone behind an
empty cache.

--without queue makes the control, the release's own tree: on 0.5.7 to 0.5.12 it must answer
otherwise. That does not name the cause: on an H200 the patched 0.5.12.post1 without
mamba2/copy-state-behind-forward answered all prompts right.

Writes RESULTS/saturated.json. Exit code 0: all good.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import behind_cache
import cases
import compare
import solo

MODEL = "qwen3-next-buffer"
PROMPTS, RUNNING, CHUNK = 300, 16, 8192
BEGINNINGS, CONTINUED = 8, 5  # and the prompts behind each
SHARED = CHUNK + 300  # tokens of a beginning that these share: its first chunk's state serves them
SHORTEST, LONGEST = 200, 1500  # tokens of the other prompts
DECODED = (2, 8)  # tokens: the fewest and the most
COMPARED = 0.5  # the share of tokens that must be compared before ties
ENGINE = dict(
    enable_mixed_chunk=True,
    chunked_prefill_size=CHUNK,
    max_prefill_tokens=CHUNK,
    disable_radix_cache=False,
    max_running_requests=RUNNING,
    max_mamba_cache_size=5 * RUNNING,  # up to 0.5.12 releases run a fifth as many requests
    max_total_tokens=1 << 18,
    cuda_graph_max_bs=RUNNING,
)


def beginnings(seed: int = 41) -> list[tuple[int, ...]]:
    """Prompts of two chunks each."""
    return behind_cache.prompts(seed, BEGINNINGS, CHUNK + 800)


def calls(seed: int = 42) -> list[cases.Call]:
    """The prompts, in the order in which they come."""
    source = random.Random(seed)

    def drawn(count: int) -> tuple[int, ...]:
        return tuple(source.randrange(cases.SMALLEST, cases.LARGEST) for _ in range(count))

    def tokens() -> int:
        return source.randint(*DECODED)

    made = [
        cases.Call(
            f"continued-{number}-{turn}", "continued", (prompt[:SHARED] + drawn(30),), tokens()
        )
        for number, prompt in enumerate(beginnings())
        for turn in range(CONTINUED)
    ]
    fresh = range(PROMPTS - len(made))
    return made + [
        cases.Call(
            f"fresh-{number}", "fresh", (drawn(source.randint(SHORTEST, LONGEST)),), tokens()
        )
        for number in fresh
    ]


def judged(result: dict, control: bool) -> list[compare.Verdict]:
    """control: nothing was patched, so that answers must differ."""
    mixed = sum(ran["mode"] == "MIXED" for ran in result["prefills"])
    found = compare.tally((result["together"], result["alone"]))
    kinds = {kind: found.moved_prompts[kind] for kind in found.prompts}
    shares = ", ".join(f"{kind} {kinds[kind]} of {found.prompts[kind]}" for kind in kinds)
    first = f"; first {found.wrong[0]}" if found.wrong else ""
    faults = [*found.wrong, *found.broken]
    return [
        compare.Verdict(
            "prompts were prefilled beside decoding requests",
            mixed > PROMPTS // RUNNING,
            f"{mixed} of {len(result['prefills'])} prefills were",
        ),
        compare.Verdict(
            "tokens were compared",
            found.looked_at >= COMPARED * found.offered,
            f"{found.looked_at} of {found.offered}, {found.ties} ties",
        ),
        compare.Verdict(
            "answers otherwise without queue, as it must"
            if control
            else "a saturated server answers each prompt as alone",
            bool(faults) == control,
            f"{len(faults)} prompts answered otherwise: {shares}{first}",
            found.numbers(),
        ),
    ]


QUESTION = solo.Question("saturated", MODEL, ENGINE, 34000, judged)


def main(words: Sequence[str] | None = None) -> int:
    return solo.main(QUESTION, __doc__, words)


if __name__ == "__main__":
    raise SystemExit(main())
