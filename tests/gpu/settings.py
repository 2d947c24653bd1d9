"""Servers with other arguments than the proof's, against eager prefill.

Each setting has a server for each graph mode, and one that has the graph and keeps every prefill
eager. A control has servers of the release's own tree (queue), or of the patched one with one
patch's function doing nothing. Then extra-buffer's runs with drafts must fail, from 0.5.14 on, and
without rows-of-ranks those of dp-returns. setting_checks.py judges.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import cases
import commandline
import launch
import modes
import proof
import setting_checks
from experiment import QUEUE, Experiment, Plan, Session, Stage

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


@dataclass(frozen=True)
class Setting:
    """One way to start a server, and what it is asked.

    what: for the table's reader; models: asked by default; words: sglang.Engine's on top of those
    for all; passes: instead of a mode's own; ask: generate()'s words of a pass; own_sizes: the
    release chooses what it captures; modes: all that are tried; gpus: of one server.
    """

    what: str
    models: tuple[str, ...]
    words: dict = field(default_factory=dict)
    passes: tuple[str, ...] = ()
    ask: dict[str, dict] = field(default_factory=dict)
    own_sizes: bool = False
    modes: tuple[str, ...] = (modes.BREAKABLE, modes.PIECEWISE)
    gpus: int = 1


LONG_CHUNK = {"chunked_prefill_size": 8192}  # as releases choose it for a large GPU
SHORT_CONFIG = json.dumps({"max_position_embeddings": cases.SHORT_CONTEXT})
DP_ATTENTION = {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True} | TENSOR_PARALLEL
EXPERTS = {"return_routed_experts": True}
SETTINGS = {
    "plain": Setting("the proof's questions", ("nemotron-h", "qwen3-next", "llama")),
    "context-flag": Setting(
        "--context-length 2048, the release's own capture sizes",
        ("llama",),
        {"context_length": cases.SHORT_CONTEXT} | LONG_CHUNK,
        (cases.CONTEXT,),
        own_sizes=True,
    ),
    "context-config": Setting(
        "a context of 2048 in config.json, the release's own capture sizes",
        ("nemotron-h",),
        {"json_model_override_args": SHORT_CONFIG} | LONG_CHUNK,
        (cases.CONTEXT,),
        own_sizes=True,
    ),
    "returns": Setting(
        "hidden states and routed experts returned",
        ("qwen3-next",),
        {f"enable_{name}": True for name in RETURNS},
        (cases.RETURNED,),
        {cases.RETURNED: RETURNS},
    ),
    "mixed-chunk": Setting(
        "--enable-mixed-chunk",
        ("nemotron-h",),
        {"enable_mixed_chunk": True},
        (cases.COLD, cases.MIXED),
        {cases.MIXED: {"logprobs": False}},
    ),
    setting_checks.TRACKS_STATES: Setting(
        "states in the prefix cache, with and without drafts",
        ("nemotron-h-buffer", "nemotron-h-mtp"),
        modes=(modes.BREAKABLE,),
    ),
    "dp-attention": Setting(
        "--enable-dp-attention on two GPUs",
        ("nemotron-h",),
        DP_ATTENTION,
        (cases.COLD, cases.WARM),
        modes=(modes.BREAKABLE,),
        gpus=2,
    ),
    # each call decodes before the next one's prompts, which differ in length from rank to rank
    setting_checks.DP_RETURNS: Setting(
        "routed experts returned with --enable-dp-attention on two GPUs",
        ("qwen3-next",),
        DP_ATTENTION
        | {f"enable_{name}": True for name in EXPERTS}
        | {"chunked_prefill_size": 2 * cases.CHUNK},  # the ranks share it, and so do their buffers
        (cases.RETURNED,),
        {cases.RETURNED: EXPERTS},
        modes=(modes.BREAKABLE,),
        gpus=2,
    ),
}


def row(name: str, setting: Setting) -> Experiment:
    """A row of the table."""
    return Experiment(
        name=name,
        what=setting.what,
        models=setting.models,
        passes=setting.passes or cases.passes(modes.BREAKABLE),
        checked="agrees with eager prefill; each eager prefill says why",
        port=28000,
        plan=plan,
        judge=judge,
        modes=setting.modes,
        takes=("model", "mode", "tp"),
        controls=(*FORGOTTEN,),
        beside=True,
        width=6,
    )


def plan(session: Session, row: Experiment, asked_models: Sequence[str]) -> Plan:
    """The servers, a model's next to each other."""
    setting, made, left_out = SETTINGS[row.name], Stage([]), []
    for model in asked_models:
        here: list[launch.Job] = []
        asked_modes = [mode for mode in setting.modes if mode in session.modes(row)]
        for mode in proof.with_references(asked_modes, session.known):
            if why := unavailable(setting, model, mode, session.known):
                commandline.say(f"{row.name} {model} {mode}: left out: {why}")
                left_out.append({"experiment": row.name, "model": model, "mode": mode, "why": why})
            else:
                here.append(job(session, row, model, mode))
        tried = [one for one in here if one.needs]
        made.jobs += [
            one for one in here if one.needs or any(other.needs == one.name for other in tried)
        ]
    made.place = session.untouched if session.options.without == QUEUE else session.place
    return Plan([made], left_out)


