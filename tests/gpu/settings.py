#!/usr/bin/env python3
"""Hold servers with other arguments than run.py's against eager prefill: `python settings.py --out
RESULTS`.

In an unpacked bundle. Each setting has a server for each graph mode, and one that has the graph and
keeps every prefill eager. Answers must agree as compare.py says, and what else is returned too.
Prefills that ran eagerly are counted, each with its reason: one without a reason is a fault. Of
several GPUs' ranks each is looked at. Both graph modes of mixed-chunk answer by turns, side by
side. Writes RESULTS/settings.json, and ends in a table. Exit code 0: all good.

--without makes a control: servers of the release's own tree (queue), or of the patched one with
one patch's function doing nothing. Then extra-buffer's runs with drafts must fail, from 0.5.14 on,
and without rows-of-ranks those of dp-returns.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import alternate
import cases
import commandline
import compare
import judging
import kernels
import launch
import machine
import models
import modes
import returned
import run

HERE = Path(__file__).resolve().parent
RESULT = "settings.json"
RETURNS = {"return_hidden_states": True, "return_routed_experts": True}
# Of several GPUs. The kernels that join all-reduce with a norm may use NVLink multicast, which can
# put the GPUs of a shared host out of service; releases choose them by the model's architecture.
TENSOR_PARALLEL = {"enforce_disable_flashinfer_allreduce_fusion": True}
# For ranks on one GPU: the custom all-reduce wants each rank's memory on a GPU of its own.
SHARING = {"disable_custom_all_reduce": True}
TRACKS_STATES, DP_RETURNS = "extra-buffer", "dp-returns"
QUEUE, ROWS_OF_RANKS = "queue", "rows-of-ranks"
# What --without leaves out -> the function that does nothing then.
FORGOTTEN = {
    "track-under-graph": "sglang.srt.prefill_graph.kernels.tracked_states:follow",
    ROWS_OF_RANKS: "sglang.srt.prefill_graph.compat.graph_rows:note_replay",
    QUEUE: "",
}


@dataclass(frozen=True)
class Setting:
    """One way to start a server, and what it is asked.

    what: for the table's reader; models: asked by default; words: sglang.Engine's on top of those
    for all; passes: instead of a mode's own; ask: generate()'s words of a pass; config: of the
    model, in place of its own; own_sizes: the release chooses what it captures; modes: all that are
    tried; gpus: of one server; turns: whether both graph modes are asked by turns in the end.
    """

    what: str
    models: tuple[str, ...]
    words: dict = field(default_factory=dict)
    passes: tuple[str, ...] = ()
    ask: dict[str, dict] = field(default_factory=dict)
    config: dict = field(default_factory=dict)
    own_sizes: bool = False
    modes: tuple[str, ...] = (modes.BREAKABLE, modes.PIECEWISE)
    gpus: int = 1
    turns: bool = False


LONG_CHUNK = {"chunked_prefill_size": 8192}  # as releases choose it for a large GPU
DP_ATTENTION = {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True} | TENSOR_PARALLEL
EXPERTS = {"return_routed_experts": True}
SETTINGS = {
    "plain": Setting("run.py's questions", ("nemotron-h", "qwen3-next", "llama")),
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
        LONG_CHUNK,
        (cases.CONTEXT,),
        config={"max_position_embeddings": cases.SHORT_CONTEXT},
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
        "--enable-mixed-chunk; in the end two servers by turns",
        ("nemotron-h",),
        {"enable_mixed_chunk": True},
        (cases.COLD, cases.MIXED, cases.TURNS),
        {cases.MIXED: {"logprobs": False}, cases.TURNS: {"logprobs": False}},
        turns=True,
    ),
    TRACKS_STATES: Setting(
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
    DP_RETURNS: Setting(
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
DEFAULT = ("context-flag", "context-config", "returns", "mixed-chunk")


def main(words: Sequence[str] | None = None) -> int:
    options = _options(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # servers are ended
    place = commandline.place_of(options)
    if options.one_gpu and declares(options):
        place = launch.Place((HERE / "sharing", *place.path), place.out)
    facts = machine.describe(place, options) | commandline.other_attention(options)
    facts |= {"without": options.without, "tp": options.tp}
    known, began = commandline.fields(options), time.time()
    if options.without == QUEUE:
        place = commandline.untouched_place(place, options)
    seen = machine.visible()
    jobs, left_out = planned(place, options, known)
    _write_models(place, jobs)

    def write() -> None:
        facts["runs"] = [judge(one, jobs, facts) for one in jobs]
        facts.update(left_out=left_out, seconds=round(time.time() - began))
        (place.out / RESULT).write_text(json.dumps(facts, indent=1) + "\n")

    try:
        with kernels.made_ahead(place, seen[0].use, options.attention):
            for devices, here in _by_gpus(jobs, [one.use for one in seen]):
                until = began + options.limit
                launch.run_all(
                    place, here, options.width, until, commandline.say, devices=devices, ended=write
                )
    finally:
        write()
    show(facts)
    return 0 if all(one["verdict"] in judging.GOOD for one in facts["runs"]) else 1


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commandline.add_place(parser)
    commandline.add_attention(parser, "as in run.py")
    listed = "; ".join(f"{name}: {setting.what}" for name, setting in SETTINGS.items())
    parser.add_argument(
        "--setting",
        nargs="+",
        choices=[*SETTINGS],
        default=[*DEFAULT],
        help=f"default: {' '.join(DEFAULT)}. {listed}",
    )
    parser.add_argument(
        "--model", nargs="+", choices=[*models.MODELS], help="instead of each setting's own"
    )
    parser.add_argument(
        "--mode",
        nargs="+",
        choices=modes.GRAPHS,
        default=[*modes.GRAPHS[:2]],
        help="default: breakable piecewise, where the setting has them",
    )
    parser.add_argument(
        "--tp", type=commandline.count, default=1, help="GPUs that share each model (default 1)"
    )
    parser.add_argument(
        "--one-gpu",
        action="store_true",
        help="the ranks of a server share one GPU and talk through sockets: for hosts with one GPU",
    )
    parser.add_argument(
        "--without", choices=[*FORGOTTEN], default="", help="a control: leave this out"
    )
    commandline.add_untouched(parser)
    parser.add_argument(
        "--width", type=commandline.count, default=6, help="servers at once on each GPU (default 6)"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=540,
        help="seconds after which what runs is ended (default 540)",
    )
    parser.add_argument(
        "--engine-limit",
        type=float,
        default=300,
        help="seconds that one server may take (default 300)",
    )
    commandline.add_port_base(parser, 28000)
    return parser.parse_args(words)


def planned(
    place: launch.Place, options: argparse.Namespace, known: set[str]
) -> tuple[list[launch.Job], list[dict]]:
    """The servers, a setting's next to each other; and what is left out, with the reason."""
    made: list[launch.Job] = []
    left_out: list[dict] = []
    for name in options.setting:
        setting = SETTINGS[name]
        for model in options.model or setting.models:
            here: list[launch.Job] = []
            for mode in _modes(setting, options.mode, known):
                if why := unavailable(setting, model, mode, known):
                    left_out.append({"setting": name, "model": model, "mode": mode, "why": why})
                else:
                    here.append(
                        job(place, options, known, len(made) + len(here), name, model, mode)
                    )
            tried = [one for one in here if one.needs]
            made += [
                one for one in here if one.needs or any(other.needs == one.name for other in tried)
            ]
            _pair([one for one in tried if setting.turns])
    return made, left_out


