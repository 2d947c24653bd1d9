"""What docs/figures.md tells: the tool's own figures, and what all proofs and benches have in
common."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchqueue.files import record
from patchqueue.hint import to_type
from patchqueue.upstream import pins as pinning

from . import benches, cells, store
from .records import Bench, Figures, Record, Run

TOOL = store.FOLDER / "figures.json"
MODES = ("breakable", "piecewise", "piecewise-inductor")


@dataclass(frozen=True)
class Measured:
    """All that the page is made from. tool: figures.json, None where nothing was kept; proofs,
    benches: as in evidence/; now: tag -> the queue's identity; models: as the support matrix lists
    them."""

    tool: Figures | None
    proofs: list[Record]
    benches: list[Bench]
    now: dict[str, str]
    models: Sequence[str] = ()

    def earlier(self, found: Record, run: Run) -> bool:
        """Whether a run was about an earlier queue."""
        return found.under(run).changes != self.now[found.tag]


def load(root: Path) -> Measured:
    """What evidence/ holds. Raises Refused where its figures.json is none."""
    pins = pinning.load(root)
    proofs = [one for pin in pins.all for one in store.proofs(root, str(pin.version))]
    return Measured(
        load_tool(root / TOOL),
        proofs,
        benches.load(root),
        {one.tag: store.today(root, pins.find(one.version)) for one in proofs},
        cells.load(root).models,
    )


def load_tool(file: Path) -> Figures | None:
    """What was measured of the tool; None where nothing was kept."""
    if not file.is_file():
        return None
    step = to_type("figures", f"--out {TOOL}")
    return record.json(file.read_bytes(), Figures, str(TOOL), "bad-figures", step)


def tree_then(moment: dict[str, Any]) -> str:
    """What a kill left, before anything was made good: "absent" (or pristine), "applied", "mixed"
    whole files, or else.

    Of an apply the measuring script says it; of an install it counts the files that are patched,
    pristine, and neither."""
    if "queue then" in moment:
        return {"old": "absent", "new": "applied"}.get(moment["queue then"], "broken")
    if "tree then" in moment:
        return str(moment["tree then"])
    patched, pristine, neither = (
        moment["then"][name] for name in ("patched files", "pristine files", "neither")
    )
    return (
        "broken"
        if neither
        else "mixed"
        if patched and pristine
        else "applied"
        if patched
        else "absent"
    )


def columns(measured: Measured) -> list[tuple[str, str]]:
    """(model, mode) of every graph mode that was run, models in the support matrix's order."""
    known = measured.models
    found = {
        (run.model, run.mode) for one in measured.proofs for run in one.runs if run.mode in MODES
    }
    return sorted(
        found,
        key=lambda key: (
            known.index(key[0]) if key[0] in known else len(known),
            key[0],
            MODES.index(key[1]),
        ),
    )


def timed_benches(measured: Measured) -> list[Bench]:
    return [
        bench
        for bench in measured.benches
        if len(benches.measured(bench, benches.FIRST)) > 1 and benches.paired(bench)
    ]


@dataclass(frozen=True)
class Captured:
    """Seconds that prefill graphs took to capture. where: release and GPU; what: the model, and of
    how many sizes."""

    where: str
    what: str
    mode: str
    seconds: float


def captures(measured: Measured) -> list[Captured]:
    """Of every graph mode: the median over the small models of a proof, and over the engines of a
    bench. Graphs for decoding are left out."""
    kinds: list[tuple[str, str, Iterable[Run]]] = [
        (
            one.title,
            f"small models, {len(one.capture)} sizes, median",
            [run for run in one.runs if run.verdict in ("passed", "failed")],
        )
        for one in measured.proofs
    ]
    kinds += [
        (one.title, f"{one.model}, {len(one.load.capture)} sizes, median", one.runs)
        for one in measured.benches
    ]
    return [
        Captured(where, what, mode, statistics.median(times))
        for where, what, runs in kinds
        for mode in MODES
        if (times := [_seconds(run) for run in runs if run.mode == mode and run.prefill_capture])
    ]


def _seconds(run: Run) -> float:
    return sum(one.seconds for one in run.prefill_capture)
