#!/usr/bin/env python3
"""Ask servers that slept, woke and got other weights: `python asleep.py --out RESULTS`, in an
unpacked bundle.

Each mode's engine goes the same way as the eager one, alone on the GPU: a nap without the KV cache
and the graphs, sleep without anything, the same and other weights from disk and from tensors, and
graphs captured anew. After each step its answers must agree with the eager engine's, and with its
own from before with the same weights; and prefills must have been replayed. A server without a
graph may pick other kernels, and a router other experts then. So the answers of a model with a
router are held against an engine that has the graph and keeps each prefill eager, within what
compare.py lets eager prefill move itself at most: no control is asked here. What the GPU
has in use is noted after each step: asleep, a graph may hold no more than --held MiB beside what an
eager server holds, and one that is captured anew may take no more than that again. --way rebind has
a loader that replaces parameters: without a recapture a graph must answer otherwise there, or the
case shows nothing. --way rounds sleeps, wakes and gets the same weights three times, with other
memory of the GPU soiled meanwhile (dirty/sitecustomize.py): each time the graphs must find what
they held, and long answers, which graphs decode, must be those from before and a new eager
engine's. --without makes a control of it, in which something must be wrong. Writes
RESULTS/asleep.json. Exit code 0: all good.
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
import settings

HERE = Path(__file__).resolve().parent
RESULT = "asleep.json"
KERNELS_S = 150
CHUNK = 4096
CAPTURE = (16, 64, 256, 1024, CHUNK)  # large enough that a graph's memory shows
LLAMA = models.LLAMA | dict(
    hidden_size=2048, intermediate_size=8192, num_attention_heads=16, num_key_value_heads=4
)
MODELS = {"llama": LLAMA} | {
    name: models.MODELS[name] for name in ("nemotron-h", "qwen3-next", "qwen3-next-triton")
}
SLEEP, REBIND, ROUNDS = "sleep", "rebind", "rounds"
NUMBERS = (1, 2, 3)  # of the rounds
DECODED = 32  # tokens of an answer in them
WITHOUT = ("back-up-captured-graphs", "copy-all-reduce-inputs")
STEPS = {
    SLEEP: (
        "start",
        "nap",
        "woken",
        "sleep",
        "wake",
        "same weights",
        "other weights",
        "same weights again",
        "other tensors",
        "captured anew",
        "captured again",
    ),
    REBIND: ("start", "other weights", "captured anew", "captured again"),
    ROUNDS: (
        "start",
        *(
            f"{step}, round {number}"
            for number in NUMBERS
            for step in ("sleep", "wake", "same weights")
        ),
    ),
}
# the first step with the weights of each step that is asked
FIRST = {
    SLEEP: dict.fromkeys(("woken", "same weights", "same weights again"), "start")
    | dict.fromkeys(("other tensors", "captured anew", "captured again"), "other weights"),
    REBIND: {"captured again": "captured anew"},
    ROUNDS: {f"same weights, round {number}": "start" for number in NUMBERS},
}
SAVER = {"SGLANG_MEMORY_SAVER_CUDA_GRAPH": "1"}
ASLEEP = ("nap", "sleep")
# Way -> a folder whose sitecustomize.py its engines run first.
BESIDE = {REBIND: (HERE / "rebind",), ROUNDS: (HERE / "dirty",)}


def main(words: Sequence[str] | None = None) -> int:
    options = _options(words)
    place = commandline.place_of(options)
    facts = machine.describe(place, options) | commandline.other_attention(options) | {"runs": []}
    for model in options.model:
        for number, folder in enumerate(folders(place, model)):
            subprocess.run(
                [place.python, __file__, "--write", model, str(number), str(folder)],
                env=place.environment(),
                check=True,
            )
    commandline.say(
        "attention kernels compiled in"
        f" {kernels.make(place, machine.visible()[0].use, KERNELS_S, options.attention):.0f} s"
    )
    for model in options.model:
        for way in options.way:
            facts["runs"].append(go(place, options, model, way))
            (place.out / RESULT).write_text(json.dumps(facts, indent=1) + "\n")
            show(facts["runs"][-1])
    good = all(check["good"] for one in facts["runs"] for check in one["checks"])
    return int(good if options.without else not good)


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commandline.add_place(parser)
    commandline.add_attention(parser, "as in run.py")
    parser.add_argument(
        "--model", nargs="+", choices=[*MODELS], default=["llama"], help="default llama"
    )
    parser.add_argument(
        "--mode",
        nargs="+",
        choices=modes.GRAPHS,
        default=[modes.BREAKABLE, modes.PIECEWISE],
        help="default: breakable piecewise; eager always runs",
    )
    parser.add_argument(
        "--way",
        nargs="+",
        choices=[*STEPS],
        default=[SLEEP, REBIND],
        help="default: sleep rebind",
    )
    parser.add_argument(
        "--tp", type=commandline.count, default=1, help="GPUs that share a model (default 1)"
    )
    parser.add_argument(
        "--without",
        choices=WITHOUT,
        default="",
        help="undo a patch of memory-saver/ in the way rounds: then a check must fail",
    )
    parser.add_argument(
        "--held",
        type=int,
        default=64,
        help=(
            "MiB that a sleeping graph may hold beside an eager server, and a recapture take"
            " (default 64)"
        ),
    )
    parser.add_argument(
        "--engine-limit",
        type=float,
        default=240,
        help="seconds that one engine may take (default 240)",
    )
    commandline.add_port_base(parser, 27000)
    return parser.parse_args(words)


def folders(place: launch.Place, model: str) -> tuple[Path, Path]:
    """Two checkpoints of one shape."""
    return (
        place.scratch / "models" / f"{model}-wide",
        place.scratch / "models" / f"{model}-wide-other",
    )


def write(model: str, seed: int, folder: Path) -> None:
    """A checkpoint whose weights `seed` settles."""
    import torch
    from safetensors.torch import save_file

    if (folder / "model.safetensors").is_file():
        return
    config = MODELS[model]
    models.write_config(folder, config)
    tensors = {
        name: models.draw(name, shape, kind, seed).to(torch.bfloat16).contiguous()
        for name, shape, kind in models.shapes(config)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def go(place: launch.Place, options: argparse.Namespace, model: str, way: str) -> dict:
    """One model's engines on one way, one after another: each has the GPU to itself, so that its
    memory is what is in use."""
    began, known = time.time(), commandline.fields(options)
    here = launch.Place((*BESIDE.get(way, ()), *place.path), place.out)
    devices = (",".join(gpu.use for gpu in machine.visible()[: options.tp]),)
    jobs, references = {}, references_of(model, options.mode, known)
    for number, mode in enumerate((modes.EAGER, *sorted(set(references.values())), *options.mode)):
        chosen = modes.flags(mode, known, list(CAPTURE), commandline.enforced(model))
        if isinstance(chosen, modes.Unavailable):
            commandline.say(f"{mode}: {chosen.reason}")
            continue
        jobs[mode] = job(place, options, model, way, mode, number)
        with mock.patch.dict(os.environ, environment(place, options, way, jobs[mode].name)):
            launch.run_all(
                here,
                [jobs[mode]],
                1,
                time.time() + options.engine_limit,
                commandline.say,
                lead=False,
                devices=devices if options.tp > 1 else ("",),
            )
    found, checks = {}, []
    for mode, one in jobs.items():
        if one.code == 0:
            found[mode] = json.loads(Path(one.plan["out"]).read_text()) | {
                "woken": woken(notes(place, one.name))
            }
        else:
            why = (
                f"{one.why}:"
                f" {judging.error((place.out / f'{one.name}.log').read_text(errors='replace'))}"
            )
            checks.append(compare.Verdict(f"{mode}: the engine answered", False, why))
    if modes.EAGER in found:
        for mode in found.keys() - {modes.EAGER, *modes.REFERENCES}:
            reference = found.get(references.get(mode, ""))
            if reference or mode not in references:
                checks += judged(
                    way, mode, found[mode], found[modes.EAGER], options.held, reference
                )
                if way == ROUNDS:
                    checks.append(kept(mode, found[mode]["woken"], options.tp))
    memory = {
        mode: {step: done["used_mib"] for step, done in one["steps"].items()}
        for mode, one in found.items()
    }
    return {
        "model": model,
        "way": way,
        "seconds": round(time.time() - began),
        "memory_mib": memory,
        "checks": [check.as_json() for check in checks],
    }


def notes(place: launch.Place, name: str) -> Path:
    """Where dirty/sitecustomize.py writes of an engine's graphs."""
    return place.out / f"{name}.notes"


