"""Compare two engines' answers, and check that one engine's graph was really used: plain data in,
verdicts out.

Two runs of one model in bfloat16 differ by rounding whenever a matrix product gets another shape (a
padded batch, other requests beside it). A token may differ only where the reference itself was
undecided: its two best log-probabilities closer than TIE. From such a token on, the two texts are
different ones, and nothing behind it is compared.

What a mode is held against is eager prefill on a server that has the graph too, and only does not
use it.

Where a router picks experts, rounding that otherwise stays small now and then exchanges a pair of
equally good ones: a few tokens are far off and the rest as near as ever. How often, the model
itself says: eager prefill is held against its own answers in other batches (every prompt of a batch
alone, and every prompt behind its own cached beginning), where no graph is involved. That control
settles what a graph may do:

- a dense model: STRICT, in every mode;
- a model with a router whose control moved no token far: STRICT;
- a model with a router whose control moved some: twice the control's share of far tokens and twice
  its mean, never less than STRICT allows, never more than ROUTED does, and whole tokens: a share's
  last part of one counts as one;
- a server without a graph (see modes.REFERENCE), in a model with a router: ROUTED, since the
  release may pick other kernels there; STRICT in a dense one;
- inductor, in a model with a router: ROUTED. It writes kernels of its own, which round otherwise in
  every layer, so that eager prefill's kernels cannot speak for them.

Some graphs serve no log-probabilities (commandline.serves_logprobs). Of their answers the tokens
alone are compared, by the same limits.

Shares of tokens alone would let a whole kind of call be wrong: a wrong prompt ends at its first
token and counts as one. So prompts are counted too, each once that has a far or another token, by
the kind of their call (single, fill, batch, chunked, prefix, memory, size: the first word of the
call's name). Where the control speaks, no kind may have more of them than one, or twice the
control's in that kind, whichever is more; a kind that the control does not cover (size) may have
one. Under ROUTED, the control's own limit, no more than a quarter of a kind's prompts may, a part
of one counting as one.

A graph mode that is asked again has the same limits against itself: requests meet in other batches
then. Where it serves no log-probabilities, eager prefill says where it was undecided, as long as
the texts are its own.

An error in the graph moves most tokens (the op that overwrote its input: 50 of 76 first tokens
wrong, 0.56 off on average). What is not a number is wrong under any limits.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

REPORTS = "prefill-graph/report-verdict"  # the patch that has servers leave a report
# largest difference of a log-probability; logits have a standard deviation of about 2
TOLERANCE = 0.15
TIE = 2 * TOLERANCE  # two candidates, each off by at most the tolerance
MEMORY = 4 * TOLERANCE  # what another beginning of the prompt must at least change somewhere


@dataclass(frozen=True)
class Limits:
    """What may differ. mean: of all compared log-probabilities; far: the share of tokens that may
    be off by more than TOLERANCE, or be others although the reference was decided; compared: the
    share that must have been looked at before ties ended it, or ties could hide a wrong answer.
    why: what justifies these limits. kind: the share of the prompts of one kind of call that may
    have moved, unless control says how many of each kind eager prefill itself moves."""

    mean: float
    far: float
    compared: float
    why: str = ""
    kind: float = 0.25
    control: Counter[str] | None = None

    def prompts(self, kind: str, count: int) -> int:
        """How many of a kind's `count` prompts may have moved."""
        known = self.control is not None
        return max(1, 2 * self.control[kind] if known else math.ceil(self.kind * count))


CONTROL = "eager prefill against itself in other batches"
STRICT, ROUTED = Limits(0.02, 0.0, 0.8), Limits(0.05, 0.04, 0.6)


@dataclass(frozen=True)
class Verdict:
    """One check. what: the check's name; good: passed; why: one sentence; numbers: what it rests
    on."""

    what: str
    good: bool
    why: str
    numbers: dict = field(default_factory=dict)


def verdict_of(checks: Sequence[Verdict]) -> dict:
    """The checks as they are written, and what comes of them: the first that is bad is the
    reason."""
    bad = next((check for check in checks if not check.good), None)
    return {
        "verdict": "failed" if bad else "passed",
        "why": f"{bad.what}: {bad.why}" if bad else "",
        "checks": [asdict(check) for check in checks],
    }


