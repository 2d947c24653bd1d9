#!/usr/bin/env python3
"""Hold an engine's first answer against its later ones: `python first_answer.py --out RESULTS`, in
an unpacked bundle.

An engine has no warm-up, so that its first request gets the first slot of the state pool. Capturing
graphs for decoding writes to slot 0. A gated delta net starts a prompt from what its slot holds. A
Qwen3-Next with such graphs, eager prefills and no prefix cache is asked one prompt, before anything
else. It is asked the same prompt again, from slots that no capture has written to, and behind a
flush, which empties every slot. All must answer alike.

--without queue makes the control, the release's own tree: on 0.5.5.post3 and 0.5.6.post2 its first
answer must be another (sglang#17404). Writes RESULTS/first_answer.json. Exit code 0: all good.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cases
import compare
import launch
import models
import modes
import run
import settings

HERE = Path(__file__).resolve().parent
RESULT = "first_answer.json"
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


def main(words: Sequence[str] | None = None) -> int:
    options = _options(words)
    place = run.place_of(options)
    facts = run.describe(place, options) | {"without": options.without}
    if options.without:
        place = settings._untouched(place, options)
    folder = place.out / "models"
    subprocess.run(
        [place.python, str(HERE / "models.py"), str(folder), MODEL],
        env=place.environment(),
        check=True,
    )
    began, one = time.time(), job(place, options, folder / MODEL)
    launch.run_all(place, [one], 1, began + options.engine_limit, run.say, lead=False)
    log = (place.out / f"{one.name}.log").read_text(errors="replace")
    if one.code != 0:
        checks = [compare.Verdict("the engine answered", False, f"{one.why} {run.error(log)}")]
    else:
        result = json.loads(Path(one.plan["out"]).read_text())
        checks = judged(result, run.captures(log), bool(options.without))
    facts |= {
        "seconds": round(time.time() - began),
        "checks": [check.as_json() for check in checks],
    }
    (place.out / RESULT).write_text(json.dumps(facts, indent=1) + "\n")
    for check in checks:
        print(f"{'ok  ' if check.good else 'FAIL'} {check.what}: {check.why}")
    return 0 if all(check.good for check in checks) else 1


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    run.add_place(parser)
    parser.add_argument(
        "--without", choices=[settings.QUEUE], default="", help="a control: leave this out"
    )
    parser.add_argument(
        "--untouched",
        type=Path,
        metavar="FOLDER",
        help="what makes the release's own tree (default: the bundle's untouched/)",
    )
    parser.add_argument(
        "--engine-limit",
        type=float,
        default=200,
        help="seconds that the engine may take (default 200)",
    )
    parser.add_argument(
        "--port-base", type=int, default=31000, help="first of the engine's ports (default 31000)"
    )
    return parser.parse_args(words)


def job(place: launch.Place, options: argparse.Namespace, model: Path) -> launch.Job:
    """Prefills are eager: graphs for decoding alone are captured."""
    name = f"first-answer.{options.without or 'patched'}"
    plan = {
        "model": str(model),
        "mode": modes.EAGER,
        "port": options.port_base,
        "out": str(place.out / f"{name}.json"),
        "engine": models.engine(MODEL) | ENGINE,
    }
    return launch.Job(name, HERE / "first_answer_engine.py", plan, options.engine_limit)


def judged(result: dict, captured: Sequence[run.Capture], control: bool) -> list[compare.Verdict]:
    """result: as first_answer_engine.asked; captured: what the log says of graphs; control: nothing
    was patched, so that the first answer must differ."""
    asked, later = result["first"], result["later"]
    *again, reference = later.values()
    agree = compare.same_answers(
        "the first answer agrees with a later one", {"first": asked}, {"first": reference}
    )
    if control:
        agree = settings.otherwise([agree], settings.QUEUE)
    return [
        compare.Verdict(
            "graphs for decoding were captured",
            bool(captured),
            ", ".join(one.what for one in captured) or "the log tells of none",
        ),
        compare.same_answers(
            "later answers agree with each other",
            {f"later-{number}": answer for number, answer in enumerate(again)},
            {f"later-{number}": reference for number, _ in enumerate(again)},
        ),
        compare.varied({"first": reference} | result["others"]),
        agree,
    ]


if __name__ == "__main__":
    raise SystemExit(main())