def woken(file: Path) -> list[dict]:
    """bytes of a rank's graphs, and changed, how many of these are not as they were, at each
    wake."""
    lines = file.read_text().splitlines() if file.is_file() else []
    return [json.loads(line) for line in lines]


def kept(mode: str, found: Sequence[dict], ranks: int) -> compare.Verdict:
    """Whether each wake of each rank gave the graphs' memory back as it was."""
    changed = sum(one["changed"] for one in found)
    held = min((one["bytes"] for one in found), default=0)
    good = len(found) == ranks * len(NUMBERS) and held > 0 and not changed
    said = f"{changed >> 20} MiB changed in {len(found)} wakes of at least {held >> 20} MiB"
    return compare.Verdict(f"{mode}: graphs found what they held", good, said)


def environment(
    place: launch.Place, options: argparse.Namespace, way: str, name: str
) -> dict[str, str]:
    """What an engine's environment has on a way beside what all have."""
    if way != ROUNDS:
        return SAVER if way == SLEEP else {}
    file = notes(place, name)
    file.unlink(missing_ok=True)
    return SAVER | {"SLEEP_NOTES": str(file), "SLEEP_WITHOUT": options.without}


def references_of(model: str, asked: Sequence[str], known: set[str]) -> dict[str, str]:
    """The mode that the answers of each mode are held against, where it is not the eager server."""
    if not models.has_router(MODELS[model]):
        return {}
    return {mode: modes.reference(mode, known) for mode in asked}


