"""The measurements that README.md and docs/choose.md show: those of front.toml.

Milliseconds to the first token of one prompt are the first quartile of 20 calls. Input tokens a
second are the median of a run's loads of 16 prompts of 4096 tokens at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from patchqueue.files import record

from . import results
from .results import PATCHED, UNTOUCHED

SHORT, LONG = "1x64", "1x4096"  # one prompt of 64 and of 4096 tokens


@dataclass(frozen=True)
class Figures:
    """What one engine needed in a run. None: the run did not measure it."""

    short_ms: int | None
    long_ms: int | None
    tokens_per_s: int | None  # rounded to hundreds


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """One comparison of the front page. run: of evidence/results.jsonl."""

    model: str
    release: str
    run: str


class File(Struct, frozen=True, forbid_unknown_fields=True):
    rows: tuple[Row, ...]


_FILE = Path(__file__).with_name("front.toml")
ROWS = record.toml(_FILE.read_bytes(), File, _FILE.name, "bad-front").rows


@dataclass(frozen=True)
class Measured:
    """The engines of a row by name, in the order in which a reader compares them."""

    row: Row
    date: str
    gpu: str
    engines: dict[str, Figures]
    busy_ms: dict[str, float]  # GPU-busy time of SHORT by engine


def measured(kept: Sequence[results.Row]) -> list[Measured]:
    """The figures of every row."""
    return [_measured(kept, row) for row in ROWS]


def _measured(kept: Sequence[results.Row], row: Row) -> Measured:
    about = ("time", row.release, row.run)
    found = {one.name: one for one in kept if (one.kind, one.release, one.run) == about}
    if not found.keys() >= {UNTOUCHED, PATCHED}:
        raise LookupError(f"evidence/ has no untouched and patched {row.release} of {row.run}")
    engines = {name: found.pop(name) for name in (UNTOUCHED, PATCHED)} | found
    patched, shown = engines[PATCHED], {name: figures(one) for name, one in engines.items()}
    busy = {name: one.busy_ms[SHORT] for name, one in engines.items() if SHORT in one.busy_ms}
    return Measured(row, patched.date, patched.gpu, shown, busy)


def figures(row: results.Row) -> Figures:
    """The front page's figures of one engine of a run."""
    first = {shape: round(ms) for shape, ms in row.first_token_ms.items()}
    rate = row.input_tokens_per_s
    hundreds = None if rate is None else round(rate / 100) * 100
    return Figures(first.get(SHORT), first.get(LONG), hundreds)