def unavailable(setting: Setting, model: str, mode: str, known: set[str]) -> str:
    """Why a release cannot run this; empty where it can."""
    if lost := sorted(set(setting.words) - known - TENSOR_PARALLEL.keys()):
        return f"the release does not know {' '.join(lost)}"
    if not proof.runs(model, mode, known):
        return "the mode is not for this model"
    chosen = modes.flags(mode, known, list(cases.CAPTURE), False)
    return chosen.reason if isinstance(chosen, modes.Unavailable) else ""


def job(session: Session, row: Experiment, model: str, mode: str) -> launch.Job:
    """The proof's job for the model and mode, with what the setting changes."""
    setting, reference = SETTINGS[row.name], mode in modes.REFERENCES
    tp = session.options.tp or 1
    one = proof.job(session, row, model, mode, f"{row.name}.")
    shared = {"tp_size": tp} | TENSOR_PARALLEL if tp > 1 else {}
    ranks = max(setting.gpus, tp)
    if ranks > 1:  # ranks of DP attention go on together: one that sleeps holds the others up
        shared["sleep_on_idle"] = False
    one.plan |= {
        "setting": row.name,
        "gpus": ranks,
        "ranks": ranks,
        "engine": one.plan["engine"] | shared | setting.words,
        "passes": passes(setting, mode),
        "ask": asked(setting, reference),
        "capture": [] if setting.own_sizes and not reference else list(cases.CAPTURE),
        "forget": FORGOTTEN.get(session.options.without, ""),
    }
    return one


def passes(setting: Setting, mode: str) -> list[str]:
    """A setting's passes. A reference has two more as controls: the first one's prompts alone, and
    what is mixed with decoding, without log-probabilities too.
    """
    if not setting.passes:
        return list(cases.passes(mode))
    if mode not in modes.REFERENCES:
        return list(setting.passes)
    mixed_too = [cases.MIXED_EAGERLY] if cases.MIXED in setting.passes else []
    return [*setting.passes, *mixed_too, setting_checks.alone_of(setting.passes[0])]


def asked(setting: Setting, reference: bool) -> dict[str, dict]:
    """generate()'s words for each pass. A reference answers with log-probabilities."""
    if not reference:
        return setting.ask
    found = {
        name: {word: value for word, value in words.items() if word != "logprobs"}
        for name, words in setting.ask.items()
    }
    alone = {setting_checks.alone_of(name): words for name, words in found.items()}
    return found | alone | {cases.MIXED_EAGERLY: {"logprobs": False}}


def judge(session: Session, row: Experiment, made: Plan) -> dict:
    facts, ask = session.facts | {"without": session.options.without}, SETTINGS[row.name].ask
    return {
        "runs": [
            setting_checks.judge(session.place, one, made.jobs, facts, ask) for one in made.jobs
        ],
        "left_out": made.left_out,
    }
