"""Every model in every graph mode against eager prefill: what the support matrix is made of."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import commandline
import judging
import launch
import models
import modes
from experiment import Experiment, Plan, Session, engine_job, engine_words

RESULT = "evidence.json"
NOTHING_LEFT = "no model is left: nothing would be proven"


def plan(session: Session, row: Experiment, asked: Sequence[str]) -> Plan:
    """Every model's references first; engines of one model apart, so that equal kernels are
    compiled once."""
    kept = list(asked)
    for why, without in left_out(session.options, kept, session.facts["patches"]).items():
        commandline.say(f"left out, because {why}: {' '.join(without)}")
        kept = [model for model in kept if model not in without]
    if not kept:
        raise SystemExit(NOTHING_LEFT)
    chosen = wanted(kept, session.modes(row), session.known)
    return Plan([[job(session, row, model, mode) for model, mode in chosen]])


def left_out(
    options: argparse.Namespace, asked: Sequence[str], patches: Sequence[dict]
) -> dict[str, list[str]]:
    """Why this tree cannot run models that were asked for, and which; nothing where it can."""
    configs, found = {name: models.MODELS[name] for name in sorted(asked)}, {}
    sparse = [name for name, config in configs.items() if models.is_sparse(config)]
    if sparse and not commandline.takes_sparse(options, patches):
        found["sparse attention cannot run in this tree's graph"] = sparse
    layers = {name: config.get("hybrid_override_pattern", "") for name, config in configs.items()}
    experts = [name for name, pattern in layers.items() if "E" in pattern]
    if experts and not commandline.knows_experts(options):
        found["this tree's NemotronH has no experts"] = experts
    return found


def wanted(
    asked: Sequence[str], asked_modes: Sequence[str], known: set[str]
) -> list[tuple[str, str]]:
    """(model, mode), every model's references first."""
    return [
        (model, mode)
        for mode in with_references(asked_modes, known)
        for model in asked
        if runs(model, mode, known)
    ]


def with_references(asked: Sequence[str], known: set[str]) -> list[str]:
    """The modes that are asked for, behind the references that they are held against."""
    tried = {*asked} - {*modes.REFERENCES}
    needed = {modes.reference(mode, known) for mode in tried} or {modes.REFERENCE}
    return [mode for mode in modes.ALL if mode in needed | tried]


def runs(model: str, mode: str, known: set[str]) -> bool:
    """Whether a mode is for a model. Sparse attention is let into the piecewise graph alone, with
    the eager compiler alone. Drafts want every token's hidden state, for which no piecewise graph
    is captured, and none is of a model in models.BREAKABLE_ALONE."""
    if model in models.BREAKABLE_ALONE and not modes.has_breakable(known):
        return False
    if models.has_drafts(model) or model in models.BREAKABLE_ALONE:
        return mode in (modes.reference(modes.BREAKABLE, known), modes.BREAKABLE, modes.EAGER)
    return mode in (modes.REFERENCE, modes.PIECEWISE, modes.EAGER) or not models.is_sparse(
        models.MODELS[model]
    )


def job(session: Session, row: Experiment, model: str, mode: str, prefix: str = "") -> launch.Job:
    """One engine. prefix: begins the names of its files."""
    reference = mode in modes.REFERENCES
    # schedulers that wait for requests took 7 of 26 cores from engines that start
    words = {"sleep_on_idle": True} | engine_words(session, model)
    plan = dict(
        enforce=commandline.enforced(model),
        keep_eager=reference,
        files=True,
        breakable=not models.is_sparse(models.MODELS[model]),
        piecewise=model not in models.BREAKABLE_ALONE,
        logprobs=commandline.serves_logprobs(session.options, mode),
        engine=words,
    )
    one = engine_job(session, row, f"{prefix}{model}.{mode}", model, mode, **plan)
    one.needs = "" if reference else f"{prefix}{model}.{modes.reference(mode, session.known)}"
    one.kind = models.MODELS[model]["model_type"]
    return one


def judge(session: Session, row: Experiment, made: Plan) -> dict:
    """runs, and what they have in common of the files that they loaded."""
    found = [judging.judge(session.place, one, made.jobs) for one in made.jobs]
    common, own = judging.notes(made.jobs)
    return {
        "runs": [run | {"loaded": notes} for run, notes in zip(found, own, strict=True)],
        "loaded": common,
    }
