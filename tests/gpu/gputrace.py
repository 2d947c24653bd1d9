"""What a GPU did, read from a trace that torch's profiler wrote. Standard library only.

Kernels are told by their names, without types and arguments.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
# before the name of a kernel that CuTe's compiler made (nvidia-cutlass-dsl 4.8.0)
CUTE = "kernel_cutlass_kernel_"


@dataclass(frozen=True)
class Event:
    """One kernel, copy or fill: when it began and how long it ran, in microseconds."""

    name: str
    began: float
    span: float


def read(file: Path) -> list[Event]:
    """What ran on the GPU, in a chrome trace; packed or not."""
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8") as text:
        rows = json.load(text)
    rows = rows["traceEvents"] if isinstance(rows, dict) else rows
    ran = (row for row in rows if row.get("cat") in CATEGORIES)
    return [Event(row["name"], float(row["ts"]), float(row.get("dur", 0))) for row in ran]


def busy_us(events: Iterable[Event]) -> float:
    """Microseconds in which something ran: what overlaps counts once."""
    total, until = 0.0, float("-inf")
    for event in sorted(events, key=lambda event: event.began):
        end = event.began + event.span
        total += max(0.0, end - max(event.began, until))
        until = max(until, end)
    return total


def short(name: str) -> str:
    """A kernel's name without types and arguments: `void a::b<int>(c)` is `a::b`."""
    plain, depth = "", 0
    bare = name.removeprefix("void ").removeprefix(CUTE)
    for letter in bare.replace("(anonymous namespace)::", ""):
        depth += letter == "<"
        if letter == "(" and not depth:
            break
        plain += letter if not depth else ""
        depth -= letter == ">"
    return (plain.strip() or name)[:80]


def profile(events: Sequence[Event], calls: int) -> dict:
    """Of one call, of `calls` alike: busy time and launches. groups: both by a kernel's name."""
    return {
        "calls": calls,
        "busy_ms": round(busy_us(events) / calls / 1e3, 3),
        "launches": round(len(events) / calls, 1),
        "groups": _tally(events, calls),
    }


def _tally(events: Iterable[Event], calls: int) -> dict[str, dict]:
    spans: dict[str, list[float]] = {}
    for event in events:
        spans.setdefault(short(event.name), []).append(event.span)
    rows = sorted(spans.items(), key=lambda row: -sum(row[1]))
    return {
        name: {"ms": round(sum(found) / calls / 1e3, 4), "launches": round(len(found) / calls, 1)}
        for name, found in rows
    }
