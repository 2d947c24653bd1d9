"""What the answers of a server with other arguments must stand up to (settings.py).

Answers must agree as compare.py says, and what else is returned too. Prefills that ran eagerly are
counted, each with its reason: one without a reason is a fault. Of several GPUs' ranks each is
looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import cases
import compare
import graphs
import judging
import launch
import models
import modes
import returned
from experiment import QUEUE, otherwise

RETURNS = {"return_hidden_states": True, "return_routed_experts": True}
TRACKS_STATES, DP_RETURNS, ROWS_OF_RANKS = "extra-buffer", "dp-returns", "rows-of-ranks"


def alone_of(name: str) -> str:
    """The pass that asks another one's prompts in other batches: alone, where it has batches
    enough."""
    if name == cases.COLD:
        return cases.ALONE
    return f"{name}{cases.ASKED_BESIDE if name == cases.RETURNED else cases.ASKED_ALONE}"


def judge(
    place: launch.Place, one: launch.Job, jobs: Sequence[launch.Job], facts: dict, ask: dict
) -> dict:
    """One server's result with all its verdicts. ask: generate()'s words of the setting's
    passes."""
    plan = one.plan
    found = {"experiment": plan["setting"]} | judging.about(one)
    if one.code != 0:
        return found | judging.without_answer(one, judging.log_of(place, one))
    result, reference = within_passes(judging.answers(one)), judging.reference_of(one, jobs)
    verdicts = checks(plan, result, reference, facts, ask)
    return found | judging.facts_of(result) | judging.verdict(one, reference, verdicts)


def within_passes(result: dict) -> dict:
    """A result with the prefills of what was asked alone: before that a server may try kernels. A
    runner's first line, wherever it stands, notes what was captured."""
    calls = {(name, call): of[call] for name, of in result["passes"].items() for call in of}
    noted = (line["captured"] for line in result["prefills"] if line.get("captured"))
    return result | {"prefills": within(result["prefills"], calls), "sizes": next(noted, [])}


def within(prefills: Sequence[dict], answers: Mapping[Any, dict]) -> list[dict]:
    """The prefills from the first of some calls to the last, by their answers."""
    began = min(call["from"] for call in answers.values())
    ended = max(call["to"] for call in answers.values())
    return [line for line in prefills if began <= line["at"] <= ended]


def checks(
    plan: dict, result: dict, reference: dict | None, facts: dict, ask: dict
) -> list[compare.Verdict]:
    """What one server's answers must stand up to. reference: its eager one's result."""
    graph, router = plan["mode"] in modes.GRAPHS, models.has_router(models.MODELS[plan["of"]])
    found = [
        graphs.flags_known(result["flags"], result["dropped_flags"]),
        ran(result["prefills"], graph),
    ]
    if plan["ranks"] > 1:
        found.append(ranks(result["prefills"], plan, graph))
    if not graph:
        usual = control(result["passes"])
        found.append(compare.against_itself(usual, router))
        found += mixed_eagerly(result["passes"], compare.limits(router, False, usual))
    elif facts["without"] != QUEUE and graphs.reports(result["report"]):
        found.append(graphs.reported(result["report"], plan["of"]))
    if plan["setting"].startswith("context-") and graph and modes.before(facts["version"], 18):
        # from 0.5.18 on a longer size is captured as several requests
        found.append(sizes_within(result["sizes"], cases.SHORT_CONTEXT))
    if graph and reference:
        both = result["passes"], reference["passes"], router
        agree = agreement(plan, *both) + given_back(plan, ask, *both)
        found += [otherwise(agree, facts["without"])] if must_fail(plan, facts) else agree
    # each of its ranks has a cache
    if cases.WARM in result["passes"] and "dp_size" not in plan["engine"]:
        found.append(graphs.hits(judging.in_cache(result["passes"])))
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
        each = (answer for call in answers.values() for answer in call["answers"])
        bare = all("logprobs" not in answer for answer in each)
        what = f"agrees with eager prefill, {name}{', tokens alone' if bare else ''}"
        found.append(compare.same_answers(what, answers, right, limits))
    return found


def must_fail(plan: dict, facts: dict) -> bool:
    """Whether a graph is wrong without the queue's patch. It leaves wrong states in the prefix
    cache in 0.5.14 to 0.5.16 where drafts are verified. 0.5.13's breakable graph is the queue's
    own, whose breaks get the scheduler's batch; the release's own starts no NemotronH. It returns
    another rank's experts from 0.5.14 on."""
    if plan["setting"] == DP_RETURNS:
        return facts["without"] == ROWS_OF_RANKS and not modes.before(facts["version"], 14)
    asked = facts["without"] and plan["setting"] == TRACKS_STATES
    return bool(asked) and models.has_drafts(plan["of"]) and not modes.before(facts["version"], 14)


