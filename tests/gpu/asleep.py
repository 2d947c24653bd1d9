"""Servers that slept, woke and got other weights.

Each mode's engine goes the same way as the eager one, alone on the GPU: a nap without the KV cache
and the graphs, sleep without anything, the same and other weights from disk and from tensors, and
graphs captured anew. After each step its answers must agree with the eager engine's, and with its
own from before with the same weights; and prefills must have been replayed. A server without a
graph may pick other kernels, and a router other experts then. So the answers of a model with a
router are held against an engine that has the graph and keeps each prefill eager, within what
compare.py lets eager prefill move itself at most: no control is asked here. What the GPU
has in use is noted after each step: asleep, a graph may hold no more than --held MiB beside what an
eager server holds, and one that is captured anew may take no more than that again. On the way
rebind a loader replaces parameters: without a recapture a graph must answer otherwise there, or the
case shows nothing. The way rounds sleeps, wakes and gets the same weights three times, with other
memory of the GPU soiled meanwhile (dirty/sitecustomize.py): each time the graphs must find what
they held, and long answers, which graphs decode, must be those from before and a new eager
engine's. --without makes a control of it, in which something must be wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import commandline
import compare
import judging
import launch
import models
import modes
import settings
from experiment import (
    HERE,
    Experiment,
    Plan,
    Session,
    Stage,
    answer_of,
    base_plan,
    engine_words,
    judged,
    log_of,
)

CHUNK = 4096
CAPTURE = (16, 64, 256, 1024, CHUNK)  # large enough that a graph's memory shows
# wide, so that a graph's memory shows
MODELS = models.MODELS | {"llama": models.OTHERS["llama-wide"]}
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


HELD_MIB = 64  # that a sleeping graph may hold beside an eager server


def row(way: str, what: str, checked: str) -> Experiment:
    """A row of the table."""
    return Experiment(
        name=way,
        what=what,
        models=("llama",),
        passes=STEPS[way],
        checked=checked,
        port=27000,
        plan=plan,
        judge=judge,
        prepare=write_models,
        modes=(modes.BREAKABLE, modes.PIECEWISE),
        takes=("model", "mode", "tp", *(["held"] if way != ROUNDS else [])),
        controls=WITHOUT if way == ROUNDS else (),
        engine_limit=240,
    )


def plan(session: Session, row: Experiment, asked: Sequence[str]) -> Plan:
    """Engines one after another: each has the GPU to itself, so that its memory is what is in
    use."""
    place = launch.Place((*BESIDE.get(row.name, ()), *session.place.path), session.place.out)
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
            stages.append(Stage([one], place, environment(session, row.name, one.name), lead=False))
    return Plan(stages)


def write_models(session: Session, made: Plan) -> None:
    """Two checkpoints of each model."""
    for model in dict.fromkeys(job.plan["of"] for job in made.jobs):
        for number, folder in enumerate(folders(session.place, model)):
            words = [session.place.python, str(HERE / "asleep.py"), model, str(number), str(folder)]
            subprocess.run(words, env=session.place.environment(), check=True)


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


def judge(session: Session, row: Experiment, made: Plan) -> dict:
    """The engines of each model, compared. In a control something must be wrong."""
    runs = []
    for model in dict.fromkeys(job.plan["of"] for job in made.jobs):
        jobs = {job.plan["mode"]: job for job in made.jobs if job.plan["of"] == model}
        found = {
            mode: answer_of(one) | {"woken": woken(notes(session.place, one.name))}
            for mode, one in jobs.items()
            if one.code == 0
        }
        checks = [
            compare.Verdict(
                f"{mode}: the engine answered",
                False,
                f"{one.why}: {judging.error(log_of(session, one))}",
            )
            for mode, one in jobs.items()
            if one.code != 0
        ]
        run = judged(
            row, model, [*jobs.values()], checks + _held_against(session, model, row, found)
        )
        if session.options.without:
            run["verdict"] = "passed" if run["verdict"] == "failed" else "failed"
        run["memory_mib"] = {
            mode: {step: done["used_mib"] for step, done in one["steps"].items()}
            for mode, one in found.items()
        }
        run["notes"] = [
            f"{mode}: " + ", ".join(f"{step} {mib} MiB" for step, mib in used.items())
            for mode, used in run["memory_mib"].items()
        ]
        runs.append(run)
    return {"runs": runs}


def _held_against(
    session: Session, model: str, row: Experiment, found: dict[str, dict]
) -> list[compare.Verdict]:
    """Each graph's engine against the one that its answers count beside."""
    if modes.EAGER not in found:
        return []
    references = references_of(model, session.modes(row), session.known)
    held, checks = session.options.held or HELD_MIB, []
    for mode in found.keys() - {modes.EAGER, *modes.REFERENCES}:
        reference = found.get(references.get(mode, ""))
        if reference or mode not in references:
            checks += compared(row.name, mode, found[mode], found[modes.EAGER], held, reference)
            if row.name == ROUNDS:
                checks.append(kept(mode, found[mode]["woken"], session.options.tp or 1))
    return checks


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


def environment(session: Session, way: str, name: str) -> dict[str, str]:
    """What an engine's environment has on a way beside what all have."""
    if way != ROUNDS:
        return SAVER if way == SLEEP else {}
    file = notes(session.place, name)
    file.unlink(missing_ok=True)
    return SAVER | {"SLEEP_NOTES": str(file), "SLEEP_WITHOUT": session.options.without}


def references_of(model: str, asked: Sequence[str], known: set[str]) -> dict[str, str]:
    """The mode that the answers of each mode are held against, where it is not the eager server."""
    if not models.has_router(MODELS[model]):
        return {}
    return {mode: modes.reference(mode, known) for mode in asked}


def job(session: Session, row: Experiment, model: str, mode: str) -> launch.Job:
    way, tp = row.name, session.options.tp or 1
    name = f"asleep.{model}.{way}.{mode}"
    same, other = folders(session.place, model)
    ranks = {"tp_size": tp} | settings.TENSOR_PARALLEL if tp > 1 else {}
    made = base_plan(session, name, model) | {
        "model": str(same),
        "other": str(other),
        "mode": mode,
        "gpus": tp,
        "keep_eager": mode in modes.REFERENCES,
        "enforce": commandline.enforced(model),
        "capture": list(CAPTURE),
        "steps": list(STEPS[way] if mode in modes.GRAPHS or way != ROUNDS else ["start"]),
        "engine": words(way) | engine_words(session, model) | ranks,
        "new_tokens": DECODED if way == ROUNDS else None,
    }
    return launch.Job(name, HERE / "asleep_engine.py", made, session.engine_limit(row))


def words(way: str) -> dict:
    """sglang.Engine's words on top of those for all engines."""
    return dict(chunked_prefill_size=CHUNK, enable_memory_saver=way != REBIND)


def compared(
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


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