@dataclass
class Tally:
    """Running numbers of one comparison. offered: the reference's tokens; far: log-probabilities
    off by more than TOLERANCE; wrong: prompts with another token; broken: prompts with missing
    tokens or no numbers; prompts, moved_prompts: by kind of call, all and those with a far or
    another token."""

    offered: int = 0
    tokens: int = 0
    ties: int = 0
    far: int = 0
    worst: float = 0.0
    total: float = 0.0
    worst_at: str = ""
    bare: int = 0  # answers without log-probabilities
    wrong: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    prompts: Counter[str] = field(default_factory=Counter)
    moved_prompts: Counter[str] = field(default_factory=Counter)

    def add(self, where: str, left: dict, right: dict) -> None:
        """Compare one prompt's answer with the reference's (`right`). where: begins with the kind
        of the call, then "-"."""
        kind, before = where.partition("-")[0], self.moved
        self._tokens(where, left, right)
        self.prompts[kind] += 1
        self.moved_prompts[kind] += self.moved > before

    def _tokens(self, where: str, left: dict, right: dict) -> None:
        """Token by token, up to the first tie. Where an answer has no log-probabilities, its tokens
        alone are compared; where neither has, nothing is a tie."""
        self.bare += "logprobs" not in left
        right = {"logprobs": [0.0] * len(right["tokens"])} | right
        left = {"logprobs": right["logprobs"]} | left
        self.offered += len(right["tokens"])
        if len(left["tokens"]) != len(right["tokens"]):
            self.broken.append(f"{where}: {len(left['tokens'])} tokens, not {len(right['tokens'])}")
            return
        for step, (mine, reference) in enumerate(zip(left["tokens"], right["tokens"])):
            if math.isnan(left["logprobs"][step]) or math.isnan(right["logprobs"][step]):
                self.broken.append(f"{where}: the log-probability of token {step} is not a number")
                return
            if mine != reference:
                best = right["best"][step] if "best" in right else (math.inf, 0.0)
                margin = best[0] - best[1]
                if margin < TIE:
                    self.ties += 1
                else:
                    self.wrong.append(
                        f"{where}: token {step} is {mine}, not {reference}, which led by"
                        f" {margin:.3f}"
                    )
                return
            off = abs(left["logprobs"][step] - right["logprobs"][step])
            self.tokens, self.total = self.tokens + 1, self.total + off
            self.far += off > TOLERANCE
            if off > self.worst:
                self.worst, self.worst_at = off, f"{where}, token {step}"

    @property
    def mean(self) -> float:
        return self.total / self.tokens if self.tokens else math.nan

    @property
    def looked_at(self) -> int:
        return self.tokens + self.ties + len(self.wrong)

    @property
    def moved(self) -> int:
        """The tokens that are far off or wrong."""
        return self.far + len(self.wrong)

    @property
    def far_share(self) -> float:
        return self.moved / max(1, self.looked_at)

    def numbers(self) -> dict:
        return {
            "tokens": self.tokens,
            "ties": self.ties,
            "worst": round(self.worst, 5),
            "mean": round(self.mean, 6) if self.tokens else None,
            "far": self.far,
            "wrong": len(self.wrong),
            "broken": len(self.broken),
            "moved_prompts": {
                kind: f"{count} of {self.prompts[kind]}"
                for kind, count in self.moved_prompts.items()
                if count
            },
        }


def tally(*pairs: tuple[dict, dict]) -> Tally:
    """Every answer of the left passes (call -> answers) compared with the right one's, the
    references."""
    found = Tally()
    for left, right in pairs:
        for call in right:
            for number, (mine, reference) in enumerate(
                zip(left[call]["answers"], right[call]["answers"], strict=True)
            ):
                found.add(f"{call}[{number}]", mine, reference)
    return found


def same_answers(what: str, left: dict, right: dict, limits: Limits = STRICT) -> Verdict:
    """Whether two passes agree; `right` is the reference."""
    found = tally((left, right))
    basis = f"; limits: {limits.why}" if limits.why else ""
    fault = _fault(found, limits)
    if fault:
        return Verdict(what, False, fault + basis, found.numbers())
    far = f", {found.moved} of them far off" if found.moved else ""
    near = f"log-probabilities within {found.worst:.4f} of each other"
    told = "tokens alone, as the graph serves no log-probabilities" if found.bare else near
    return Verdict(
        what,
        True,
        f"{found.tokens} tokens alike ({found.ties} ties){far}, {told}{basis}",
        found.numbers(),
    )


