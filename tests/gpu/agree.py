#!/usr/bin/env python3
"""Hold the patched release's answers against the untouched one's: `python agree.py --out RESULTS`.

Small models with real random weights answer the prompts of cases.py, eagerly, in four engines: one
of the untouched tree, one of the patched tree that is told to take the release's own scan, and two
of the patched tree as it is. These two must agree with the others within the limits of compare.py,
and with each other bit for bit. Writes RESULTS/agree.json. Exit code 0: all agree.

A release that leaves wrong states in the prefix cache (docs/proof.md) can be held against its own
scan in the patched tree alone: --against release-scan.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
import commandline
import compare
import judging
import kernels
import launch
import machine
import models
import modes

HERE = Path(__file__).resolve().parent
RESULT = "agree.json"
KERNELS_S = 150  # longest wait for the attention kernels that all engines load
UNTOUCHED, RELEASE_SCAN, PATCHED, AGAIN = "untouched", "release-scan", "patched", "patched-again"
# Mean difference of log-probabilities of a dense NemotronH. Untouched kernels round elsewhere: each
# tree is as far from the model in float64 as rounding takes it, and the two may be as far from each
# other as two such distances. That is 1.5 times one, which was 0.0198 (docs/evidence).
ROUNDED = 0.0297
SWITCH = {"SGLANG_MAMBA2_SCAN": "release"}  # kernels/mamba2_scan.py of the overlay


def main(words: Sequence[str] | None = None) -> int:
    options = _options(words)
    place = commandline.place_of(options)
    of_release = commandline.untouched_place(place, options)
    facts = machine.describe(place, options) | commandline.other_attention(options) | {"runs": []}
    subprocess.run(
        [place.python, str(HERE / "models.py"), str(place.scratch / "models"), *options.model],
        env=place.environment(),
        check=True,
    )
    commandline.say(
        "attention kernels compiled in"
        f" {kernels.make(place, machine.visible()[0].use, KERNELS_S, options.attention):.0f} s"
    )
    for model in options.model:
        facts["runs"].append(agree(place, of_release, options, model))
        (place.out / RESULT).write_text(json.dumps(facts, indent=1) + "\n")
        show(facts["runs"][-1])
    return 0 if all(check["good"] for one in facts["runs"] for check in one["checks"]) else 1


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commandline.add_place(parser)
    commandline.add_untouched(parser)
    parser.add_argument(
        "--against",
        nargs="+",
        choices=(UNTOUCHED, RELEASE_SCAN),
        default=[UNTOUCHED, RELEASE_SCAN],
        help="default: both",
    )
    parser.add_argument(
        "--model",
        nargs="+",
        choices=[*models.MODELS],
        default=["nemotron-h"],
        help="default nemotron-h",
    )
    parser.add_argument(
        "--engine-limit",
        type=float,
        default=300,
        help="seconds that one engine may take (default 300)",
    )
    commandline.add_attention(parser, "as in run.py")
    commandline.add_port_base(parser, 26000)
    return parser.parse_args(words)


def agree(
    place: launch.Place, of_release: launch.Place, options: argparse.Namespace, model: str
) -> dict:
    """What the engines of one model answer, compared. The first one compiles what others reuse."""
    began = time.time()
    jobs = {
        name: _job(place, options, model, name, number)
        for number, name in enumerate((*options.against, PATCHED, AGAIN))
    }
    deadline = began + len(jobs) * options.engine_limit
    for name in options.against:
        here = of_release if name == UNTOUCHED else place
        with mock.patch.dict(os.environ, SWITCH if name == RELEASE_SCAN else {}):
            launch.run_all(here, [jobs[name]], 1, deadline, commandline.say)
    launch.run_all(place, [jobs[PATCHED], jobs[AGAIN]], 2, deadline, commandline.say, lead=False)
    if dead := [job for job in jobs.values() if job.code != 0]:
        why = "; ".join(
            f"{job.name}: {job.why}"
            f" {judging.error((place.out / f'{job.name}.log').read_text(errors='replace'))}"
            for job in dead
        )
        checks = [compare.Verdict("every engine answered", False, why)]
    else:
        answers = {
            name: json.loads(Path(job.plan["out"]).read_text())["passes"]
            for name, job in jobs.items()
        }
        checks = compared(model, answers)
    return {
        "model": model,
        "seconds": round(time.time() - began),
        "checks": [check.as_json() for check in checks],
    }


def _job(
    place: launch.Place, options: argparse.Namespace, model: str, name: str, number: int
) -> launch.Job:
    out = place.out / f"agree.{model}.{name}"
    plan = {
        "model": str(place.scratch / "models" / model),
        "mode": modes.EAGER,
        "port": options.port_base + commandline.PORTS * number,
        "out": f"{out}.json",
        "watch": f"{out}.watch",
        "enforce": False,
        "keep_eager": False,
        "breakable": True,
        "engine": {"attention_backend": options.attention} | models.engine(model),
    }
    return launch.Job(f"agree.{model}.{name}", HERE / "engine.py", plan, options.engine_limit)


def compared(model: str, answers: dict[str, dict]) -> list[compare.Verdict]:
    """The patched passes against every reference's, and against the other patched engine's."""
    found = [
        compare.same_answers(
            f"agrees with {name}, {part}", answers[PATCHED][part], kept, limits(model, name)
        )
        for name in answers
        if name not in (PATCHED, AGAIN)
        for part, kept in answers[name].items()
    ]
    return [*found, same_bits(answers[PATCHED], answers[AGAIN])]


def limits(model: str, reference: str) -> compare.Limits:
    """What the patched tree's answers may differ by from a reference's."""
    config = models.MODELS[model]
    found = compare.without(models.has_router(config))
    dense = config["model_type"] == "nemotron_h" and not models.has_router(config)
    if reference != UNTOUCHED or not dense:
        return found
    why = f"{found.why}; {ROUNDED} in the mean, as far as rounding takes two kernels"
    return replace(found, mean=ROUNDED, why=why)


def same_bits(left: dict, right: dict) -> compare.Verdict:
    """Whether two engines gave the same tokens and log-probabilities in calls of one prompt."""
    what, single = "two engines of the patched tree give the same bits", 0
    for name, calls in right.items():
        for call, got in calls.items():
            if len(got["answers"]) > 1:
                continue  # which requests meet in a forward is not the same every time
            single += 1
            mine, other = left[name][call]["answers"][0], got["answers"][0]
            if (mine["tokens"], mine["logprobs"]) != (other["tokens"], other["logprobs"]):
                return compare.Verdict(what, False, f"{name}, {call} differs")
    return compare.Verdict(what, True, f"{single} calls of one prompt")


def show(one: dict) -> None:
    print(f"{one['model']}: {one['seconds']} s")
    for check in one["checks"]:
        print(f"  {'ok  ' if check['good'] else 'FAIL'} {check['what']}: {check['why']}")


if __name__ == "__main__":
    raise SystemExit(main())
