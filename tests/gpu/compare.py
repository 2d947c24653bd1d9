"""Compare two engines' answers, and check that one engine's graph was really used: plain data in, verdicts out.

Two runs of one model in bfloat16 differ by rounding whenever a matrix product gets another shape (a padded batch, other
requests beside it). A token may differ only where the reference itself was undecided: its two best log-probabilities
closer than a tie. From such a token on, the two texts are different ones, and nothing behind it is compared.

A compiler that fuses rounds otherwise everywhere. In a model with routed experts that sends a token whose router was
nearly undecided to another expert: single tokens move far, the mean hardly. Seen on an H200 with 0.5.9 and inductor: mean
0.016 and worst 0.09 without experts, mean 0.016 to 0.036 and worst 0.46 with them; an op that overwrote its input gave a
mean of 0.56 over the 5 of 608 tokens that could be compared at all. So there the mean and the share decide.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Tolerance:
    """What two runs may differ by. worst, mean: of log-probabilities (logits have a standard deviation of about 2);
    tie: the reference's lead up to which another token is none of the graph's fault; share: of the tokens that must
    have been compared, before such a token ended it."""

    worst: float
    mean: float
    tie: float
    share: float


STRICT = Tolerance(worst=0.15, mean=0.02, tie=0.3, share=0.8)
ROUTED = Tolerance(worst=0.75, mean=0.05, tie=0.75, share=0.6)  # a fusing compiler and routed experts
MEMORY = 4 * STRICT.worst  # what another beginning of the prompt must at least change somewhere


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
    """Running numbers of one comparison. offered: the reference's tokens."""

    tie: float
    offered: int = 0
    tokens: int = 0
    ties: int = 0
    worst: float = 0.0
    total: float = 0.0
    worst_at: str = ""
    wrong: list[str] = field(default_factory=list)

    def add(self, where: str, left: dict, right: dict) -> None:
        """Compare one prompt's answer with the reference's (`right`), token by token, up to the first tie."""
        self.offered += len(right["tokens"])
        if len(left["tokens"]) != len(right["tokens"]):
            self.wrong.append(f"{where}: {len(left['tokens'])} tokens, not {len(right['tokens'])}")
            return
        for step, (mine, reference) in enumerate(zip(left["tokens"], right["tokens"])):
            if mine != reference:
                margin = right["best"][step][0] - right["best"][step][1]
                if margin < self.tie:
                    self.ties += 1
                else:
                    self.wrong.append(f"{where}: token {step} is {mine}, not {reference}, which led by {margin:.3f}")
                return
            off = abs(left["logprobs"][step] - right["logprobs"][step])
            self.tokens, self.total = self.tokens + 1, self.total + off
            if math.isnan(off) or off > self.worst:
                self.worst, self.worst_at = (math.inf if math.isnan(off) else off), f"{where}, token {step}"

    def numbers(self) -> dict:
        mean = self.total / self.tokens if self.tokens else math.nan
        return {"tokens": self.tokens, "ties": self.ties, "worst": round(self.worst, 5), "mean": round(mean, 6), "wrong": len(self.wrong)}


def same_answers(what: str, left: dict, right: dict, allowed: Tolerance = STRICT) -> Verdict:
    """Whether two passes (call -> answers) agree; `right` is the reference."""
    tally = Tally(allowed.tie)
    for call in right:
        for number, (mine, reference) in enumerate(zip(left[call]["answers"], right[call]["answers"])):
            tally.add(f"{call}[{number}]", mine, reference)
    numbers = tally.numbers() | {"allowed": asdict(allowed)}
    if tally.wrong:
        return Verdict(what, False, f"{len(tally.wrong)} prompts answered otherwise, first {tally.wrong[0]}", numbers)
    if not tally.tokens:
        return Verdict(what, False, "no token could be compared", numbers)
    if tally.tokens < allowed.share * tally.offered:
        return Verdict(what, False, f"only {tally.tokens} of {tally.offered} tokens could be compared before a tie", numbers)
    if tally.worst > allowed.worst:
        return Verdict(what, False, f"log-probabilities differ by up to {tally.worst:.4f} ({tally.worst_at}), allowed is {allowed.worst}", numbers)
    if numbers["mean"] > allowed.mean:
        return Verdict(what, False, f"log-probabilities differ by {numbers['mean']:.4f} on average, allowed is {allowed.mean}", numbers)
    return Verdict(what, True, f"{tally.tokens} tokens alike ({tally.ties} ties), log-probabilities within {tally.worst:.4f} of each other", numbers)


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