def against_itself(control: Tally, router: bool) -> Verdict:
    """Whether eager prefill in other batches stays within what is allowed at most: else nothing can
    be told from its answers."""
    fault = _fault(control, ROUTED if router else STRICT)
    return Verdict(
        CONTROL,
        not fault,
        fault
        or f"{_share(control)}, mean difference {control.mean:.4f}, largest {control.worst:.4f}",
        control.numbers(),
    )


def limits(router: bool, inductor: bool, control: Tally | None) -> Limits:
    """What a graph mode's answers may differ by: the rule above. control: eager prefill against
    itself; None where unknown."""
    if not router:
        return replace(STRICT, why="strict, a dense model")
    seen = f"{CONTROL}: {_share(control)}" if control else f"no {CONTROL}"
    if inductor:
        return replace(ROUTED, why=f"inductor with a router ({seen})")
    if not control or not control.moved:
        return replace(STRICT, why=f"strict ({seen})")
    mean = min(ROUTED.mean, max(STRICT.mean, 2 * control.mean))
    far = min(ROUTED.far, 2 * control.far_share)
    return Limits(
        mean,
        far,
        ROUTED.compared,
        control=control.moved_prompts,
        why=f"up to {far:.2%} far off and {mean:.4f} on average ({seen})",
    )


def without(router: bool) -> Limits:
    """What a server without a graph may differ by."""
    return (
        replace(ROUTED, why="another server's kernels, and a router")
        if router
        else replace(STRICT, why="strict, a dense model")
    )


def _share(control: Tally) -> str:
    return f"{control.moved} of {control.looked_at} tokens far off"


def _fault(tally: Tally, limits: Limits) -> str:
    if tally.broken:
        return f"{len(tally.broken)} prompts have no proper answer, first {tally.broken[0]}"
    if not tally.tokens and not tally.wrong:
        return "no token could be compared"
    too_many = tally.moved > math.ceil(limits.far * tally.looked_at)
    if too_many and tally.wrong:
        return f"{len(tally.wrong)} prompts answered otherwise, first {tally.wrong[0]}"
    if too_many:
        return (
            f"log-probabilities differ by up to {tally.worst:.4f} ({tally.worst_at}), allowed is"
            f" {TOLERANCE}" + (f" for all but {limits.far:.2%}" if limits.far else "")
        )
    for kind, moved in tally.moved_prompts.items():
        if moved > (allowed := limits.prompts(kind, tally.prompts[kind])):
            first = f", first {tally.wrong[0]}" if tally.wrong else ""
            return (
                f"{moved} of {tally.prompts[kind]} prompts of kind {kind} have a far or another"
                f" token, allowed are {allowed}{first}"
            )
    if tally.tokens < limits.compared * tally.offered:
        return f"only {tally.tokens} of {tally.offered} tokens could be compared before a tie"
    if tally.mean > limits.mean:
        return f"log-probabilities differ by {tally.mean:.4f} on average, allowed is {limits.mean}"
    return ""


def with_leads(mine: dict, reference: dict) -> dict:
    """A pass of answers without log-probabilities, each with the reference's two best up to its
    first token that is another one than the reference's; behind it, none is a tie."""

    def lead(answer: dict, right: dict) -> dict:
        if "best" in answer or "best" not in right:
            return answer
        pairs = zip(answer["tokens"], right["tokens"])
        alike = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        decided = [[math.inf, 0.0]] * (len(answer["tokens"]) - alike - 1)
        return answer | {"best": right["best"][: alike + 1] + decided}

    def led(call: str) -> list[dict]:
        pairs = zip(mine[call]["answers"], reference[call]["answers"], strict=True)
        return [lead(*pair) for pair in pairs]

    return {call: mine[call] | {"answers": led(call)} for call in mine}