def _modes(setting: Setting, asked: Sequence[str], known: set[str]) -> list[str]:
    """References first."""
    tried = [mode for mode in setting.modes if mode in asked]
    needed = {modes.reference(mode, known) for mode in tried}
    return [mode for mode in modes.ALL if mode in needed or mode in tried]


def unavailable(setting: Setting, model: str, mode: str, known: set[str]) -> str:
    """Why a release cannot run this; empty where it can."""
    if lost := sorted(set(setting.words) - known - TENSOR_PARALLEL.keys()):
        return f"the release does not know {' '.join(lost)}"
    if not run.runs(model, mode, known):
        return "the mode is not for this model"
    chosen = modes.flags(mode, known, list(cases.CAPTURE), False)
    return chosen.reason if isinstance(chosen, modes.Unavailable) else ""


def _pair(tried: Sequence[launch.Job]) -> None:
    """Let two servers answer by turns. A single one has nobody to wait for."""
    if len(tried) == 2:
        for number, one in enumerate(tried):
            one.plan |= {"peer": tried[1 - number].plan["out"], "first": number == 0}
            Path(one.plan["out"] + alternate.SUFFIX).unlink(missing_ok=True)


def job(
    place: launch.Place,
    options: argparse.Namespace,
    known: set[str],
    number: int,
    name: str,
    model: str,
    mode: str,
) -> launch.Job:
    """run.py's job for the model and mode, with what the setting changes."""
    setting, reference = SETTINGS[name], mode in modes.REFERENCES
    one = run.job(place, options, known, number, model, mode)
    one.name = f"{name}.{one.name}"
    one.needs = one.needs and f"{name}.{one.needs}"
    shared = {"tp_size": options.tp} | TENSOR_PARALLEL if options.tp > 1 else {}
    ranks = max(setting.gpus, options.tp)
    if ranks > 1:  # ranks of DP attention go on together: one that sleeps holds the others up
        shared["sleep_on_idle"] = False
    if options.one_gpu and ranks > 1:
        shared |= SHARING
    one.plan |= {
        "setting": name,
        "of": model,
        "mode": mode,
        "gpus": 1 if options.one_gpu else ranks,
        "ranks": ranks,
        "one_gpu": options.one_gpu and ranks > 1 and not declares(options),
        "enforce": commandline.enforced(model),
        "out": str(place.out / f"{one.name}.json"),
        "watch": str(place.out / f"{one.name}.watch"),
        "model": str(folder(place, name, model)),
        "engine": one.plan["engine"] | shared | setting.words,
        "passes": passes(setting, mode),
        "ask": asked(setting, reference),
        "capture": [] if setting.own_sizes and not reference else list(cases.CAPTURE),
        "forget": FORGOTTEN.get(options.without, ""),
    }
    return one


