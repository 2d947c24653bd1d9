"""The patched release's answers against the untouched one's.

Four engines answer the prompts of cases.py eagerly: one of the untouched tree, one of the patched
tree that is told to take the release's own scan, and two of the patched tree as it is. These two
must agree with the others within the limits of compare.py, and with each other bit for bit. A
release that leaves wrong states in the prefix cache (docs/proof.md) can be held against its own
scan in the patched tree alone: --against release-scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import compare
import judging
import launch
import models
import modes
from experiment import Experiment, Plan, Session, engine_job, judged_run, unanswered

UNTOUCHED, RELEASE_SCAN, PATCHED, AGAIN = "untouched", "release-scan", "patched", "patched-again"
AGAINST = (UNTOUCHED, RELEASE_SCAN)
# Mean difference of log-probabilities of a dense NemotronH. Untouched kernels round elsewhere: each
# tree is as far from the model in float64 as rounding takes it, and the two may be as far from each
# other as two such distances. That is 1.5 times one, which was 0.0198 (docs/evidence).
ROUNDED = 0.0297
SWITCH = {"SGLANG_MAMBA2_SCAN": "release"}  # kernels/mamba2_scan.py of the overlay


def plan(session: Session, row: Experiment, asked: Sequence[str]) -> Plan:
    """One engine after another, and both of the patched tree as it is at once. The first one
    compiles what others reuse."""
    stages = []
    for model in asked:
        for name in session.options.against or AGAINST:
            one = _job(session, row, model, name)
            one.place = session.untouched if name == UNTOUCHED else None
            one.environment = SWITCH if name == RELEASE_SCAN else {}
            stages.append([one])
        stages.append([_job(session, row, model, name) for name in (PATCHED, AGAIN)])
    return Plan(stages)


def _job(session: Session, row: Experiment, model: str, name: str) -> launch.Job:
    words = {"tree": name, "enforce": False, "breakable": True}
    return engine_job(session, row, f"agree.{model}.{name}", model, modes.EAGER, **words)


def judge(session: Session, row: Experiment, made: Plan) -> dict:
    """The engines of each model, compared."""
    runs = []
    for model in made.models:
        jobs = made.of_model(model)
        checks = unanswered(session, jobs)
        if not checks:
            answers = {job.plan["tree"]: judging.answers(job)["passes"] for job in jobs}
            checks = compared(model, answers)
        runs.append(judged_run(row, model, jobs, checks))
    return {"runs": runs}


def compared(model: str, answers: dict[str, dict]) -> list[compare.Verdict]:
    """The patched passes against every reference's, and against the other patched engine's."""
    found, mine = [], answers[PATCHED]
    for name in (name for name in answers if name not in (PATCHED, AGAIN)):
        for part, kept in answers[name].items():
            what = f"agrees with {name}, {part}"
            found.append(compare.same_answers(what, mine[part], kept, limits(model, name)))
    return [*found, same_bits(mine, answers[AGAIN])]


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
