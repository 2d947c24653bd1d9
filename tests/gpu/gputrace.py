"""What a GPU did, read from a trace that torch's profiler wrote. Standard library only.

Kernels are told by their names. A Triton kernel stays under its own name. Matrix products,
attention, norms, PyTorch's element-wise kernels and copies are put together, because releases and
shapes choose others of them.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
COPIES, PRODUCTS = "copies and fills", "matrix products"
# In this order: C++ names of attention's kernels hold the names of matrix products' libraries.
GROUPS = (
    (
        "attention",
        re.compile(
            r"flash_?(fwd|attn|mla)|FlashAttn|fmha|(Prefill|Decode)With|MergeState|cascade",
            re.I,
        ),
    ),
    (PRODUCTS, re.compile(r"nvjet|cutlass|gemm|gemv|wgmma|cublas|xmma|splitK", re.I)),
    (
        COPIES,
        re.compile(
            r"^Mem(cpy|set)|direct_copy|CatArrayBatchedCopy|FillFunctor|bfloat16_copy|"
            r"index_(put|copy)|_scatter_gather",
            re.I,
        ),
    ),
    ("norms", re.compile(r"norm", re.I)),
    ("reductions of PyTorch", re.compile(r"at::native::.*(reduce_kernel|softmax|scan)", re.I)),
    ("element-wise of PyTorch", re.compile(r"at::native::")),
)
# a plain name, and no library's
TRITON = re.compile(r"^(?!nvjet|cutlass|cublas|gemm|gemv|sm\d+_|ampere_|turing_|volta_)\w+$")
# before the name of a kernel that CuTe's compiler made (nvidia-cutlass-dsl 4.8.0)
CUTE = "kernel_cutlass_kernel_"
RAW = 30  # kernels that are kept by their own names


@dataclass(frozen=True)
class Event:
    """One kernel, copy or fill: when it began and how long it ran, in microseconds."""

    name: str
    began: float
    span: float


def read(file: Path) -> list[Event]:
    """What ran on the GPU, in a chrome trace; packed or not."""
    opened = (
        gzip.open(file, "rt", encoding="utf-8")
        if file.suffix == ".gz"
        else file.open(encoding="utf-8")
    )
    with opened as text:
        rows = json.load(text)
    rows = rows["traceEvents"] if isinstance(rows, dict) else rows
    return [
        Event(row["name"], float(row["ts"]), float(row.get("dur", 0)))
        for row in rows
        if row.get("cat") in CATEGORIES
    ]


def busy_us(events: Iterable[Event]) -> float:
    """Microseconds in which something ran: what overlaps counts once."""
    total, until = 0.0, float("-inf")
    for event in sorted(events, key=lambda event: event.began):
        end = event.began + event.span
        total += max(0.0, end - max(event.began, until))
        until = max(until, end)
    return total


def group(name: str) -> str:
    """What a kernel is counted as: itself where it is Triton's or nobody knows it."""
    name, before = name.removeprefix(CUTE), name
    if TRITON.match(name) and name == before:
        return name
    return next((called for called, pattern in GROUPS if pattern.search(name)), short(name))


def short(name: str) -> str:
    """A kernel's name without types and arguments: `void a::b<int>(c)` is `a::b`."""
    plain, depth = "", 0
    for letter in name.removeprefix("void ").replace("(anonymous namespace)::", ""):
        depth += letter == "<"
        if letter == "(" and not depth:
            break
        plain += letter if not depth else ""
        depth -= letter == ">"
    return (plain.strip() or name)[:80]


def profile(events: Sequence[Event], calls: int) -> dict:
    """Of one call, of `calls` alike: busy time and launches; both by group and by kernel too."""
    return {
        "calls": calls,
        "busy_ms": round(busy_us(events) / calls / 1e3, 3),
        "launches": round(len(events) / calls, 1),
        "groups": _tally(events, calls, group),
        "kernels": dict(list(_tally(events, calls, _own).items())[:RAW]),
    }


def _own(name: str) -> str:
    return name[:160]


def _tally(events: Iterable[Event], calls: int, called) -> dict[str, dict]:
    spans: dict[str, list[float]] = {}
    for event in events:
        spans.setdefault(called(event.name), []).append(event.span)
    rows = sorted(spans.items(), key=lambda row: -sum(row[1]))
    return {
        name: {"ms": round(sum(found) / calls / 1e3, 4), "launches": round(len(found) / calls, 1)}
        for name, found in rows
    }