def declares(options: argparse.Namespace) -> bool:
    """Whether ranks learn of their GPUs from what a release declares of its arguments: from 0.5.20
    on, where these are sealed. There sharing/ lets ranks share a GPU, and watch/ elsewhere."""
    file = commandline.srt(options) / "entrypoints/engine.py"
    return file.is_file() and "get_device().gpu_id_step" in file.read_text(encoding="utf-8")


def folder(place: launch.Place, name: str, model: str) -> Path:
    """The checkpoint's folder: the setting's own where it changes config.json."""
    return place.scratch / "models" / (f"{model}-{name}" if SETTINGS[name].config else model)


def passes(setting: Setting, mode: str) -> list[str]:
    """A setting's passes. A reference has two more as controls: the first one's prompts alone, and
    what is mixed with decoding, without log-probabilities too.
    """
    if not setting.passes:
        return list(cases.passes(mode))
    if mode not in modes.REFERENCES:
        return list(setting.passes)
    mixed_too = [cases.MIXED_EAGERLY] if cases.MIXED in setting.passes else []
    return [*setting.passes, *mixed_too, alone_of(setting.passes[0])]


def alone_of(name: str) -> str:
    """The pass that asks another one's prompts in other batches: alone, where it has batches
    enough."""
    if name == cases.COLD:
        return cases.ALONE
    return f"{name}{cases.ASKED_BESIDE if name == cases.RETURNED else cases.ASKED_ALONE}"


def asked(setting: Setting, reference: bool) -> dict[str, dict]:
    """generate()'s words for each pass. A reference answers with log-probabilities."""
    if not reference:
        return setting.ask
    found = {
        name: {word: value for word, value in words.items() if word != "logprobs"}
        for name, words in setting.ask.items()
    }
    alone = {alone_of(name): words for name, words in found.items()}
    return found | alone | {cases.MIXED_EAGERLY: {"logprobs": False}}


def _write_models(place: launch.Place, jobs: Sequence[launch.Job]) -> None:
    """Every model's checkpoint; one with another config.json has the same weights."""
    run.make_models(place, sorted({one.plan["of"] for one in jobs}))
    for one in jobs:
        own, model = Path(one.plan["model"]), one.plan["of"]
        if own.name != model:
            models.write_config(own, models.MODELS[model] | SETTINGS[one.plan["setting"]].config)
            weights = own / "model.safetensors"
            weights.unlink(missing_ok=True)
            os.link(own.parent / model / weights.name, weights)


def _by_gpus(
    jobs: Sequence[launch.Job], seen: Sequence[str]
) -> list[tuple[list[str], list[launch.Job]]]:
    """What runs on one GPU, and then what runs on several, each with its devices."""
    found = []
    for count in sorted({one.plan["gpus"] for one in jobs}):
        here = [one for one in jobs if one.plan["gpus"] == count]
        devices = [",".join(seen[at : at + count]) for at in range(0, len(seen) - count + 1, count)]
        if not devices:
            for one in here:
                one.why = f"it needs {count} GPUs, {len(seen)} can be used"
            continue
        found.append((devices, here))
    return found


