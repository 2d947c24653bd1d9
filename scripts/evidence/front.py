"""The measurements that README.md and docs/choose.md show: one row for each row of their tables.

Milliseconds to the first token of one prompt are the first quartile of 20 calls. Input tokens a
second are the median of a run's loads of 16 prompts of 4096 tokens at once.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNTOUCHED, PATCHED = "untouched", "patched"
SHORT, LONG = "1x64", "1x4096"  # one prompt of 64 and of 4096 tokens


@dataclass(frozen=True)
class Figures:
    """What one engine needed in a run. None: the run did not measure it."""

    short_ms: int | None
    long_ms: int | None
    tokens_per_s: int | None  # rounded to hundreds


@dataclass(frozen=True)
class Row:
    """One comparison: an untouched and a patched release of the same run, and any peer of it."""

    model: str
    release: str
    file: str  # below evidence/


ROWS = (
    Row("Nemotron-Nano-9B-v2", "0.5.9", "nvidia-h200.fa3.breakable.gain.json"),
    Row("Nemotron-Nano-9B-v2", "0.5.12.post1", "nvidia-h200.fa3.gain.json"),
    Row("Nemotron-Nano-9B-v2", "0.5.16", "nvidia-h200.capture.gain.json"),
    Row("Nemotron-Nano-9B-v2", "0.5.23", "nvidia-h200.breakable.gain.json"),
    Row("Nemotron-3-Nano-30B-A3B", "0.5.12.post1", "nvidia-h200.nemotron-3-nano.gain.json"),
    Row("Qwen3.5-35B-A3B", "0.5.12.post1", "nvidia-h200.qwen3.5-moe.breakable.gain.json"),
    Row(
        "Qwen3-Next-80B-A3B, 32 of 48 layers",
        "0.5.12.post1",
        "nvidia-h200.qwen3-next-32.breakable.gain.json",
    ),
)


@dataclass(frozen=True)
class Measured:
    """The engines of a row by name, in the order in which a reader compares them."""

    row: Row
    date: str
    gpu: str
    engines: dict[str, Figures]


def measured(root: Path) -> list[Measured]:
    """The figures of every row, from evidence/."""
    return [_measured(root, row) for row in ROWS]


def _measured(root: Path, row: Row) -> Measured:
    run = json.loads((root / "evidence" / row.release / row.file).read_text(encoding="utf-8"))
    engines = {tree: _figures(_visit(run, tree)) for tree in (UNTOUCHED, PATCHED)}
    peers = {f"{peer['name']} {peer['version']}": _figures(peer) for peer in run.get("peers", ())}
    return Measured(row, run["date"], run["gpu"]["name"], engines | peers)


def _visit(run: dict[str, Any], tree: str) -> dict[str, Any]:
    visits: list[dict[str, Any]] = [visit for visit in run["runs"] if visit["tree"] == tree]
    (visit,) = visits
    return visit


def _figures(visit: dict[str, Any]) -> Figures:
    quartiles = {
        shape: round(calls["first_quartile"]) for shape, calls in visit["first_token_ms"].items()
    }
    loads = [load["tokens_per_s"] for load in visit["loads"]]
    rate = round(statistics.median(loads) / 100) * 100 if loads else None
    return Figures(quartiles.get(SHORT), quartiles.get(LONG), rate)
