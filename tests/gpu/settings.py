"""Servers with other arguments than the proof's, against eager prefill.

Each setting has a server for each graph mode, and one that has the graph and keeps every prefill
eager. A control has servers of the release's own tree (queue), or of the patched one with one
patch's function doing nothing. Then extra-buffer's runs with drafts must fail, from 0.5.14 on, and
without rows-of-ranks those of dp-returns. setting_checks.py judges.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import cases
import commandline
import launch
import modes
import proof
import setting_checks
from experiment import QUEUE, Experiment, Plan, Session

RETURNS = setting_checks.RETURNS
# Of several GPUs. The kernels that join all-reduce with a norm may use NVLink multicast, which can
# put the GPUs of a shared host out of service; releases choose them by the model's architecture.
TENSOR_PARALLEL = {"enforce_disable_flashinfer_allreduce_fusion": True}
# What --without leaves out -> the function that does nothing then.
FORGOTTEN = {
    "track-under-graph": "sglang.srt.prefill_graph.kernels.tracked_states:follow",
    setting_checks.ROWS_OF_RANKS: "sglang.srt.prefill_graph.compat.graph_rows:note_replay",
    QUEUE: "",
}
LONG_CHUNK = {"chunked_prefill_size": 8192}  # as releases choose it for a large GPU
SHORT_CONFIG = json.dumps({"max_position_embeddings": cases.SHORT_CONTEXT})
DP_ATTENTION = {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True} | TENSOR_PARALLEL
EXPERTS = {"return_routed_experts": True}


def plan(session: Session, row: Experiment, asked_models: Sequence[str]) -> Plan:
    """The servers, a model's next to each other."""
    made: list[launch.Job] = []
    left_out = []
    for model in asked_models:
        here: list[launch.Job] = []
        asked_modes = [mode for mode in row.modes if mode in session.modes(row)]
        for mode in proof.with_references(asked_modes, session.known):
            if why := unavailable(row, model, mode, session.known):
                commandline.say(f"{row.name} {model} {mode}: left out: {why}")
                left_out.append({"experiment": row.name, "model": model, "mode": mode, "why": why})
            else:
                here.append(job(session, row, model, mode))
        needed = {one.needs for one in here if one.needs}
        made += [one for one in here if one.needs or one.name in needed]
    return Plan([made], left_out)


def unavailable(row: Experiment, model: str, mode: str, known: set[str]) -> str:
    """Why a release cannot run this; empty where it can."""
    if lost := sorted(set(row.words) - known - TENSOR_PARALLEL.keys()):
        return f"the release does not know {' '.join(lost)}"
    if not proof.runs(model, mode, known):
        return "the mode is not for this model"
    chosen = modes.flags(mode, known, list(cases.CAPTURE), False)
    return chosen.reason if isinstance(chosen, modes.Unavailable) else ""


def job(session: Session, row: Experiment, model: str, mode: str) -> launch.Job:
    """The proof's job for the model and mode, with what the setting changes."""
    reference, tp = mode in modes.REFERENCES, session.options.tp or 1
    one = proof.job(session, row, model, mode, f"{row.name}.")
    one.place = session.untouched if session.options.without == QUEUE else None
    shared = {"tp_size": tp} | TENSOR_PARALLEL if tp > 1 else {}
    ranks = max(row.gpus, tp)
    if ranks > 1:  # ranks of DP attention go on together: one that sleeps holds the others up
        shared["sleep_on_idle"] = False
    one.plan |= {
        "setting": row.name,
        "gpus": ranks,
        "ranks": ranks,
        "engine": one.plan["engine"] | shared | row.words,
        "passes": passes(row, mode),
        "ask": asked(row, reference),
        "capture": [] if row.own_sizes and not reference else list(cases.CAPTURE),
        "forget": FORGOTTEN.get(session.options.without, ""),
    }
    return one