def judge(one: launch.Job, jobs: Sequence[launch.Job], facts: dict) -> dict:
    """One server's result with all its verdicts."""
    plan = one.plan
    found = {
        "setting": plan["setting"],
        "model": plan["of"],
        "mode": plan["mode"],
        "device": one.device,
        "seconds": round(one.seconds),
    }
    reference = next((other for other in jobs if other.name == one.needs and other.code == 0), None)
    log = Path(plan["out"]).with_suffix(".log")
    if one.code != 0:
        why = (
            f"{one.why}: {judging.error(log.read_text(errors='replace'))}"
            if one.code is not None and log.exists()
            else one.why
        )
        return found | {
            "verdict": "failed" if one.code is not None else "not run",
            "why": why,
            "checks": [],
        }
    result = within_passes(json.loads(Path(plan["out"]).read_text()))
    right = json.loads(Path(reference.plan["out"]).read_text()) if reference else None
    verdicts = checks(plan, result, right, facts)
    bad = [verdict for verdict in verdicts if not verdict.good]
    verdict = "failed" if bad else "not run" if one.needs and not right else "passed"
    why = (
        f"{bad[0].what}: {bad[0].why}"
        if bad
        else judging.NO_REFERENCE
        if verdict == "not run"
        else ""
    )
    found |= {
        name: result[name] for name in ("start_s", "pass_s", "flags", "dropped_flags", "report")
    }
    return found | {
        "verdict": verdict,
        "why": why,
        "prefills": counted(result["prefills"]),
        "checks": [one.as_json() for one in verdicts],
    }


def within_passes(result: dict) -> dict:
    """A result with the prefills of what was asked alone: before that a server may try kernels.

    A runner's first line, wherever it stands, notes what was captured.
    """
    calls = [call for answers in result["passes"].values() for call in answers.values()]
    began, ended = min(call["from"] for call in calls), max(call["to"] for call in calls)
    seen = [line for line in result["prefills"] if began <= line["at"] <= ended]
    noted = [line["captured"] for line in result["prefills"] if line.get("captured")]
    return result | {"prefills": seen, "sizes": noted[0] if noted else []}


def checks(plan: dict, result: dict, reference: dict | None, facts: dict) -> list[compare.Verdict]:
    """What one server's answers must stand up to. reference: its eager one's result."""
    graph, router = plan["mode"] in modes.GRAPHS, models.has_router(models.MODELS[plan["of"]])
    found = [
        compare.flags_known(result["flags"], result["dropped_flags"]),
        ran(result["prefills"], graph),
    ]
    if plan["ranks"] > 1:
        found.append(ranks(result["prefills"], plan, graph))
    if not graph:
        usual = control(result["passes"])
        found.append(compare.against_itself(usual, router))
        found += mixed_eagerly(result["passes"], compare.limits(router, False, usual))
    elif facts["without"] != QUEUE and compare.reports(result["report"]):
        found.append(compare.reported(result["report"], Path(plan["model"]).name))
    if plan["setting"].startswith("context-") and graph and _before(facts["version"], 18):
        # from 0.5.18 on a longer size is captured as several requests
        found.append(sizes_within(result["sizes"], cases.SHORT_CONTEXT))
    if "peer" in plan:
        found.append(by_turns(result.get("turns", {})))
    if graph and reference:
        both = result["passes"], reference["passes"], router
        agree = agreement(plan, *both) + given_back(plan, *both)
        found += [otherwise(agree, facts["without"])] if must_fail(plan, facts) else agree
    # each of its ranks has a cache
    if cases.WARM in result["passes"] and "dp_size" not in plan["engine"]:
        cached = {
            name: answers
            for name, answers in result["passes"].items()
            if name in (cases.COLD, cases.AGAIN, cases.WARM)
        }
        found.append(compare.hits(cached))
    if cases.MIXED in result["passes"] and graph:
        found.append(mixed(result["prefills"], result["passes"][cases.MIXED]))
    return found


def control(passes: dict) -> compare.Tally:
    """Eager prefill against itself: the first pass's prompts in other batches."""
    if cases.ALONE in passes and cases.WARM in passes:
        return judging.control(passes)
    first = next(iter(passes))
    alone = cases.gathered(passes[alone_of(first)], cases.of_pass(first))
    return compare.tally((alone, {call: passes[first][call] for call in alone}))


