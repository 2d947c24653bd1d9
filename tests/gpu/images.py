"""A multimodal model that is asked for text and about images.

A small Qwen3.5 with random weights, a vision tower, a tokenizer and a processor is made on the
spot. It answers prompts with images, without, both in one call, and text behind an image, in two
engines: one that prefills eagerly, and one with the breakable graph. Their answers must agree,
prefills of text must have been replayed, and where the queue's rule holds (0.5.9 to 0.5.15) those
with an image must not. Another image must change the answer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cases
import compare
import graphs
import judging
import launch
import models
import modes
from experiment import Experiment, Plan, Session, engine_job, judged_run, unanswered

MODEL = "qwen3-5"
TEXT, IMAGE, MIXED = "text", "image", "mixed"
# what prompts are made of: each is one token
LETTERS = [chr(code) for code in range(ord("!"), ord("~") + 1)]
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
)
RULES = ("breakable/capture-layer-stack", "breakable/replay-text-of-multimodal")  # images eagerly
CONFIG = models.MODELS[MODEL]
_VISION = CONFIG["vision_config"]


def vocabulary() -> dict[str, int]:
    """Every token of the tokenizer: single bytes, as byte-level BPE writes them, and the special
    ones behind."""
    graphic = (code for code in range(256) if chr(code).isprintable() and code != 0xAD)
    shown = [code for code in graphic if not chr(code).isspace()]
    hidden = [code for code in range(256) if code not in shown]
    letters = [chr(code) for code in shown] + [chr(256 + number) for number in range(len(hidden))]
    return {letter: number for number, letter in enumerate([*letters, *SPECIAL])}


def write_small(folder: Path) -> Path:
    """All but the weights: config, tokenizer, processor."""
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers import models as kinds

    models.write_config(folder, CONFIG)
    known = vocabulary()
    letters = {token: number for token, number in known.items() if token not in SPECIAL}
    tokenizer = Tokenizer(kinds.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    assert all(tokenizer.token_to_id(token) == number for token, number in known.items())
    tokenizer.save(str(folder / "tokenizer.json"))
    made = json.loads(models.CONFIGS.with_name("processors.json").read_text(encoding="utf-8"))
    for name, content in ({"vocab.json": letters} | made).items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return folder


@dataclass(frozen=True)
class Ask(cases.Call):
    """kind: what its prompts have; prompts: with an image's place among the token ids; images: of
    each prompt, as (seed, width, height)."""

    images: tuple[tuple[tuple[int, int, int], ...], ...] = ()


def asks(seed: int = 9) -> list[Ask]:
    """All calls, in order. The cache is empty before the first; some continue earlier prompts."""
    source, known = random.Random(seed), vocabulary()
    place = tuple(known[token] for token in ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"))

    def text(count: int) -> tuple[int, ...]:
        return tuple(known[source.choice(LETTERS)] for _ in range(count))

    def of(name: str, *parts: tuple[tuple[int, ...], tuple[tuple[int, int, int], ...]]) -> Ask:
        with_images = sum(bool(images) for _, images in parts)
        kind = TEXT if not with_images else IMAGE if with_images == len(parts) else MIXED
        prompts, pictures = zip(*parts)
        return Ask(name, kind, prompts, images=pictures)

    begun = text(20) + place + text(60)
    made = [of(f"text-{n}", (text(n), ())) for n in (5, 16, 100, 300)]
    made.append(of("text-by-4", *((text(n), ()) for n in (7, 60, 33, 90))))
    for w, h in ((64, 64), (128, 96), (256, 256)):
        made.append(of(f"image-{w}x{h}", (text(9) + place + text(40), ((w, w, h),))))
    made += [of(f"image-other-{which}", (begun, ((which, 256, 256),))) for which in (1, 2)]
    two = text(5) + place + text(8) + place + text(30)
    made.append(of("image-two", (two, ((3, 64, 96), (4, 96, 64)))))
    made.append(of("image-chunked", (text(30) + place + text(700), ((5, 128, 128),))))
    for number in range(3):
        before = text(50), ()
        pictured = text(11) + place + text(20), ((6 + number, 64, 64),)
        made.append(of(f"mixed-{number}", before, pictured, (text(120), ())))
        made.append(of(f"text-after-{number}", (text(30 + number), ())))
    made.append(of("image-prefix", (begun + text(70), ((1, 256, 256),))))
    return [*made, of("text-last", (text(64), ()), (text(17), ()))]


def length(prompt: tuple[int, ...], pictures: tuple[tuple[int, int, int], ...]) -> int:
    """Tokens of a prompt once its images are in their places: one for each square of merged
    patches."""
    side = _VISION["patch_size"] * _VISION["spatial_merge_size"]
    return len(prompt) + sum(width // side * (height // side) - 1 for _, width, height in pictures)


def plan(session: Session, row: Experiment, _: Sequence[str]) -> Plan:
    return Plan([[job(session, row, mode)] for mode in (modes.EAGER, modes.BREAKABLE)])


def judge(session: Session, row: Experiment, made: Plan) -> dict:
    checks = unanswered(session, made.jobs)
    if not checks:
        eager, mine = map(judging.answers, made.jobs)
        ruled = any(patch["name"].startswith(RULES) for patch in session.facts["patches"])
        checks = compared(mine, eager, ruled)
    return {"runs": [judged_run(row, MODEL, made.jobs, checks)]}


def job(session: Session, row: Experiment, mode: str) -> launch.Job:
    return engine_job(session, row, f"images.{mode}", MODEL, mode, question="images")


def picture(seed: int, width: int, height: int):
    """An RGB image of coarse random patches, as a base64 PNG."""
    import base64
    import io

    import numpy
    from PIL import Image

    coarse = numpy.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=numpy.uint8)
    made, kept = Image.fromarray(coarse).resize((width, height), Image.NEAREST), io.BytesIO()
    made.save(kept, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(kept.getvalue()).decode()}"


def shown(call: Ask) -> dict:
    """sglang.Engine.generate's words for a call's images; log-probabilities begin behind these."""
    several = [[picture(*one) for one in of_prompt] for of_prompt in call.images]
    starts = [length(*pair) for pair in zip(call.prompts, call.images)]
    return {"image_data": several if any(several) else None, "logprob_start_len": starts}


def request(call: Ask) -> dict:
    """sglang.Engine.generate's words for a call."""
    import engine as engines

    return engines.request(call, **shown(call))


