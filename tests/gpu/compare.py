"""Compare two engines' answers: plain data in, verdicts out. graphs.py says whether a graph
was used.

Two runs of one model in bfloat16 differ by rounding whenever a matrix product gets another shape (a
padded batch, other requests beside it). A token may differ only where the reference itself was
undecided: its two best log-probabilities closer than TIE. From such a token on, nothing is
compared. The reference is eager prefill on a server that has the graph and does not use it.

Where a router picks experts, rounding now and then exchanges a pair of equally good ones: a few
tokens are far off. How often, eager prefill says: it is held against its own answers in other
batches (every prompt of a batch alone, and every prompt behind its own cached beginning). That
control settles what a graph may do:

- a dense model: STRICT, in every mode;
- a model with a router whose control moved no token far: STRICT;
- a model with a router whose control moved some: twice the control's share of far tokens and twice
  its mean, never less than STRICT allows, never more than ROUTED does; a share's last part of a
  token counts as one;
- a server without a graph (see modes.REFERENCE), in a model with a router: ROUTED, since the
  release may pick other kernels there; STRICT in a dense one;
- inductor, in a model with a router: ROUTED, since its own kernels round otherwise in every layer.

Some graphs serve no log-probabilities (commandline.serves_logprobs). Of their answers the tokens
alone are compared, by the same limits.

So that no whole kind of call can be wrong, prompts are counted too, each once that has a far or
another token, by the kind of their call (the first word of its name). Where the control speaks, no
kind may have more of them than one, or twice the control's in that kind, whichever is more; a kind
that the control does not cover may have one. Under ROUTED, the control's own limit, no more than a
quarter of a kind's prompts may, a part of one counting as one.

A graph mode that is asked again has the same limits against itself. Where it serves no
log-probabilities, eager prefill says where it was undecided, as long as the texts are its own.

An error in the graph moves most tokens (the op that overwrote its input: 50 of 76 first tokens
wrong, 0.56 off on average). What is not a number is wrong under any limits.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

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
                    instead = f"{mine}, not {reference}, which led by {margin:.3f}"
                    self.wrong.append(f"{where}: token {step} is {instead}")
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
    far = f", {found.moved} of them far off" if found.moved else ""
    near = f"log-probabilities within {found.worst:.4f} of each other"
    told = "tokens alone, as the graph serves no log-probabilities" if found.bare else near
    alike = f"{found.tokens} tokens alike ({found.ties} ties){far}, {told}"
    return Verdict(what, not fault, (fault or alike) + basis, found.numbers())


def against_itself(control: Tally, router: bool) -> Verdict:
    """Whether eager prefill in other batches stays within what is allowed at most: else nothing can
    be told from its answers."""
    fault = _fault(control, ROUTED if router else STRICT)
    why = f"{_share(control)}, mean difference {control.mean:.4f}, largest {control.worst:.4f}"
    return Verdict(CONTROL, not fault, fault or why, control.numbers())


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
    why = f"up to {far:.2%} far off and {mean:.4f} on average ({seen})"
    return Limits(mean, far, ROUTED.compared, why, control=control.moved_prompts)


def without(router: bool) -> Limits:
    """What a server without a graph may differ by."""
    if router:
        return replace(ROUTED, why="another server's kernels, and a router")
    return replace(STRICT, why="strict, a dense model")


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
        allowed = f"{TOLERANCE}{f' for all but {limits.far:.2%}' if limits.far else ''}"
        apart = f"up to {tally.worst:.4f} ({tally.worst_at})"
        return f"log-probabilities differ by {apart}, allowed is {allowed}"
    for kind, moved in tally.moved_prompts.items():
        if moved > (allowed := limits.prompts(kind, tally.prompts[kind])):
            first = f", first {tally.wrong[0]}" if tally.wrong else ""
            prompts = f"{moved} of {tally.prompts[kind]} prompts of kind {kind}"
            return f"{prompts} have a far or another token, allowed are {allowed}{first}"
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
    what, why = "the answers depend on the prompt's beginning", f"least difference: {shown[least]}"
    return Verdict(what, gaps[least] > MEMORY, why, shown)


def varied(answers: dict) -> Verdict:
    """Whether different prompts get different tokens."""
    first = [tuple(answer["tokens"]) for call in answers.values() for answer in call["answers"]]
    different, count = len(set(first)), len(first)
    why = f"{different} different answers to {count} prompts"
    return Verdict("different prompts get different answers", different > 0.8 * count, why)
