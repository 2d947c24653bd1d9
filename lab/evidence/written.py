"""Results as GPU hosts write them: run.py of tests/gpu evidence.json, gain.py gain.json, and each
question of matrix.toml a file of its own name."""

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
    """What every file says: which release and tree a host ran, and on what. tree: hash of the
    patched tree."""

    schema: Literal[1]
    version: str
    tree: str
    tree_untouched: bool
    gpu: Gpu
    torch: Torch
    date: Date
    attention: Attention = USUAL_ATTENTION


class Run(Struct, frozen=True):
    """One model, in one graph mode if it is a proof's."""

    verdict: Verdict
    model: str
    mode: str = ""
    why: str = ""
    loaded: tuple[str, ...] = ()


class Answers(Result, frozen=True, kw_only=True):
    """A proof or a question. loaded: notes of footprints.py that all runs share; a run has the
    others. without: of a question alone, and "queue" in its control."""

    runs: tuple[Run, ...]
    loaded: tuple[str, ...] = ()
    harness: str | None = None
    without: Literal["", "queue"] | None = None


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


def read(file: Path) -> Answers | Times:
    """Raises Refused where the file cannot be read, or naming the field that is wrong."""
    step = f"give the {file.name} as the run left it"
    try:
        content = file.read_bytes()
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise Refused(Problem("no-evidence", str(file), what, step)) from None
    words = (file.name, "bad-evidence", step)
    if "gain" in record.json(content, dict[str, Any], *words):
        return record.json(content, Times, *words)
    return record.json(content, Answers, *words)
