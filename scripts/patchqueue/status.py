"""The support matrix: what was proven where, and why the rest was not. Made from the queue and evidence/ alone."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from .apply import identity, load_queue
from .evidence import FOLDER
from .outcome import Problem, Refused
from .pins import Pin, Pins
from .series import Queue

README, BEGIN, END = Path("README.md"), "<!-- status -->\n", "<!-- /status -->"
GONE = {">=0.5.22": "the piecewise graph is gone upstream"}
NO_BREAKABLE = {"<0.5.11": "the release has no breakable graph"}


class State(str, enum.Enum):
    """What is known about one feature on one release."""

    PROVEN = "proven"
    FAILED = "failed"
    STALE = "stale"
    NOT_RUN = "not run"
    UPSTREAM = "upstream"
    NOT_APPLICABLE = "not applicable"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Feature:
    """A column. patch: what brings it; models, modes: what tests/gpu must have run to prove it; never: where it cannot be.

    upstream: the first release that has it of its own accord; empty: as the patch's header says.
    """

    name: str
    patch: str
    models: tuple[str, ...]
    mode: str
    never: dict[str, str] = field(default_factory=dict)
    upstream: str = ""


NEMOTRON, QWEN = ("nemotron-h", "nemotron-h-moe"), ("qwen3-next",)
FEATURES = (
    Feature("NemotronH piecewise", "nemotron-h/split-mamba2.patch", NEMOTRON, "piecewise", GONE),
    Feature("NemotronH inductor", "nemotron-h/split-mamba2.patch", NEMOTRON, "piecewise-inductor", GONE),
    Feature("Qwen3-Next piecewise", "qwen3-next/split-gdn.patch", QWEN, "piecewise", GONE),
    Feature("Qwen3-Next inductor", "qwen3-next/split-gdn.patch", QWEN, "piecewise-inductor", GONE),
    Feature("NemotronH breakable", "breakable/pass-embeds-by-name.patch", NEMOTRON, "breakable", NO_BREAKABLE, "0.5.11"),
    Feature("Qwen3-Next breakable", "breakable/pass-embeds-by-name.patch", QWEN, "breakable", NO_BREAKABLE, "0.5.11"),
)


@dataclass(frozen=True)
class Cell:
    """One feature on one release."""

    state: State
    reason: str


def matrix(root: Path, pins: Pins) -> list[tuple[Pin, list[Cell]]]:
    """A row of cells for each pin, newest first. Raises Refused where the queue is broken."""
    queue = load_queue(root)
    return [(pin, [cell(root, queue, pin, feature) for feature in FEATURES]) for pin in reversed(pins.all)]


def cell(root: Path, queue: Queue, pin: Pin, feature: Feature) -> Cell:
    """What is known: from evidence where there is some, else from the queue."""
    known = [judged for file in evidence(root, pin) if (judged := judge(file, queue, pin, feature))]
    best = [State.PROVEN, State.FAILED, State.NOT_APPLICABLE, State.STALE]
    return min(known, key=lambda one: best.index(one.state)) if known else expected(queue, pin, feature)


def evidence(root: Path, pin: Pin) -> list[dict]:
    """What GPU hosts found about a release."""
    files = sorted(file for file in (root / FOLDER / str(pin.version)).glob("*.json") if not file.name.endswith(".bench.json"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def judge(found: dict, queue: Queue, pin: Pin, feature: Feature) -> Cell | None:
    """What one host's runs say about a feature; None where they did not try it on every model."""
    runs = [run for run in found["runs"] if run["mode"] == feature.mode and run["model"] in feature.models]
    if {run["model"] for run in runs} != set(feature.models) or any(run["verdict"] == "not run" for run in runs):
        return None
    where = place(found)
    if found["queue"] != identity(queue, queue.select(pin.version), pin):
        return Cell(State.STALE, f"the queue has changed since the run of {found['date']} {where}")
    refused = [run for run in runs if run["verdict"] == "not applicable"]
    if refused:
        return Cell(State.NOT_APPLICABLE, refused[0]["why"])
    failed = [run for run in runs if run["verdict"] != "passed"]
    if failed:
        return Cell(State.FAILED, f"{where}: {failed[0]['model']}: {failed[0]['why']}")
    return Cell(State.PROVEN, where)


def place(found: dict) -> str:
    """Where a run was, and how far that is from what the release asks for."""
    torch = found["torch"]
    text = f"on {found['gpu']['name']} with torch {torch['version'].partition('+')[0]}"
    if torch["off_pin"]:
        text += f", off the release's pin {torch['pinned']}"
    return text + (f", kernels {found['kernel']['package']}" if found.get("kernel") else "")


def expected(queue: Queue, pin: Pin, feature: Feature) -> Cell:
    """What the queue alone says about a feature on a release."""
    reasons = [reason for specifier, reason in feature.never.items() if SpecifierSet(specifier).contains(pin.version, prereleases=True)]
    if reasons:
        return Cell(State.NOT_APPLICABLE, reasons[0])
    if any(queue.base(patch.name) == feature.patch for patch in queue.select(pin.version)):
        return Cell(State.NOT_RUN, f"the queue brings it; `nox -s gpu -- {pin.tag}` on a GPU would prove it")
    header = queue.patches[feature.patch].header
    merged = re.fullmatch(r"Merged (\S+)", header.get("Upstream-Status"))
    since = feature.upstream or (merged[1] if merged else "")
    if since and pin.version >= Version(since):
        return Cell(State.UPSTREAM, f"the release has it itself (since {since}); not run here")
    gaps = [gap.reason for gap in header.gaps if gap.releases.contains(pin.version, prereleases=True)]
    return Cell(State.NOT_APPLICABLE, gaps[0] if gaps else "no patch brings it there")


def markdown(rows: Sequence[tuple[Pin, list[Cell]]]) -> str:
    """The matrix as a table; the numbers in it lead to the reasons below it."""
    reasons: list[Cell] = []
    lines = [f"| release | {' | '.join(feature.name for feature in FEATURES)} |", f"|---|{'---|' * len(FEATURES)}"]
    for pin, cells in rows:
        shown = []
        for one in cells:
            told = Cell(one.state, one.reason.replace(f"-- {pin.tag}", "-- RELEASE"))
            if told not in reasons:
                reasons.append(told)
            shown.append(f"{one.state} ({reasons.index(told) + 1})")
        lines.append(f"| {pin.version} | {' | '.join(shown)} |")
    return "\n".join([*lines, "", *(f"{number}. {one.state}: {one.reason}" for number, one in enumerate(reasons, 1))]) + "\n"


def in_readme(text: str, matrix: str) -> str:
    """The README with the matrix between its markers. Raises Refused where it has none."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise Refused(Problem("no-markers", str(README), "has no place for the matrix", f"put {BEGIN.strip()} and {END} where it belongs"))
    return before + BEGIN + matrix + END + after


def write(root: Path, pins: Pins) -> bool:
    """Put the matrix into the README. Returns whether that changed it."""
    file = root / README
    text = file.read_text(encoding="utf-8")
    new = in_readme(text, markdown(matrix(root, pins)))
    file.write_text(new, encoding="utf-8")
    return new != text
