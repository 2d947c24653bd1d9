"""What a server returns beside tokens: hidden states and routed experts. Standard library only.

Both are kept for a prompt's own positions. Of a hidden state only the first features are kept:
they show a wrong row as well as all do.
"""

from __future__ import annotations

import array
import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import compare

FEATURES = 16
TOP = "experts"
FLIPPED = 0.02  # share of choices that rounding may exchange where nothing is known of it
# and at most, whatever eager prefill itself exchanges: wrong ones are nearly all others
LARGEST = 0.2
OF_CALL = 0.5  # of the choices of one prompt; one of 16 is always allowed


def kept(info: dict, prompt_tokens: int) -> dict:
    """What is kept of an answer's meta_info; {} where the server returned neither."""
    found = {}
    if info.get("hidden_states"):
        found["hidden"] = [row[:FEATURES] for row in _rows(info["hidden_states"][0])]
    if info.get("routed_experts") is not None:
        found[TOP] = _numbers(info["routed_experts"]), prompt_tokens
    return found


def _rows(states: object) -> list[list[float]]:
    """The rows of a prompt: releases return one row for one token without its list."""
    rows = states.tolist() if hasattr(states, "tolist") else states
    return rows if isinstance(rows[0], list) else [rows]


def _numbers(said: object) -> list[int]:
    """Expert numbers: base64 of 32-bit integers, or a tensor where no detokenizer packed it."""
    if not isinstance(said, str):
        return said.flatten().tolist()
    return array.array("i", base64.b64decode(said)).tolist()


def distances(mine: list[list[float]], reference: list[list[float]]) -> list[float]:
    """How far each row is from the reference's, as a share of the latter's length."""
    if len(mine) != len(reference):
        return [math.nan] * max(1, len(reference))
    return [_apart(left, right) for left, right in zip(mine, reference)]


def _apart(left: list[float], right: list[float]) -> float:
    length = math.sqrt(sum(value * value for value in right))
    off = math.sqrt(sum((a - b) ** 2 for a, b in zip(left, right, strict=True)))
    return off / length if length else (math.inf if off else 0.0)


def as_answers(mine: dict, reference: dict) -> tuple[dict, dict]:
    """Two passes as compare.tally reads them: each row's distance in place of a log-probability's.
    Calls without hidden states are left out."""
    left, right = {}, {}
    for name, call in reference.items():
        pairs = [
            (one.get("hidden", []), other["hidden"])
            for one, other in zip(mine[name]["answers"], call["answers"], strict=True)
            if "hidden" in other
        ]
        if pairs:
            found = [distances(*pair) for pair in pairs]
            left[name] = {"answers": [_answer(rows) for rows in found]}
            right[name] = {"answers": [_answer([0.0] * len(rows)) for rows in found]}
    return left, right


def same_rows(what: str, mine: dict, reference: dict, limits: compare.Limits) -> compare.Verdict:
    """Whether hidden states are those of eager prefill, by the limits of the answers. A router
    exchanges experts at single positions of many prompts: so these are not counted by prompt, but
    no prompt may be far off at half of its positions."""
    left, right = as_answers(mine, reference)
    found = compare.same_answers(what, left, right, replace(limits, kind=1.0, control=None))
    for name, call in left.items():
        for number, answer in enumerate(call["answers"]):
            off = sum(value > compare.TOLERANCE for value in answer["logprobs"])
            if found.good and off > OF_CALL * max(16, len(answer["logprobs"])):
                why = f"{off} of {len(answer['logprobs'])} rows of {name}[{number}] are far off"
                return compare.Verdict(what, False, why, found.numbers)
    return found


def _answer(values: list[float]) -> dict:
    return {"tokens": [0] * len(values), "logprobs": values, "best": [[0.0, -9.0]] * len(values)}


@dataclass
class Choices:
    """How often experts were chosen otherwise. choices: of a layer for a position; other: those
    that differ; worst: the largest share of one prompt, and worst_at where; broken: prompts without
    their experts."""

    choices: int = 0
    other: int = 0
    worst: float = 0.0
    worst_at: str = ""
    broken: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.other / max(1, self.choices)


def choices(mine: dict, reference: dict, layers: int, top: int) -> Choices:
    """A pass's experts against the reference's, for each prompt's own positions. layers: of the
    model, each with a router; top: experts of one choice, whose order says nothing."""
    found = Choices()
    for name, call in reference.items():
        pairs = zip(mine[name]["answers"], call["answers"], strict=True)
        for number, (one, other) in enumerate(pairs):
            parts = [_choices(answer.get(TOP), layers, top) for answer in (one, other)]
            _add(found, f"{name}[{number}]", *parts, top)
    return found


def _choices(kept: Sequence | None, layers: int, top: int) -> list[frozenset[int]]:
    """Position by position, layer by layer: behind the prompt's come those of what was answered."""
    numbers, prompt_tokens = kept or ((), 0)
    count = prompt_tokens * layers * top
    if len(numbers) < count:
        return []
    return [frozenset(numbers[at : at + top]) for at in range(0, count, top)]


def _add(found: Choices, where: str, mine: list, reference: list, top: int) -> None:
    if not reference or len(mine) != len(reference):
        found.broken.append(f"{where}: {len(mine)} choices, not {len(reference)}")
        return
    if any(len(choice) < top for choice in reference):  # as a buffer that nobody wrote has it
        found.broken.append(f"{where}: the reference names an expert twice")
        return
    differ = sum(a != b for a, b in zip(mine, reference))
    found.choices, found.other = found.choices + len(reference), found.other + differ
    share = differ / max(16, len(reference))
    if share > found.worst:
        found.worst, found.worst_at = share, where


def same_choices(what: str, found: Choices, control: Choices | None) -> compare.Verdict:
    """Whether experts are those of eager prefill, but for what rounding exchanges. control: eager
    prefill against itself in other batches. Twice its share is allowed."""
    usual = control.share if control else 0.0
    allowed = min(LARGEST, max(FLIPPED, 2 * usual))
    numbers = {"choices": found.choices, "other": found.other, "control": round(usual, 5)}
    if found.broken:
        why = f"{len(found.broken)} prompts have no proper experts, first {found.broken[0]}"
        return compare.Verdict(what, False, why, numbers)
    why = f"{found.other} of {found.choices} choices are others, allowed {allowed:.2%};"
    why += f" eager prefill exchanges {usual:.2%}"
    if found.worst > OF_CALL:
        why += f"; {found.worst:.0%} in {found.worst_at}"
    good = bool(found.choices) and found.share <= allowed and found.worst <= OF_CALL
    return compare.Verdict(what, good, why, numbers)
