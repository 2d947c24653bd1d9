"""Compare two engines' answers, and check that one engine's graph was really used: plain data in, verdicts out.

Two runs of one model in bfloat16 differ by rounding whenever a matrix product gets another shape (a padded batch, other
requests beside it). A token may differ only where the reference itself was undecided: its two best log-probabilities
closer than TIE. From such a token on, the two texts are different ones, and nothing behind it is compared.

Inductor writes kernels of its own, which round otherwise in every layer. In a dense model that stays small. Where a
router picks experts, a pair of equally good ones now and then changes places: a few tokens are far off and the rest as
near as ever. ROUTED allows for that share and no more; an error in the graph moves most tokens (the op that overwrote its
input: 50 of 76 first tokens wrong, 0.56 off on average). What is not a number is wrong under either.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

TOLERANCE = 0.15  # largest difference of a log-probability; logits have a standard deviation of about 2
TIE = 2 * TOLERANCE  # two candidates, each off by at most the tolerance
MEMORY = 4 * TOLERANCE  # what another beginning of the prompt must at least change somewhere


@dataclass(frozen=True)
class Limits:
    """What may differ. mean: of all compared log-probabilities; far: the share of tokens that may be off by more than
    TOLERANCE, or be others although the reference was decided; compared: the share that must have been looked at before
    ties ended it, or ties could hide a wrong answer."""

    mean: float
    far: float
    compared: float


STRICT, ROUTED = Limits(0.02, 0.0, 0.8), Limits(0.05, 0.04, 0.6)


@dataclass(frozen=True)
class Verdict:
    """One check. what: the check's name; good: passed; why: one sentence; numbers: what it rests on."""

    what: str
    good: bool
    why: str
    numbers: dict = field(default_factory=dict)

    def as_json(self) -> dict:
        return asdict(self)


@dataclass
class Tally:
    """Running numbers of one comparison. offered: the reference's tokens; far: log-probabilities off by more than TOLERANCE;
    wrong: prompts with another token; broken: prompts with missing tokens or no numbers."""

    offered: int = 0
    tokens: int = 0
    ties: int = 0
    far: int = 0
    worst: float = 0.0
    total: float = 0.0
    worst_at: str = ""
    wrong: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def add(self, where: str, left: dict, right: dict) -> None:
        """Compare one prompt's answer with the reference's (`right`), token by token, up to the first tie."""
        self.offered += len(right["tokens"])
        if len(left["tokens"]) != len(right["tokens"]):
            self.broken.append(f"{where}: {len(left['tokens'])} tokens, not {len(right['tokens'])}")
            return
        for step, (mine, reference) in enumerate(zip(left["tokens"], right["tokens"])):
            if math.isnan(left["logprobs"][step]):
                self.broken.append(f"{where}: the log-probability of token {step} is not a number")
                return
            if mine != reference:
                margin = right["best"][step][0] - right["best"][step][1]
                if margin < TIE:
                    self.ties += 1
                else:
                    self.wrong.append(f"{where}: token {step} is {mine}, not {reference}, which led by {margin:.3f}")
                return
            off = abs(left["logprobs"][step] - right["logprobs"][step])
            self.tokens, self.total, self.far = self.tokens + 1, self.total + off, self.far + (off > TOLERANCE)
            if off > self.worst:
                self.worst, self.worst_at = off, f"{where}, token {step}"

    @property
    def mean(self) -> float:
        return self.total / self.tokens if self.tokens else math.nan

    @property
    def far_share(self) -> float:
        """Of all tokens looked at, those that are far off or wrong."""
        return (self.far + len(self.wrong)) / max(1, self.tokens + self.ties + len(self.wrong))

    def numbers(self) -> dict:
        return {
            "tokens": self.tokens, "ties": self.ties, "worst": round(self.worst, 5), "mean": round(self.mean, 6) if self.tokens else None,
            "far": self.far, "wrong": len(self.wrong), "broken": len(self.broken),
        }  # fmt: skip


def same_answers(what: str, left: dict, right: dict, limits: Limits = STRICT) -> Verdict:
    """Whether two passes (call -> answers) agree; `right` is the reference."""
    tally = Tally()
    for call in right:
        for number, (mine, reference) in enumerate(zip(left[call]["answers"], right[call]["answers"])):
            tally.add(f"{call}[{number}]", mine, reference)
    fault = _fault(tally, limits)
    if fault:
        return Verdict(what, False, fault, tally.numbers())
    far = f", {tally.far + len(tally.wrong)} of them far off" if tally.far or tally.wrong else ""
    return Verdict(what, True, f"{tally.tokens} tokens alike ({tally.ties} ties){far}, log-probabilities within {tally.worst:.4f} of each other", tally.numbers())