def remembers(answers: dict, pairs: list[tuple[str, str]]) -> Verdict:
    """Whether answers depend on a prompt's beginning: without that, no comparison would see a wrong
    state."""
    gaps = {}
    for names in pairs:
        one, two = (answers[name]["answers"][0] for name in names)
        apart = (abs(a - b) for a, b in zip(one["logprobs"], two["logprobs"]))
        gaps[names[0]] = math.inf if one["tokens"] != two["tokens"] else max(apart)
    shown = {
        name: "other tokens" if gap == math.inf else round(gap, 4) for name, gap in gaps.items()
    }
    least = min(gaps, key=lambda name: gaps[name])
    return Verdict(
        "the answers depend on the prompt's beginning",
        gaps[least] > MEMORY,
        f"least difference: {shown[least]}",
        shown,
    )


def varied(answers: dict) -> Verdict:
    """Whether different prompts get different tokens."""
    first = [tuple(answer["tokens"]) for call in answers.values() for answer in call["answers"]]
    return Verdict(
        "different prompts get different answers",
        len(set(first)) > 0.8 * len(first),
        f"{len(set(first))} different answers to {len(first)} prompts",
    )


def _cached(passes: dict, name: str, kinds: tuple[str, ...]) -> list[tuple[str, int]]:
    """(where, cached prompt tokens) of each answer of a pass to calls of some kinds."""
    calls = ((call, got) for call, got in passes[name].items() if call.startswith(kinds))
    return [(f"{name}/{call}", one["cached"]) for call, got in calls for one in got["answers"]]


def hits(passes: dict) -> Verdict:
    """Whether the calls that continue earlier prompts found them in the cache, on every pass."""
    kinds = ("prefix-",)
    missed = [where for name in passes for where, n in _cached(passes, name, kinds) if not n]
    found = sum(cached for _, cached in _cached(passes, "cold", kinds))
    return Verdict(
        "prompts that continue earlier ones hit the cache",
        not missed,
        f"missed in {missed[0]}" if missed else f"{found} cached prompt tokens on the first pass",
        {"cached": found, "missed": len(missed)},
    )


def emptied(passes: dict) -> Verdict:
    """Whether the cache was empty before every pass that must find it so: prompts that continue no
    others found nothing there."""
    apart = {"cold": ("single-",), "again": ("single-",), "alone": ("fill-", "batch-")}
    asked = [one for name in apart if name in passes for one in _cached(passes, name, apart[name])]
    found = [where for where, cached in asked if cached]
    why = f"{len(found)} of {len(asked)} hit it, first {found[0]}" if found else ""
    why = why or f"none of {len(asked)} hit it"
    return Verdict("prompts of their own find an empty cache", not found, why)


def flags_known(flags: dict, dropped: Collection[str]) -> Verdict:
    """Whether the release took every flag of the mode."""
    lost = sorted(set(flags).intersection(dropped))
    return Verdict(
        "the release knows every flag of the mode",
        not lost,
        f"it does not know {' '.join(lost)}" if lost else f"{len(flags)} flags",
    )


def has_graph(captured: list[dict], report: list[dict]) -> Verdict:
    """Whether the reference's server has a prefill graph, by its log or the queue's report: else
    its kernels may be others."""
    logged = [
        one["what"] for one in captured if "piecewise" in one["what"] or "prefill" in one["what"]
    ]
    on = [entry["feature"] for entry in report if entry["verdict"] == "on"]
    return Verdict(
        "the reference's server has a prefill graph",
        bool(logged or on),
        f"its log: {', '.join(logged) or 'nothing captured'}; its report:"
        f" {', '.join(on) or 'nothing on'}",
    )


def reports(report: object) -> bool:
    """Whether the tree's servers leave a report: those with the patch that has them say why their
    graph is on or off. A missing report is held against these; a tree that the queue did not make
    has None."""
    tree = report.get("tree", {}) if isinstance(report, dict) else {}
    patches = tree.get("patches", [REPORTS])
    return report is not None and any(name.partition("@")[0] == REPORTS for name in patches)


def servers_of(report: object, model: str) -> list[dict]:
    """What the queue's report says of a model's servers. The first rank alone leaves one."""
    servers = report.get("servers", []) if isinstance(report, dict) else []
    return [server for server in servers if Path(str(server.get("model", ""))).name == model]


def reported(report: object, model: str) -> Verdict:
    """Whether the queue's report says that the graph is on."""
    mine = servers_of(report, model)
    said = "; ".join(f"{server['verdict']}: {server['reason']}" for server in mine)
    return Verdict(
        "the report says that the graph is on",
        bool(mine) and all(server["verdict"] == "on" for server in mine),
        said or "no report",
    )