def agreement(plan: dict, mine: dict, reference: dict, router: bool) -> list[compare.Verdict]:
    """Every pass against the reference's."""
    limits = compare.limits(router, plan["mode"] == modes.INDUCTOR, control(reference))
    found = []
    for name, answers in mine.items():
        right = reference[cases.COLD if name == cases.AGAIN else name]
        bare = all(
            "logprobs" not in answer for call in answers.values() for answer in call["answers"]
        )
        what = f"agrees with eager prefill, {name}{', tokens alone' if bare else ''}"
        found.append(compare.same_answers(what, answers, right, limits))
    return found


def must_fail(plan: dict, facts: dict) -> bool:
    """Whether a graph is wrong without the queue's patch.

    It leaves wrong states in the prefix cache in 0.5.14 to 0.5.16 where drafts are verified.
    0.5.13's breakable graph is the queue's own, whose breaks get the scheduler's batch; the
    release's own starts no NemotronH. It returns another rank's experts from 0.5.14 on.
    """
    if plan["setting"] == DP_RETURNS:
        return facts["without"] == ROWS_OF_RANKS and not _before(facts["version"], 14)
    asked = facts["without"] and plan["setting"] == TRACKS_STATES
    return bool(asked) and models.has_drafts(plan["of"]) and not _before(facts["version"], 14)


def otherwise(agree: Sequence[compare.Verdict], without: str) -> compare.Verdict:
    """A control that must fail: else the comparison shows nothing."""
    bad = [verdict for verdict in agree if not verdict.good]
    why = f"{bad[0].what}: {bad[0].why}" if bad else "it agrees in every pass"
    return compare.Verdict(f"answers otherwise without {without}, as it must", bool(bad), why)


def given_back(plan: dict, mine: dict, reference: dict, router: bool) -> list[compare.Verdict]:
    """Hidden states and routed experts, where they were asked for."""
    name = next(
        (name for name, words in SETTINGS[plan["setting"]].ask.items() if words.keys() & RETURNS),
        None,
    )
    if name is None:
        return []
    right, config = reference[name], models.MODELS[plan["of"]]
    alone = cases.gathered(reference[alone_of(name)], cases.of_pass(name))
    batches = {call: right[call] for call in alone}
    found = []
    if "return_hidden_states" in SETTINGS[plan["setting"]].ask[name]:
        rows = compare.tally(returned.as_answers(alone, batches))
        limits = compare.limits(router, plan["mode"] == modes.INDUCTOR, rows)
        found = [returned.same_rows("hidden states are eager prefill's", mine[name], right, limits)]
    if router:
        shape = config["num_hidden_layers"], config["num_experts_per_tok"]
        usual = returned.choices(alone, batches, *shape)
        found.append(
            returned.same_choices(
                "routed experts are eager prefill's",
                returned.choices(mine[name], right, *shape),
                usual,
            )
        )
    return found


def counted(prefills: Sequence[dict]) -> dict:
    """How many prefills ran on a graph, and why the others did not."""
    eager = [line for line in prefills if not launched(line)]
    reasons = Counter(line.get("why") or "" for line in eager)
    return {
        "all": len(prefills),
        "on_graph": len(prefills) - len(eager),
        "eager": dict(reasons.most_common()),
    }


def launched(line: dict) -> bool:
    return bool(line["runner"] and line["launches"])


def ran(prefills: Sequence[dict], graph: bool) -> compare.Verdict:
    """Whether prefills ran on the graph, and each that did not says why; none, on a reference."""
    seen = counted(prefills)
    if not graph:
        return compare.Verdict(
            "no prefill ran on a graph",
            bool(seen["all"]) and not seen["on_graph"],
            f"{seen['on_graph']} of {seen['all']} did",
            seen,
        )
    silent = seen["eager"].get("", 0)
    why = f"{seen['on_graph']} of {seen['all']} on the graph" + (
        f", {silent} ran eagerly without a reason" if silent else ""
    )
    return compare.Verdict(
        "prefills ran on the graph, and the others say why not",
        seen["on_graph"] > 0 and not silent,
        why,
        seen,
    )


