"""What scripts share that ask one engine, judge its answers and write what they found."""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import commandline
import compare
import judging
import kernels
import launch
import machine
import models
import modes
import settings

HERE = Path(__file__).resolve().parent
KERNELS_S = 150  # longest wait for FlashInfer's kernels


@dataclass(frozen=True)
class Question:
    """What an engine is asked, and how it is started.

    name: of its files and, behind "_engine.py", of the script that asks; model: of models.MODELS;
    words: sglang.Engine's on top of those for all; port: the first, by default; judged: the checks
    of what that script wrote, with `captured` as judging.captures reads it from the log, and
    whether the engine was a control.
    """

    name: str
    model: str
    words: dict
    port: int
    judged: Callable[[dict, bool], list[compare.Verdict]]


def main(question: Question, about: str, words: Sequence[str] | None = None) -> int:
    """Run a script. about: its docstring. Writes RESULTS/NAME.json, prints a line for each check,
    and returns the exit code: 0 where all are good."""
    options = _options(question, about, words)
    place = commandline.place_of(options)
    facts = machine.describe(place, options) | commandline.other_attention(options)
    facts |= {"without": options.without}
    if options.without:
        place = commandline.untouched_place(place, options)
    began = time.time()
    checks = asked(question, place, options)
    facts |= {
        "seconds": round(time.time() - began),
        "checks": [check.as_json() for check in checks],
    }
    (place.out / f"{question.name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    for check in checks:
        print(f"{'ok  ' if check.good else 'FAIL'} {check.what}: {check.why}")
    return 0 if all(check.good for check in checks) else 1


def _options(
    question: Question, about: str, words: Sequence[str] | None = None
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commandline.add_place(parser)
    parser.add_argument(
        "--without", choices=[settings.QUEUE], default="", help="a control: leave this out"
    )
    commandline.add_untouched(parser)
    commandline.add_attention(parser, "as in run.py")
    parser.add_argument(
        "--engine-limit",
        type=float,
        default=200,
        help="seconds that the engine may take (default 200)",
    )
    commandline.add_port_base(parser, question.port)
    return parser.parse_args(words)


def asked(
    question: Question, place: launch.Place, options: argparse.Namespace
) -> list[compare.Verdict]:
    """Write the model, start the engine, and judge what it answered; or one bad check that says why
    it did not."""
    subprocess.run(
        [place.python, str(HERE / "models.py"), str(place.scratch / "models"), question.model],
        env=place.environment(),
        check=True,
    )
    one = job(question, place, options)
    if one.plan["engine"]["attention_backend"] == kernels.FLASHINFER:
        kernels.make(place, machine.visible()[0].use, KERNELS_S)
    deadline = time.time() + options.engine_limit
    launch.run_all(place, [one], 1, deadline, commandline.say, lead=False)
    file = place.out / f"{one.name}.log"
    log = file.read_text(errors="replace") if file.is_file() else ""
    if one.code != 0:
        return [compare.Verdict("the engine answered", False, f"{one.why} {judging.error(log)}")]
    result = json.loads(Path(one.plan["out"]).read_text())
    captured = [asdict(found) for found in judging.captures(log)]
    return question.judged(result | {"captured": captured}, bool(options.without))


def job(question: Question, place: launch.Place, options: argparse.Namespace) -> launch.Job:
    """Prefills are eager: graphs for decoding alone are captured."""
    name = f"{question.name.replace('_', '-')}.{options.without or 'patched'}"
    plan = {
        "model": str(place.scratch / "models" / question.model),
        "mode": modes.EAGER,
        "port": options.port_base,
        "out": str(place.out / f"{name}.json"),
        "watch": str(place.out / f"{name}.watch"),
        "engine": {"attention_backend": options.attention}
        | models.engine(question.model)
        | question.words,
    }
    return launch.Job(name, HERE / f"{question.name}_engine.py", plan, options.engine_limit)