def _fault(tally: Tally, limits: Limits) -> str:
    if tally.broken:
        return f"{len(tally.broken)} prompts have no proper answer, first {tally.broken[0]}"
    if not tally.tokens and not tally.wrong:
        return "no token could be compared"
    if tally.far_share > limits.far and tally.wrong:
        return f"{len(tally.wrong)} prompts answered otherwise, first {tally.wrong[0]}"
    if tally.far_share > limits.far:
        return f"log-probabilities differ by up to {tally.worst:.4f} ({tally.worst_at}), allowed is {TOLERANCE}" + (f" for all but {limits.far:.0%}" if limits.far else "")
    if tally.tokens < limits.compared * tally.offered:
        return f"only {tally.tokens} of {tally.offered} tokens could be compared before a tie"
    if tally.mean > limits.mean:
        return f"log-probabilities differ by {tally.mean:.4f} on average, allowed is {limits.mean}"
    return ""


def remembers(answers: dict, pairs: list[tuple[str, str]]) -> Verdict:
    """Whether answers depend on a prompt's beginning: without that, no comparison would see a wrong state."""
    gaps = {}
    for left, right in pairs:
        one, two = (answers[name]["answers"][0] for name in (left, right))
        gaps[left] = math.inf if one["tokens"] != two["tokens"] else max(abs(a - b) for a, b in zip(one["logprobs"], two["logprobs"]))
    worst = min(gaps.values())
    shown = {name: "other tokens" if gap == math.inf else round(gap, 4) for name, gap in gaps.items()}
    return Verdict("the answers depend on the prompt's beginning", worst > MEMORY, f"least difference: {shown[min(gaps, key=gaps.get)]}", shown)


def varied(answers: dict) -> Verdict:
    """Whether different prompts get different tokens."""
    first = [tuple(answer["tokens"]) for call in answers.values() for answer in call["answers"]]
    return Verdict("different prompts get different answers", len(set(first)) > 0.8 * len(first), f"{len(set(first))} different answers to {len(first)} prompts")


def hits(passes: dict) -> Verdict:
    """Whether the calls that continue earlier prompts found them in the cache, on every pass."""
    missed = [f"{name}/{call}" for name, answers in passes.items() for call, got in answers.items() if call.startswith("prefix-") for answer in got["answers"] if not answer["cached"]]
    found = sum(answer["cached"] for call, got in passes["cold"].items() if call.startswith("prefix-") for answer in got["answers"])
    return Verdict("prompts that continue earlier ones hit the cache", not missed, f"missed in {missed[0]}" if missed else f"{found} cached prompt tokens on the first pass", {"cached": found, "missed": len(missed)})


def graph_used(prefills: list[dict], sizes: list[int], wanted: bool) -> Verdict:
    """Whether every prefill that fits a captured size launched graphs (wanted), or none did (not wanted)."""
    what = "every prefill that fits ran on the graph" if wanted else "no prefill ran on a graph"
    fitting = [line for line in prefills if line["tokens"] <= max(sizes)]
    on_graph = [line for line in prefills if line["runner"] and line["launches"]]
    numbers = {
        "prefills": len(prefills), "fitting": len(fitting), "on_graph": len(on_graph), "launches": sum(line["launches"] for line in prefills),
        "with_several_requests": sum(line["requests"] > 1 for line in on_graph), "padded": sum(line["tokens"] not in sizes for line in on_graph),
    }  # fmt: skip
    if not prefills:
        return Verdict(what, False, "the watch saw no prefill", numbers)
    if not wanted:
        return Verdict(what, not on_graph, f"{len(on_graph)} of {len(prefills)} did", numbers)
    missed = [line for line in fitting if not (line["runner"] and line["launches"])]
    if missed:
        return Verdict(what, False, f"{len(missed)} of {len(fitting)} did not, first one of {missed[0]['tokens']} tokens", numbers)
    return Verdict(what, bool(fitting), f"{len(on_graph)} of {len(prefills)}, {numbers['launches']} graph launches", numbers)