def given_back(
    plan: dict, ask: dict, mine: dict, reference: dict, router: bool
) -> list[compare.Verdict]:
    """Hidden states and routed experts, where they were asked for."""
    name = next((name for name, words in ask.items() if words.keys() & RETURNS), None)
    if name is None:
        return []
    right, config = reference[name], models.MODELS[plan["of"]]
    alone = cases.gathered(reference[alone_of(name)], cases.of_pass(name))
    batches = {call: right[call] for call in alone}
    found = []
    if "return_hidden_states" in ask[name]:
        rows = compare.tally(returned.as_answers(alone, batches))
        limits = compare.limits(router, plan["mode"] == modes.INDUCTOR, rows)
        found = [returned.same_rows("hidden states are eager prefill's", mine[name], right, limits)]
    if router:
        shape = config["num_hidden_layers"], config["num_experts_per_tok"]
        usual = returned.choices(alone, batches, *shape)
        chosen = returned.choices(mine[name], right, *shape)
        found.append(returned.same_choices("routed experts are eager prefill's", chosen, usual))
    return found


def counted(prefills: Sequence[dict]) -> dict:
    """How many prefills ran on a graph, and why the others did not."""
    eager = [line for line in prefills if not graphs.on_graph(line)]
    reasons = Counter(line.get("why") or "" for line in eager)
    return {
        "all": len(prefills),
        "on_graph": len(prefills) - len(eager),
        "eager": dict(reasons.most_common()),
    }


def ran(prefills: Sequence[dict], graph: bool) -> compare.Verdict:
    """Whether prefills ran on the graph, and each that did not says why; none, on a reference."""
    seen = counted(prefills)
    on, count = seen["on_graph"], seen["all"]
    if not graph:
        what, good = "no prefill ran on a graph", bool(count) and not on
        return compare.Verdict(what, good, f"{on} of {count} did", seen)
    eager = [f"{count} × {why or 'no reason'}" for why, count in seen["eager"].items()]
    why = f"{on} of {count} on the graph" + (f"; eagerly: {'; '.join(eager)}" if eager else "")
    what = "prefills ran on the graph, and the others say why not"
    return compare.Verdict(what, on > 0 and "" not in seen["eager"], why, seen)


def ranks(prefills: Sequence[dict], plan: dict, graph: bool) -> compare.Verdict:
    """Whether every rank ran prefills, and where they share each one, all ran it the same way."""
    by_rank: dict[str, list[bool]] = {}
    for line in prefills:
        by_rank.setdefault(line["process"], []).append(graphs.on_graph(line))
    said = ", ".join(f"{sum(rank)} of {len(rank)}" for rank in by_rank.values())
    alike = "dp_size" in plan["engine"] or len(set(map(tuple, by_rank.values()))) == 1
    all_ran = len(by_rank) == plan["ranks"] and (not graph or all(map(any, by_rank.values())))
    why = f"{len(by_rank)} ranks of {plan['ranks']}, on the graph: {said or 'none'}"
    return compare.Verdict("every rank ran its prefills alike", all_ran and alike, why)


def sizes_within(sizes: Sequence[int], context: int) -> compare.Verdict:
    """Whether no graph was captured for more tokens than the context has."""
    why = f"{len(sizes)} sizes, up to {sizes[-1]}" if sizes else "no captured size was seen"
    good = bool(sizes) and sizes[-1] <= context
    return compare.Verdict("no captured size is beyond the context", good, why)


def mixed_eagerly(passes: dict, limits: compare.Limits) -> list[compare.Verdict]:
    """Whether eager prefill itself answers the same when it is mixed: else no graph is at fault."""
    if cases.MIXED_EAGERLY not in passes:
        return []
    what = "eager prefill answers the same mixed with decoding, tokens alone"
    return [compare.same_answers(what, passes[cases.MIXED_EAGERLY], passes[cases.MIXED], limits)]


def mixed(prefills: Sequence[dict], answers: dict) -> compare.Verdict:
    """Whether decoding requests were in prefills: else the setting shows nothing."""
    seen = counted([line for line in within(prefills, answers) if line["mode"] == "MIXED"])
    why = f"{seen['all']} were, {seen['on_graph']} of them on the graph"
    return compare.Verdict("prefills were mixed with decoding", seen["all"] > 0, why, seen)