def job(
    place: launch.Place, options: argparse.Namespace, model: str, way: str, mode: str, number: int
) -> launch.Job:
    name = f"asleep.{model}.{way}.{mode}"
    same, other = folders(place, model)
    own = models.engine(model) if model in models.MODELS else {}
    ranks = {"tp_size": options.tp} | settings.TENSOR_PARALLEL if options.tp > 1 else {}
    plan = {
        "model": str(same),
        "other": str(other),
        "mode": mode,
        "keep_eager": mode in modes.REFERENCES,
        "enforce": commandline.enforced(model),
        "port": options.port_base + commandline.PORTS * number,
        "out": str(place.out / f"{name}.json"),
        "watch": str(place.out / f"{name}.watch"),
        "capture": list(CAPTURE),
        "steps": list(STEPS[way] if mode in modes.GRAPHS or way != ROUNDS else ["start"]),
        "engine": words(way) | {"attention_backend": options.attention} | own | ranks,
        "new_tokens": DECODED if way == ROUNDS else None,
    }
    return launch.Job(name, HERE / "asleep_engine.py", plan, options.engine_limit)


def words(way: str) -> dict:
    """sglang.Engine's words on top of those for all engines."""
    return dict(chunked_prefill_size=CHUNK, enable_memory_saver=way != REBIND)


def judged(
    way: str,
    mode: str,
    mine: dict,
    eager: dict,
    held: int,
    reference: dict | None = None,
) -> list[compare.Verdict]:
    """A mode's engine held against the eager one's, step by step, and against itself. reference:
    whose answers count, where they are not the eager one's: those of a model with a router."""
    found, right = [], reference or eager
    limits = replace(compare.ROUTED, why="a router, no control") if reference else compare.STRICT
    for step, done in mine["steps"].items():
        if "answers" not in done:
            continue
        # parameters were replaced, and nothing was captured anew
        stale = way == REBIND and step == "other weights"
        answers = compare.same_answers(
            f"{mode}, {step}: agrees with eager prefill",
            done["answers"],
            right["steps"].get(step, right["steps"]["start"])["answers"],
            limits,
        )
        found.append(otherwise(answers) if stale else answers)
        found.append(replayed(f"{mode}, {step}: prefills were replayed", mine["prefills"], done))
        first = FIRST[way].get(step)
        if first:
            before = mine["steps"][first]["answers"]
            what = f"{mode}, {step}: answers as after {first!r}"
            found.append(compare.same_answers(what, done["answers"], before))
    used, bare = (
        {step: done["used_mib"] for step, done in one["steps"].items()} for one in (mine, eager)
    )
    for step in ASLEEP if way == SLEEP else ():
        more = used[step] - bare[step]
        what = f"{mode}, {step}: the graph's memory was given up"
        found.append(
            compare.Verdict(
                what,
                more <= held,
                f"{used[step]} MiB in use, an eager server {bare[step]}: {more} more; {held} are"
                " allowed",
            )
        )
    if "captured again" not in used:
        return found
    grown, usual = (one["captured again"] - one["captured anew"] for one in (used, bare))
    found.append(
        compare.Verdict(
            f"{mode}: a recapture keeps no old graph",
            grown - usual <= held,
            f"{grown} MiB more than before, an eager server {usual}; {held} more are allowed",
        )
    )
    return found


def otherwise(answers: compare.Verdict) -> compare.Verdict:
    """A case in which the old graph must show."""
    what = answers.what.replace(
        "agrees with", "a graph that was not captured anew answers otherwise than"
    )
    return compare.Verdict(what, not answers.good, answers.why, answers.numbers)


def replayed(what: str, prefills: Sequence[dict], done: dict) -> compare.Verdict:
    """Whether graphs ran each prefill that fits one, from the step's first question to its last
    answer."""
    within = [line for line in prefills if done["asked"] <= line["at"] <= done["answered"]]
    fit = [line for line in compare.fitting(prefills, CAPTURE) if line in within]
    count = sum(line["launches"] > 0 for line in fit)
    said = f"{count} of {len(fit)} that fit a graph, {len(within)} in all"
    return compare.Verdict(what, 0 < count == len(fit), said)


def show(one: dict) -> None:
    print(f"{one['model']}, {one['way']}: {one['seconds']} s")
    for mode, used in one["memory_mib"].items():
        print(f"  {mode}: " + ", ".join(f"{step} {mib} MiB" for step, mib in used.items()))
    for check in one["checks"]:
        print(f"  {'ok  ' if check['good'] else 'FAIL'} {check['what']}: {check['why']}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    else:
        raise SystemExit(main())
