"""What one engine's answers and log are worth."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import cases
import compare
import graphs
import launch
import models
import modes

GOOD = ("passed", "not applicable")
# the releases' own line, and that of the queue's runners (_keep, breakable/runner.py)
CAPTURED = re.compile(
    r"(?:Capture (?P<what>[^.\n]*?graph[^.\n]*?) end\..*?elapsed[:=]"
    r"|Captured the (?P<ours>[^.\n]*?graph) in)"
    r"\s*(?P<s>[\d.]+).*?mem usage=(?P<gb>-?[\d.]+)",
    re.I,
)
NO_REFERENCE = "its reference did not run"
# what the queue says where a graph is not for the model (model/layers.py, compat/limits.py)
REFUSED = re.compile(
    r"decoder layer \d+ \(\w+\) has no attention, which the tc_piecewise graph needs in every layer"
    r"|the piecewise graph of [\w -]+ answers otherwise than eager prefill here"
)


def judge(place: launch.Place, one: launch.Job, jobs: Sequence[launch.Job]) -> dict:
    """One engine's result with all its verdicts."""
    log = log_of(place, one)
    run = about(one) | {"captured": [asdict(found) for found in captures(log)]}
    reason = re.search(r"(?m)^not applicable: (.*)$", log) if one.code else None
    refusal = REFUSED.search(log) if one.code == 0 else None
    if reason or refusal:
        why = reason[1] if reason else refusal[0]
        return run | {"verdict": "not applicable", "why": why, "checks": []}
    if one.code != 0:
        return run | without_answer(one, log)
    result, reference = answers(one), reference_of(one, jobs)
    captured = {"captured": run["captured"]}
    verdicts = checks(one.plan["of"], one.plan["mode"], result | captured, reference)
    return run | facts_of(result) | verdict(one, reference, verdicts)


def about(one: launch.Job) -> dict:
    """Which engine a run is about, and where it ran."""
    of, mode = one.plan["of"], one.plan["mode"]
    return {"model": of, "mode": mode, "device": one.device, "seconds": round(one.seconds)}


def in_cache(passes: dict) -> dict:
    """The passes in which prompts continue earlier ones that are in the cache."""
    names = (cases.COLD, cases.AGAIN, cases.WARM)
    return {name: answers for name, answers in passes.items() if name in names}


def log_of(place: launch.Place, one: launch.Job) -> str:
    """What an engine said; empty where it did not run."""
    file = place.out / f"{one.name}.log"
    return file.read_text(errors="replace") if one.code is not None and file.is_file() else ""


def answers(one: launch.Job) -> dict:
    return json.loads(Path(one.plan["out"]).read_text())


def reference_of(one: launch.Job, jobs: Sequence[launch.Job]) -> dict | None:
    """What the engine's reference answered; None where it did not."""
    answered = (other for other in jobs if other.name == one.needs and other.code == 0)
    return next(map(answers, answered), None)


def without_answer(one: launch.Job, log: str) -> dict:
    """The verdict of an engine that did not answer."""
    if one.code is None:
        return {"verdict": "not run", "why": one.why, "checks": []}
    return {"verdict": "failed", "why": f"{one.why}: {error(log)}", "checks": []}


def facts_of(result: dict) -> dict:
    """What is kept of a result beside its checks."""
    names = ("start_s", "pass_s", "flags", "dropped_flags", "report")
    return {name: result[name] for name in names}


def verdict(one: launch.Job, reference: dict | None, checks: Sequence[compare.Verdict]) -> dict:
    """The verdict of an engine that answered, by its checks."""
    found = compare.verdict_of(checks)
    if found["verdict"] == "passed" and one.needs and reference is None:
        return found | {"verdict": "not run", "why": NO_REFERENCE}
    return found


def notes(jobs: Sequence[launch.Job]) -> tuple[list[str], list[list[str]]]:
    """What the engines of each job and of its reference looked up and opened of the tree: what all
    jobs have in common, and of each job the rest (watch/sitecustomize.py, PREFILL_FILES)."""
    noted = {job.name: _noted(Path(f"{job.plan['watch']}.files")) for job in jobs}
    each = [noted[job.name] | noted.get(job.needs, set()) for job in jobs]
    common = set.intersection(*filter(None, each)) if any(each) else set()
    return sorted(common), [sorted(one - common) for one in each]


