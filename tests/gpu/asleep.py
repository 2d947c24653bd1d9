"""Servers that slept, woke and got other weights.

Each mode's engine goes through STEPS as the eager one does, alone on the GPU. After each step its
answers must agree with the eager engine's, and with its own from before with the same weights; and
prefills must have been replayed. A server without a graph may pick other kernels, and a router
other experts then. So the answers of a model with a router are held against an engine that has the
graph and keeps each prefill eager, within compare.ROUTED: no control is asked here. Asleep, a graph
may hold no more than HELD_MIB beside what an eager server holds, and one that is captured anew may
take no more than that again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cases
import commandline
import compare
import experiment
import graphs
import judging
import launch
import machine
import models
import modes
import settings
from experiment import Experiment, Plan, Session, engine_job, engine_words, judged_run, unanswered

CHUNK = 4096
CAPTURE = (16, 64, 256, 1024, CHUNK)  # large enough that a graph's memory shows
WIDE = {"llama": "llama-wide"}  # so that a graph's memory shows
KINDS = ("single", "batch", "chunked")  # of the calls after a step; the cache is empty then
NAP = ("kv_cache", "cuda_graph")  # what a nap gives up: the weights stay
ROUND = ("sleep", "wake", "same weights")  # as a trainer's step has them
ROUNDS = [f"{step}{again}" for again in ("", " 2", " 3") for step in ROUND]
STEPS = (
    *("start", "nap", "woken", *ROUNDS, "other weights", "same weights again"),
    *("other tensors", "captured anew", "captured again"),
)
# the first step with the weights of each step that is asked
FIRST = dict.fromkeys(("woken", *ROUNDS, "same weights again"), "start") | dict.fromkeys(
    ("other tensors", "captured anew", "captured again"), "other weights"
)
SAVER = {"SGLANG_MEMORY_SAVER_CUDA_GRAPH": "1"}
WORDS = dict(chunked_prefill_size=CHUNK, enable_memory_saver=True)  # sglang.Engine's
ASLEEP = ("nap", *ROUNDS[::3])
HELD_MIB = 64  # that a sleeping graph may hold beside an eager server, and a recapture take


def plan(session: Session, row: Experiment, asked: Sequence[str]) -> Plan:
    """Engines one after another: each has the GPU to itself, so that its memory is what is in
    use."""
    stages, known = [], session.known
    for model in asked:
        tried = session.modes(row)
        references = sorted(set(references_of(model, tried, known).values()))
        for mode in (modes.EAGER, *references, *tried):
            chosen = modes.flags(mode, known, list(CAPTURE), commandline.enforced(model))
            if isinstance(chosen, modes.Unavailable):
                commandline.say(f"{mode}: {chosen.reason}")
                continue
            one = job(session, row, model, mode)
            one.environment = SAVER
            stages.append([one])
    return Plan(stages)


def write_models(session: Session, made: Plan) -> None:
    """Two checkpoints of each model."""
    wanted = {
        folder.name: (WIDE.get(model, model), seed)
        for model in made.models
        for seed, folder in enumerate(folders(session.place, model))
    }
    experiment.make_models(session.place, wanted)


def folders(place: launch.Place, model: str) -> tuple[Path, Path]:
    """Two checkpoints of one shape."""
    made = place.scratch / "models"
    return made / f"{model}-wide", made / f"{model}-wide-other"


def judge(session: Session, row: Experiment, made: Plan) -> dict:
    """The engines of each model: each graph's against the one that its answers count beside."""
    runs = []
    for model in made.models:
        jobs = made.of_model(model)
        found = {one.plan["mode"]: judging.answers(one) for one in jobs if one.code == 0}
        references = references_of(model, session.modes(row), session.known)
        checks = unanswered(session, jobs)
        for mode in found.keys() - {modes.EAGER, *modes.REFERENCES}:
            right = found.get(references.get(mode, modes.EAGER))
            if modes.EAGER in found and right:
                routed = right if mode in references else None
                checks += compared(mode, found[mode], found[modes.EAGER], HELD_MIB, routed)
        run = judged_run(row, model, jobs, checks)
        run["notes"] = [
            f"{mode}: " + ", ".join(f"{step} {mib} MiB" for step, mib in used_mib(one).items())
            for mode, one in found.items()
        ]
        runs.append(run)
    return {"runs": runs}


def references_of(model: str, asked: Sequence[str], known: set[str]) -> dict[str, str]:
    """The mode that the answers of each mode are held against, where it is not the eager server."""
    if not models.has_router(models.MODELS[model]):
        return {}
    return {mode: modes.reference(mode, known) for mode in asked}


def job(session: Session, row: Experiment, model: str, mode: str) -> launch.Job:
    tp = session.options.tp or 1
    same, other = folders(session.place, model)
    ranks = {"tp_size": tp} | settings.TENSOR_PARALLEL if tp > 1 else {}
    more = {
        "question": "asleep",
        "model": str(same),
        "other": str(other),
        "gpus": tp,
        "keep_eager": mode in modes.REFERENCES,
        "enforce": commandline.enforced(model),
        "capture": list(CAPTURE),
        "steps": list(STEPS),
        "engine": WORDS | engine_words(session, model) | ranks,
    }
    return engine_job(session, row, f"asleep.{model}.{mode}", model, mode, **more)


def used_mib(result: dict) -> dict[str, int]:
    """What the GPU had in use after each step of an engine, in MiB."""
    return {step: done["used_mib"] for step, done in result["steps"].items()}