def passes(row: Experiment, mode: str) -> list[str]:
    """A setting's passes. A reference has two more as controls: the first one's prompts alone, and
    what is mixed with decoding, without log-probabilities too."""
    if not row.passes:
        return list(cases.passes(mode))
    if mode not in modes.REFERENCES:
        return list(row.passes)
    mixed_too = [cases.MIXED_EAGERLY] if cases.MIXED in row.passes else []
    return [*row.passes, *mixed_too, setting_checks.alone_of(row.passes[0])]


def asked(row: Experiment, reference: bool) -> dict[str, dict]:
    """generate()'s words for each pass. A reference answers with log-probabilities."""
    if not reference:
        return row.ask
    found = {
        name: {word: value for word, value in words.items() if word != "logprobs"}
        for name, words in row.ask.items()
    }
    alone = {setting_checks.alone_of(name): words for name, words in found.items()}
    return found | alone | {cases.MIXED_EAGERLY: {"logprobs": False}}


def judge(session: Session, row: Experiment, made: Plan) -> dict:
    facts = session.facts | {"without": session.options.without}
    place, ask = session.place, row.ask
    judged = [setting_checks.judge(place, one, made.jobs, facts, ask) for one in made.jobs]
    return {"runs": judged, "left_out": made.left_out}


def _row(name: str, what: str, asked_models: tuple[str, ...], **more: Any) -> Experiment:
    """One way to start a server, and what it is asked. more: of Experiment's fields."""
    usual = {"modes": (modes.BREAKABLE, modes.PIECEWISE), "takes": ("model", "mode", "tp")}
    return Experiment(
        name=name,
        what=what,
        models=asked_models,
        checked="agrees with eager prefill; each eager prefill says why",
        port=28000,
        plan=plan,
        judge=judge,
        controls=(*FORGOTTEN,),
        beside=True,
        width=6,
        **usual | more,
    )


ROWS = (
    _row("plain", "the proof's questions", ("nemotron-h", "qwen3-next", "llama")),
    _row(
        "context-flag",
        "--context-length 2048, the release's own capture sizes",
        ("llama",),
        words={"context_length": cases.SHORT_CONTEXT} | LONG_CHUNK,
        passes=(cases.CONTEXT,),
        own_sizes=True,
    ),
    _row(
        "context-config",
        "a context of 2048 in config.json, the release's own capture sizes",
        ("nemotron-h",),
        words={"json_model_override_args": SHORT_CONFIG} | LONG_CHUNK,
        passes=(cases.CONTEXT,),
        own_sizes=True,
    ),
    _row(
        "returns",
        "hidden states and routed experts returned",
        ("qwen3-next",),
        words={f"enable_{name}": True for name in RETURNS},
        passes=(cases.RETURNED,),
        ask={cases.RETURNED: RETURNS},
    ),
    _row(
        "mixed-chunk",
        "--enable-mixed-chunk",
        ("nemotron-h",),
        words={"enable_mixed_chunk": True},
        passes=(cases.COLD, cases.MIXED),
        ask={cases.MIXED: {"logprobs": False}},
    ),
    _row(
        setting_checks.TRACKS_STATES,
        "states in the prefix cache, with and without drafts",
        ("nemotron-h-buffer", "nemotron-h-mtp"),
        modes=(modes.BREAKABLE,),
    ),
    _row(
        "dp-attention",
        "--enable-dp-attention on two GPUs",
        ("nemotron-h",),
        words=DP_ATTENTION,
        passes=(cases.COLD, cases.WARM),
        modes=(modes.BREAKABLE,),
        gpus=2,
    ),
    # each call decodes before the next one's prompts, which differ in length from rank to rank
    _row(
        setting_checks.DP_RETURNS,
        "routed experts returned with --enable-dp-attention on two GPUs",
        ("qwen3-next",),
        words=DP_ATTENTION
        | {f"enable_{name}": True for name in EXPERTS}
        | {"chunked_prefill_size": 2 * cases.CHUNK},  # the ranks share it, and so do their buffers
        passes=(cases.RETURNED,),
        ask={cases.RETURNED: EXPERTS},
        modes=(modes.BREAKABLE,),
        gpus=2,
    ),
)
SETTINGS = {row.name: row for row in ROWS}
