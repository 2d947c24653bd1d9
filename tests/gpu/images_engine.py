"""One engine that is asked with images and without: `python images_engine.py PLAN.json`. Started by
images.py.

PLAN: as engine.py's.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
import time
import types
from pathlib import Path

import engine as engines
import images


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


def request(call: images.Ask) -> dict:
    """sglang.Engine.generate's words for a call; log-probabilities as in engine.ask."""
    several = [[picture(*one) for one in of_prompt] for of_prompt in call.images]
    return dict(
        input_ids=[list(prompt) for prompt in call.prompts],
        image_data=several if any(several) else None,
        sampling_params={"max_new_tokens": call.new_tokens, "temperature": 0, "ignore_eos": True},
        return_logprob=True,
        logprob_start_len=[images.length(*pair) for pair in zip(call.prompts, call.images)],
        top_logprobs_num=2,
    )


def ask(engine, call: images.Ask) -> dict:
    """The engine's answers to one call, and when it was asked."""
    began = time.time()
    answers = engine.generate(**request(call))
    read = [engines.read(answer, answer["meta_info"]["prompt_tokens"]) for answer in answers]
    return {"from": began, "to": time.time(), "answers": read}


def do_without_videos() -> None:
    """0.5.9's processor imports decord, which bundles leave out, and which no image needs."""
    if importlib.util.find_spec("decord") is None:
        stand_in = types.ModuleType("decord")
        stand_in.VideoReader = type("VideoReader", (), {})
        stand_in.__spec__ = importlib.machinery.ModuleSpec("decord", None)
        sys.modules["decord"] = stand_in


def main() -> None:
    do_without_videos()
    plan = json.loads(Path(sys.argv[1]).read_text())
    engine, result = engines.start(plan)
    Path(plan["out"] + ".ready").touch()
    result |= {"answers": {}}
    for call in images.asks():
        result["answers"][call.name] = ask(engine, call)
    result["prefills"] = engines.watched(plan["watch"])
    Path(plan["out"]).write_text(json.dumps(result))
    engine.shutdown()


if __name__ == "__main__":  # the engine's own processes import this file again
    main()