def fitting(prefills: list[dict], sizes: Collection[int]) -> list[dict]:
    """The prefills that fit a captured size with the padding that the release takes: from 0.5.16 on
    at most to twice the tokens (sglang's model_executor/runner/prefill_cuda_graph_runner.py:695).
    What needs more runs eagerly."""
    padding = next((line["padding"] for line in prefills if line.get("padding")), math.inf)

    def fits(tokens: int) -> bool:
        return any(tokens <= size <= padding * tokens for size in sizes)

    return [line for line in prefills if fits(line["tokens"])]


def on_graph(line: dict) -> bool:
    """Whether a graph ran a prefill."""
    return bool(line["runner"] and line["launches"])


def replayed(
    what: str,
    prefills: list[dict],
    sizes: Collection[int],
    spans: Sequence[tuple[float, float]],
    wanted: bool = True,
) -> Verdict:
    """Whether graphs ran each prefill that fits one, or none; within spans of time alone."""
    fit = [
        line
        for line in fitting(prefills, sizes)
        if any(begin <= line["at"] <= end for begin, end in spans)
    ]
    count = sum(line["launches"] > 0 for line in fit)
    good = bool(fit) and count == (len(fit) if wanted else 0)
    return Verdict(what, good, f"{count} of {len(fit)} that fit a graph")


def graph_used(
    prefills: list[dict],
    sizes: list[int],
    wanted: bool,
    several_wanted: Collection[int] = (2,),
    refusing: str = "",
) -> Verdict:
    """Whether every prefill that fits a captured size launched graphs, of several_wanted requests
    too (wanted); or none did.

    sizes: what must have been captured, no more and no less: a size that is missing is answered by
    the next larger one. refusing: code of a rule by which the release runs prefills of this model
    eagerly; one whose reason shows it does not count as fitting.
    """
    what = "no prefill ran on a graph"
    if wanted:
        what = "every prefill that fits ran on the graph, of several requests too"
    fit = fitting(prefills, sizes)
    refused = [line for line in fit if refusing and refusing in (line.get("why") or "")]
    fit = [line for line in fit if line not in refused]
    ran = list(filter(on_graph, prefills))
    several = sorted({line["requests"] for line in ran if line["requests"] > 1})
    launches = sum(line["launches"] for line in prefills)
    numbers = {
        "prefills": len(prefills),
        "fitting": len(fit),
        "on_graph": len(ran),
        "launches": launches,
        "with_several_requests": sum(line["requests"] > 1 for line in ran),
        "several": several,
        "padded": sum(line["tokens"] not in sizes for line in ran),
    } | ({"refused": len(refused)} if refused else {})
    if not prefills:
        return Verdict(what, False, "the watch saw no prefill", numbers)
    if not wanted:
        return Verdict(what, not ran, f"{len(ran)} of {len(prefills)} did", numbers)
    if fault := _not_used(prefills, fit, sizes, sorted({*several_wanted} - {*several})):
        return Verdict(what, False, fault, numbers)
    why = f"{len(ran)} of {len(prefills)}, with up to {several[-1]} requests,"
    why += f" {launches} graph launches"
    why += f"; {len(refused)} are left out by a rule of the release" if refused else ""
    return Verdict(what, True, why, numbers)


def _not_used(
    prefills: list[dict], fit: list[dict], sizes: list[int], missing: Sequence[int]
) -> str:
    """What keeps prefills from having run on the graph as they should. missing: how many requests
    no prefill on it had."""
    if missed := [line for line in fit if not on_graph(line)]:
        first = missed[0]
        return (
            f"{len(missed)} of {len(fit)} did not, first one of {first['tokens']} tokens and"
            f" {first['requests']} requests" + (f": {first['why']}" if first.get("why") else "")
        )
    captured = next((line["captured"] for line in prefills if "captured" in line), None)
    if captured != sorted(sizes):
        return f"captured for {captured}, not for {sorted(sizes)}"
    if missing:
        count = sum(map(on_graph, prefills))
        return f"none of {count} on the graph had {' or '.join(map(str, missing))} requests"
    return ""