def _noted(file: Path) -> set[str]:
    return set(file.read_text().splitlines()) if file.is_file() else set()


def checks(model: str, mode: str, result: dict, reference: dict | None) -> list[compare.Verdict]:
    """What one engine's answers must stand up to. reference: the same model's reference result;
    without it agreement is left out."""
    passes, graph = result["passes"], mode in modes.GRAPHS
    most = cases.CHUNK // models.page_size(model)
    several = [count for count in cases.REQUESTS if 1 < count <= most]
    refusing = models.REFUSED.get(model, "") if mode == modes.BREAKABLE else ""
    found = [
        graphs.graph_used(result["prefills"], [*cases.CAPTURE], graph, several, refusing),
        graphs.hits(in_cache(passes)),
        graphs.emptied(passes),
        graphs.flags_known(result["flags"], result["dropped_flags"]),
    ]
    router = models.has_router(models.MODELS[model])
    limits = compare.STRICT
    if mode in modes.REFERENCES:
        found += [
            graphs.has_graph(result["captured"], graphs.servers_of(result["report"], model)),
            compare.varied(passes[cases.COLD]),
            compare.remembers(passes[cases.COLD], cases.memory_pairs(cases.calls())),
            compare.against_itself(control(passes), router),
        ]
    elif reference:
        limits = compare.without(router)
        if graph:
            itself = control(reference["passes"])
            limits = compare.limits(router, mode == modes.INDUCTOR, itself)
        found += agreement(passes, reference["passes"], limits)
    if graph and graphs.reports(result.get("report")):
        found.append(graphs.reported(result["report"], model))
    if cases.AGAIN in passes and reference:
        what = "answers the same when asked again"
        cold = compare.with_leads(passes[cases.COLD], reference["passes"][cases.COLD])
        found.append(compare.same_answers(what, passes[cases.AGAIN], cold, limits))
    return found


def agreement(passes: dict, kept: dict, limits: compare.Limits) -> list[compare.Verdict]:
    """Every pass against the reference's; the first and that of sizes together."""
    together = (cases.COLD, cases.SIZES)
    both = (passes, kept)
    mine, right = ({k: v for name in together for k, v in of[name].items()} for of in both)
    what = "agrees with eager prefill, cold, and every size after every other"
    found = [compare.same_answers(what, mine, right, limits)]
    for name in (name for name in passes if name not in together):
        what, right = f"agrees with eager prefill, {name}", kept[_same_calls(name)]
        found.append(compare.same_answers(what, passes[name], right, limits))
    return found


def _same_calls(name: str) -> str:
    """The pass in which a reference was asked what a pass asks."""
    return cases.COLD if name == cases.AGAIN else name


def control(passes: dict) -> compare.Tally:
    """Eager prefill against itself: the prompts of batches asked alone, and every prompt behind its
    cached beginning."""
    cold, by_itself = passes[cases.COLD], cases.gathered(passes[cases.ALONE], cases.calls())
    return compare.tally(
        (by_itself, {name: cold[name] for name in by_itself}), (passes[cases.WARM], cold)
    )


@dataclass(frozen=True)
class Capture:
    """What a release says when it has captured graphs: of which kind, in how many seconds, and what
    memory they took."""

    what: str
    seconds: float
    gb: float


def captures(log: str) -> list[Capture]:
    """Every capture that a log tells of. Memory counts the whole GPU: with engines side by side it
    says nothing."""
    return [
        Capture(found["what"] or found["ours"], float(found["s"]), float(found["gb"]))
        for found in CAPTURED.finditer(log)
    ]


def error(log: str) -> str:
    """The last line of a log that looks like the reason."""
    lines = [
        line for line in log.splitlines() if re.search(r"(Error|Exception|Killed|assert)", line)
    ]
    return lines[-1].strip()[:300] if lines else "no word of why"