def ranks(prefills: Sequence[dict], plan: dict, graph: bool) -> compare.Verdict:
    """Whether every rank ran prefills, and where they share each one, all ran it the same way."""
    by_rank: dict[str, list[bool]] = {}
    for line in prefills:
        by_rank.setdefault(line["process"], []).append(launched(line))
    said = ", ".join(f"{sum(rank)} of {len(rank)}" for rank in by_rank.values())
    alike = "dp_size" in plan["engine"] or len({tuple(rank) for rank in by_rank.values()}) == 1
    good = (
        len(by_rank) == plan["ranks"] and alike and (not graph or all(map(any, by_rank.values())))
    )
    return compare.Verdict(
        "every rank ran its prefills alike",
        good,
        f"{len(by_rank)} ranks of {plan['ranks']}, on the graph: {said or 'none'}",
    )


def sizes_within(sizes: Sequence[int], context: int) -> compare.Verdict:
    """Whether no graph was captured for more tokens than the context has."""
    why = f"{len(sizes)} sizes, up to {sizes[-1]}" if sizes else "no captured size was seen"
    good = bool(sizes) and sizes[-1] <= context
    return compare.Verdict("no captured size is beyond the context", good, why)


def _before(version: str, patch: int) -> bool:
    """Whether a release comes before 0.5.patch."""
    return tuple(int(part) for part in version.split(".")[:3]) < (0, 5, patch)


def mixed_eagerly(passes: dict, limits: compare.Limits) -> list[compare.Verdict]:
    """Whether eager prefill itself answers the same when it is mixed: else no graph is at fault."""
    if cases.MIXED_EAGERLY not in passes:
        return []
    what = "eager prefill answers the same mixed with decoding, tokens alone"
    return [compare.same_answers(what, passes[cases.MIXED_EAGERLY], passes[cases.MIXED], limits)]


def mixed(prefills: Sequence[dict], answers: dict) -> compare.Verdict:
    """Whether decoding requests were in prefills: else the setting shows nothing."""
    began, ended = (
        min(call["from"] for call in answers.values()),
        max(call["to"] for call in answers.values()),
    )
    seen = counted(
        [line for line in prefills if line["mode"] == "MIXED" and began <= line["at"] <= ended]
    )
    return compare.Verdict(
        "prefills were mixed with decoding",
        seen["all"] > 0,
        f"{seen['all']} were, {seen['on_graph']} of them on the graph",
        seen,
    )


def by_turns(turns: dict) -> compare.Verdict:
    """Whether two servers side by side answered one call each in turn."""
    answers, missed = turns.get("answers", 0), turns.get("missed", 0)
    return compare.Verdict(
        "two servers answered by turns",
        answers > 0 and not missed,
        f"{answers} answers, {missed} not in turn",
    )


def show(facts: dict) -> None:
    """Every failed check, then the table."""
    for one in facts["runs"]:
        print(
            f"\n{title(one)}: {one['verdict']}{' - ' + one['why'] if one['why'] else ''}"
            f" ({one['seconds']} s, start {one.get('start_s', '?')} s)"
        )
        for check in one["checks"]:
            print(f"  {'ok  ' if check['good'] else 'FAIL'} {check['what']}: {check['why']}")
    print("\n".join(["", *table(facts)]))


def title(one: dict) -> str:
    return f"{one['setting']} {one['model']} {one['mode']}"


def table(facts: dict) -> list[str]:
    """One line for each graph mode: the verdict, prefills on the graph, and why others were
    eager."""
    tree = f"without {facts['without']}" if facts["without"] else "patched"
    lines = [
        (
            f"| {facts['version']} {tree} on {facts['gpu']['name']} | verdict | on the graph |"
            " eager, and why |"
        ),
        "|---|---|---|---|",
    ]
    for one in facts["runs"]:
        if one["mode"] in modes.REFERENCES and one["verdict"] == "passed":
            continue
        seen = one.get("prefills", {"all": 0, "on_graph": 0, "eager": {}})
        eager = "; ".join(
            f"{count} × {reason or 'no reason'}" for reason, count in seen["eager"].items()
        )
        verdict = one["verdict"] + (f": {one['why'][:160]}" if one["why"] else "")
        lines.append(
            f"| {title(one)} | {verdict} | {seen['on_graph']} of {seen['all']} |"
            f" {eager[:240] or '-'} |".replace("\n", " ")
        )
    lines += [f"| {title(one)} | left out: {one['why']} | - | - |" for one in facts["left_out"]]
    return [*lines, f"{facts['seconds']} s"]


if __name__ == "__main__":
    raise SystemExit(main())