def compared(
    mode: str, mine: dict, eager: dict, held: int, reference: dict | None = None
) -> list[compare.Verdict]:
    """A mode's engine held against the eager one's, step by step, and against itself. reference:
    whose answers count, where they are not the eager one's: those of a model with a router."""
    found, right = [], reference or eager
    limits = replace(compare.ROUTED, why="a router, no control") if reference else compare.STRICT
    for step, done in mine["steps"].items():
        if "answers" not in done:
            continue
        answers, what = done["answers"], f"{mode}, {step}: "
        expected, span = right["steps"][step]["answers"], (done["asked"], done["answered"])
        agrees, replayed = f"{what}agrees with eager prefill", f"{what}prefills were replayed"
        found.append(compare.same_answers(agrees, answers, expected, limits))
        found.append(graphs.replayed(replayed, mine["prefills"], CAPTURE, [span]))
        if first := FIRST.get(step):
            before = mine["steps"][first]["answers"]
            found.append(compare.same_answers(f"{what}answers as after {first!r}", answers, before))
    return found + kept_memory(mode, used_mib(mine), used_mib(eager), held)


def kept_memory(mode: str, used: dict, bare: dict, held: int) -> list[compare.Verdict]:
    """Whether a sleeping graph holds at most `held` MiB beside what an eager server has in use, and
    a recapture takes no more than that again."""
    found = []
    for step in ASLEEP:
        more = used[step] - bare[step]
        why = f"{used[step]} MiB in use, an eager server {bare[step]}: {more} more;"
        why += f" {held} are allowed"
        what = f"{mode}, {step}: the graph's memory was given up"
        found.append(compare.Verdict(what, more <= held, why))
    grown, usual = (one["captured again"] - one["captured anew"] for one in (used, bare))
    why = f"{grown} MiB more than before, an eager server {usual}; {held} more are allowed"
    what = f"{mode}: a recapture keeps no old graph"
    return [*found, compare.Verdict(what, grown - usual <= held, why)]


# What follows runs in the engine's own process.


def calls() -> list[cases.Call]:
    return [call for call in cases.calls() if call.kind in KINDS]


def release(engine, **parts) -> None:
    """Give memory up. The step behind the last answer may still be under way, and a scheduler that
    is asked meanwhile ends: emptying its cache waits for that step."""
    import engine as engines

    engines.flush(engine)
    engine.release_memory_occupation(**parts)


def update(engine, folder: str, recapture: bool = False) -> None:
    """Weights from disk. Raises RuntimeError where the release says that it failed."""
    from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

    asked = UpdateWeightFromDiskReqInput(model_path=folder, recapture_cuda_graph=recapture)
    updating = engine.tokenizer_manager.update_weights_from_disk(asked, None)
    _check(engine.loop.run_until_complete(updating))


def update_from_tensors(engine, folder: str) -> None:
    """From tensors of this process, as a trainer beside the engine has them. Raises as `update`."""
    import torch
    from safetensors.torch import load_file

    tensors = load_file(Path(folder) / "model.safetensors", device="cuda:0")
    sessions = hasattr(engine, "begin_weight_update")  # 0.5.23 takes tensors within one alone
    if sessions:
        _check(engine.begin_weight_update())
    _check(engine.update_weights_from_tensor(list(tensors.items())))
    if sessions:
        _check(engine.end_weight_update())
    del tensors
    torch.cuda.empty_cache()


def _check(said: object) -> None:
    success, message = said[:2] if isinstance(said, tuple) else (said.success, said.message)
    if not success:
        raise RuntimeError(message)


# By a step's name: what is done, given the engine and its plan. Answers are asked for
# behind all but those that leave the weights asleep.
ACTIONS: dict[str, Callable[[Any, dict], None]] = {
    "start": lambda engine, plan: None,
    "nap": lambda engine, plan: release(engine, tags=[*NAP]),
    "woken": lambda engine, plan: engine.resume_memory_occupation(tags=[*NAP]),
    "sleep": lambda engine, plan: release(engine),
    "wake": lambda engine, plan: engine.resume_memory_occupation(),
    "same weights": lambda engine, plan: update(engine, plan["model"]),
    "other weights": lambda engine, plan: update(engine, plan["other"]),
    "other tensors": lambda engine, plan: update_from_tensors(engine, plan["other"]),
    "captured anew": lambda engine, plan: update(engine, plan["other"], recapture=True),
    "captured again": lambda engine, plan: update(engine, plan["other"], recapture=True),
}
UNASKED = (*ASLEEP, *ROUNDS[1::3])


def action(step: str) -> str:
    """The name in ACTIONS: a later time has a word behind it."""
    return step if step in ACTIONS else step.rpartition(" ")[0]


def asked(engine: Any, plan: dict) -> dict:
    """The answers behind each step that has some, and what the whole GPU had in use, in MiB."""
    import engine as engines

    steps: dict[str, dict] = {}
    for name in plan["steps"]:
        began = time.time()
        ACTIONS[action(name)](engine, plan)
        seconds, used = round(time.time() - began, 2), machine.used_mib()
        done = {"seconds": seconds, "used_mib": used, "asked": time.time()}
        if name not in UNASKED:
            if steps:  # a new engine's cache is empty
                engines.flush(engine)
            done["answers"] = {call.name: engines.ask(engine, call) for call in calls()}
        steps[name] = done | {"answered": time.time()}
        print(f"{launch.MARK}{name}: {seconds} s, {used} MiB in use", flush=True)
    return {"steps": steps}
