"""Results as GPU hosts write them.

tests/gpu/run.py writes evidence.json, gain.py gain.json, and each question of matrix.toml a file
of its own name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from patchqueue.files import record
from patchqueue.outcome import Problem, Refused

from .results import USUAL_ATTENTION, Attention, Date, Verdict

PROOF, TIMES = "evidence.json", "gain.json"


class Gpu(Struct, frozen=True):
    name: Annotated[str, Meta(pattern="[A-Za-z0-9]")]


class Torch(Struct, frozen=True):
    version: str
    pinned: str
    off_pin: bool


class Result(Struct, frozen=True, kw_only=True):
    """What every file says: which release and tree a host ran, and on what.

    tree: hash of the patched tree.
    """

    schema: Literal[1]
    version: str
    tree: str
    tree_untouched: bool
    gpu: Gpu
    torch: Torch
    date: Date
    attention: Attention = USUAL_ATTENTION


class ProofRun(Struct, frozen=True):
    mode: str
    verdict: Verdict
    model: str
    why: str = ""
    loaded: tuple[str, ...] = ()


class Proof(Result, frozen=True, kw_only=True):
    """loaded: notes of footprints.py that all runs share; a run has the others."""

    runs: tuple[ProofRun, ...]
    loaded: tuple[str, ...] = ()
    harness: str | None = None


class Calls(Struct, frozen=True):
    all: tuple[float, ...] = ()


class Prefills(Struct, frozen=True):
    tokens_per_s: float


class Profile(Struct, frozen=True):
    busy_ms: float


class Served(Struct, frozen=True):
    """One load of requests. later_ms: of tokens behind the first; empty where there are none."""

    output_tokens_per_s: float
    first_ms: dict[str, float]
    input_tokens_per_s: float = 0.0
    later_ms: dict[str, float] | None = None


class Visit(Struct, frozen=True, kw_only=True):
    """One engine of gain.json: a tree's, or a peer's (name, version)."""

    verdict: Verdict
    mode: str = ""
    tree: str = ""
    name: str = ""
    version: str = ""
    why: str = ""
    states: str | None = None
    first_token_ms: dict[str, Calls] = field(default_factory=dict)
    loads: tuple[Prefills, ...] = ()
    profile: dict[str, Profile] = field(default_factory=dict)
    traffic: dict[str, tuple[Served, ...]] = field(default_factory=dict)


class Plan(Struct, frozen=True):
    traffic: tuple[str, ...] = ()


class Times(Result, frozen=True, kw_only=True):
    runs: tuple[Visit, ...]
    model: str
    gain: Plan
    peers: tuple[Visit, ...] = ()
    floor_ms: dict[str, float | None] = field(default_factory=dict)
    subject: str = "nemotron"


class Check(Struct, frozen=True):
    what: str
    good: bool
    why: str = ""


class Answer(Result, frozen=True, kw_only=True):
    """without: "queue" in a control."""

    without: Literal["", "queue"]
    checks: Annotated[tuple[Check, ...], Meta(min_length=1)]


def read(file: Path) -> Proof | Times | Answer:
    step = f"give the {file.name} as the run left it"
    try:
        content = file.read_bytes()
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise Refused(Problem("no-evidence", str(file), what, step)) from None
    words = (file.name, "bad-evidence", step)
    names = record.json(content, dict[str, Any], *words).keys()
    if "gain" in names:
        return record.json(content, Times, *words)
    if "checks" in names:
        return record.json(content, Answer, *words)
    return record.json(content, Proof, *words)
