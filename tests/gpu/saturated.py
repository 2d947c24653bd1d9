"""300 prompts that a saturated server answers at once, against the same prompts alone.

A Qwen3-Next with one slot for states per running request, no prefix cache, the overlap schedule and
--enable-mixed-chunk (0.5.7 and later). A freed slot thus goes to the next prompt at once. Every
third prompt is long: its mixed forward takes longer than the scheduler takes to read the end of a
request and to empty the slot. That forward then writes the slot for the ended request, and the next
forward starts a short prompt from that state. The other prompts are short, or gated delta nets
would forget the foreign state before the first answered token. Last, each prompt is asked alone.

The control is the release's own tree. On an H200 the untouched 0.5.9 answered 1 of 300 prompts
otherwise, and the untouched 0.5.12.post1 none: the race is rare there. The patched tree without
mamba2/copy-state-behind-forward (--tree) alone names the cause.
"""

from __future__ import annotations

import random

import cases
import compare
import models

MODEL = "qwen3-next-buffer"
PROMPTS, RUNNING, CHUNK = 300, 16, 8192
LONG, SHORT = (5000, 7000), (8, 40)  # tokens of a prompt: the fewest and the most
DECODED = (2, 4)  # tokens of an answer
COMPARED = 0.5  # the share of tokens that must be compared before ties
ENGINE = dict(
    enable_mixed_chunk=True,
    chunked_prefill_size=CHUNK,
    max_prefill_tokens=CHUNK,
    disable_radix_cache=True,
    max_running_requests=RUNNING,
    max_mamba_cache_size=RUNNING,
    max_total_tokens=1 << 18,
    cuda_graph_max_bs=RUNNING,
) | dict.fromkeys(models.EXTRA_BUFFER, "no_buffer")


def calls(seed: int = 42) -> list[cases.Call]:
    """The prompts, in the order in which they come."""
    source = random.Random(seed)

    def drawn(kind: str, number: int) -> cases.Call:
        prompt = cases.drawn(source, source.randint(*(LONG if kind == "long" else SHORT)))
        return cases.Call(f"{kind}-{number}", kind, (prompt,), source.randint(*DECODED))

    return [drawn("short" if number % 3 else "long", number) for number in range(PROMPTS)]


def asked(engine, _: dict) -> dict:
    """The answers by call: all at once, then each alone. Only the latter have log-probabilities,
    without which a prefill may be mixed with decoding. There is no prefix cache to empty."""
    import engine as engines

    one_token = dict(max_new_tokens=1, temperature=0, ignore_eos=True)
    made = calls()
    answers = engine.generate(
        input_ids=[list(call.prompts[0]) for call in made],
        sampling_params=[one_token | dict(max_new_tokens=call.new_tokens) for call in made],
    )
    together = {
        call.name: {"answers": [engines.read(answer, len(call.prompts[0]))]}
        for call, answer in zip(made, answers, strict=True)
    }
    return {"together": together, "alone": {call.name: engines.ask(engine, call) for call in made}}


def judged(result: dict, control: bool) -> list[compare.Verdict]:
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