def ask(engine, call: Ask) -> dict:
    """The engine's answers to one call, and when it was asked."""
    import engine as engines

    return engines.ask(engine, call, **shown(call))


def asked(engine, _: dict) -> dict:
    return {"answers": {call.name: ask(engine, call) for call in asks()}}


def compared(mine: dict, eager: dict, ruled: bool) -> list[compare.Verdict]:
    """The breakable engine held against the eager one. ruled: batches with images are to run
    eagerly."""
    what = "breakable agrees with eager prefill"
    found = [compare.same_answers(what, mine["answers"], eager["answers"])]
    found.append(replayed(mine, TEXT, True))
    found += [replayed(mine, IMAGE, False)] if ruled else []
    found.append(replayed(eager, TEXT, False))
    for name, one in ((modes.EAGER, eager), (modes.BREAKABLE, mine)):
        first, other = (one["answers"][f"image-other-{which}"]["answers"][0] for which in (1, 2))
        apart = max(abs(a - b) for a, b in zip(first["logprobs"], other["logprobs"]))
        changed = first["tokens"] != other["tokens"] or apart > compare.TIE
        what = f"{name}: another image changes the answer"
        why = f"log-probabilities up to {apart:.3f} apart"
        found.append(compare.Verdict(what, changed, why))
    return found


def replayed(result: dict, kind: str, wanted: bool) -> compare.Verdict:
    """Whether graphs ran all prefills of one kind of call that fit one, or none."""
    answers = [result["answers"][call.name] for call in asks() if call.kind == kind]
    spans = [(one["from"], one["to"]) for one in answers]
    what = f"prefills of {kind} calls were {'' if wanted else 'not '}replayed"
    return graphs.replayed(what, result["prefills"], cases.CAPTURE, spans, wanted)
