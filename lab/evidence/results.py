"""What GPU hosts found, one row for each engine run: evidence/results.jsonl.

A row replaces the earlier one of the same subject where it weighs more (`weight`). The log of a run
lies compressed in evidence/raw/; its row names the sha256 of the uncompressed log. What ran before
2026-11-27 has its logs in evidence/raw/until-2026-11-27.tar.xz, by sha256.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from patchqueue.files import atomic, record
from patchqueue.files.tree import sha256
from patchqueue.outcome import Refused

FOLDER = Path("evidence")
FILE, RAW = FOLDER / "results.jsonl", FOLDER / "raw"
LOCK = Path("work/.patchqueue/evidence.lock")
Kind = Literal["proof", "question", "time"]
Verdict = Literal["passed", "not applicable", "failed", "not run"]
Attention = Literal["flashinfer", "fa3"]
USUAL_ATTENTION: Attention = "flashinfer"
ATTENTIONS = {"flashinfer": "FlashInfer", "fa3": "FlashAttention 3"}
BAD = "bad-evidence"
GOOD, NOT_RUN = ("passed", "not applicable"), "not run"
NO_MEASURE = "its reference failed"  # begins the reason of a run that shows nothing
BREAKABLE = "breakable"
UNTOUCHED, PATCHED = "untouched", "patched"
Date = Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]
HASHES = ("queue", "rules", "raw", "same_as", "differs_from")  # of a row
HASH = len("sha256:") + 16  # what a row keeps of each: whole ones were half of the file


class Load(Struct, frozen=True, array_like=True):
    """Requests of one kind: medians over a run's loads."""

    tokens_per_s: float  # output tokens; input tokens where each answer is one token
    first_p50_ms: float
    first_p99_ms: float


class Footprint(Struct, frozen=True, omit_defaults=True):
    """What a run depended on (footprints.py). loaded: a bitset over the release's sorted files;
    laid: hashes of the loaded files that the queue changes or adds; absent: modules that were
    looked up and not there."""

    loaded: str = ""
    laid: dict[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()


class Files(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="files"):
    """A line of the file that is no row: what the footprints of one release consist of, each item
    once. A row has the hash of the items there, and a bitset over them, as its footprint."""

    items: tuple[str, ...]  # sorted: "PATH HASH" of laid, "MODULE absent", "loaded BITSET"

    @property
    def hash(self) -> str:
        return sha256("\n".join(self.items).encode())[:16]


class Row(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One engine run. name: of a proof the graph mode, of a question its name in matrix.toml, of a
    time the tree (untouched, patched) or the peer with its version. queue: identity of what the
    queue did to the release. rules: hash of the files of tests/gpu that judge a proof. raw: sha256
    of the log."""

    kind: Kind
    release: str
    name: str
    verdict: Verdict
    date: Date
    gpu: str
    torch: str
    queue: str
    model: str = ""
    why: str = ""
    torch_pin: str = ""  # the release's own, where `torch` is another
    attention: Attention = USUAL_ATTENTION
    kernels: str = ""  # the package, where the kernels are not the release's own
    rules: str = ""
    footprint: Footprint | None = None
    same_as: str = ""  # the later `queue` whose tree has the footprint's files unchanged
    differs_from: str = ""  # the later `queue` whose tree has others of them
    control: bool = False  # of a question: asked of the release without the queue
    # a time: engines of one run share `run`, which names GPU, attention, model and graphs
    run: str = ""
    mode: str = ""
    states: str = ""  # SGLANG_PREFILL_GRAPH_STATES
    first_token_ms: dict[str, float] = field(default_factory=dict)  # first quartiles by shape
    busy_ms: dict[str, float] = field(default_factory=dict)  # GPU-busy time by shape
    floor_ms: dict[str, float] = field(default_factory=dict)  # matrix products alone, by shape
    input_tokens_per_s: float | None = None
    loads: dict[str, Load] = field(default_factory=dict)
    raw: str = ""

    @property
    def subject(self) -> tuple[object, ...]:
        """What the row is about. A run of times is replaced as a whole: its rows differ in engine
        and mode alone."""
        if self.kind == "time":
            return self.kind, self.release, self.run
        about = self.kind, self.release, self.model, self.name
        return *about, self.gpu, self.attention, self.control

    @property
    def attention_named(self) -> str:
        """Whose attention kernels ran, behind a comma; empty for the usual ones."""
        return "" if self.attention == USUAL_ATTENTION else f", {ATTENTIONS[self.attention]}"


def shortened(row: Row) -> Row:
    """The row with its hashes as they are kept."""
    return replace(row, **{name: getattr(row, name)[:HASH] for name in HASHES})


def is_same(one: str, other: str) -> bool:
    """Whether two hashes are the same, of which a row may keep its part alone."""
    return one[:HASH] == other[:HASH]


def load(root: Path) -> list[Row]:
    """All rows. Raises Refused naming the line that is no row, or whose footprint is not there."""
    lines = (root / FILE).read_bytes().splitlines() if (root / FILE).is_file() else []
    rows: list[Row] = []
    listed: dict[str, Files] = {}
    for number, line in enumerate(lines, 1):
        where = f"{FILE}:{number}"
        data = record.json(line, dict[str, Any], where, BAD)
        if data.get("kind") == "files":
            files = record.value(data, Files, where, BAD)
            listed[files.hash] = files
            continue
        written = data.pop("footprint", None)
        row = shortened(record.value(data, Row, where, BAD))
        rows.append(replace(row, footprint=_read(written, listed, where)) if written else row)
    return rows


def _read(written: object, listed: Mapping[str, Files], where: str) -> Footprint:
    """A footprint of the file. listed: by hash. Raises Refused where it refers to none of these."""
    files, bits = record.value(written, tuple[str, str], where, BAD)
    try:
        values = dict(item.rsplit(" ", 1) for item in members(listed[files].items, bits))
        loaded = values.pop("loaded")
    except (KeyError, ValueError):
        what = f'its footprint refers to {files}, which is no line of kind "files" above it'
        raise Refused.of(BAD, where, what, "restore the whole file from one commit") from None
    absent = tuple(name for name, value in values.items() if value == "absent")
    laid = {name: value for name, value in values.items() if value != "absent"}
    return Footprint(loaded, laid, absent)


def _items(footprint: Footprint) -> set[str]:
    values = {**footprint.laid, **dict.fromkeys(footprint.absent, "absent")}
    return {f"loaded {footprint.loaded}", *map(" ".join, values.items())}


def bitset(names: Sequence[str], chosen: Collection[str]) -> str:
    """The names that are chosen, as bits in base64."""
    number = sum(1 << place for place, name in enumerate(names) if name in chosen)
    return base64.b64encode(number.to_bytes(-(-len(names) // 8), "little")).decode()


def members(names: Sequence[str], bits: str) -> list[str]:
    """The names that a bitset chooses. Raises ValueError where it is not base64."""
    chosen = (byte >> place & 1 for byte in base64.b64decode(bits) for place in range(8))
    return list(compress(names, chosen))


def order(row: Row) -> tuple[object, ...]:
    """Where a row stands in the file."""
    return row.kind, row.release, row.model, row.run, row.name, row.mode, row.gpu, *row.subject[5:]


def save(root: Path, rows: Iterable[Row]) -> None:
    """Write the file whole, or not at all."""
    ordered = sorted(rows, key=order)
    items: dict[str, set[str]] = {}  # by release
    for row in ordered:
        if row.footprint:
            items.setdefault(row.release, set()).update(_items(row.footprint))
    files = {release: Files(tuple(sorted(named))) for release, named in items.items()}
    lines: list[Any] = [*files.values(), *map(msgspec.to_builtins, ordered)]
    for row, data in zip(ordered, lines[len(files) :], strict=True):
        if row.footprint:
            own = files[row.release]
            data["footprint"] = own.hash, bitset(own.items, _items(row.footprint))
    atomic.write(root / FILE, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def weight(row: Row, today: str, rules: str) -> tuple[object, ...]:
    """Of two rows of one subject the greater stays: one that ran; about today's queue; held against
    a reference; by today's rules; on the torch that the release pins; the later one; and of equal
    ones the one that failed, so that nobody can ask until a run passes. The text decides last."""
    judged, failed = row.verdict != NOT_RUN, row.verdict not in GOOD
    ran = judged or row.why.startswith(NO_MEASURE), is_same(row.queue, today), judged
    how = is_same(row.rules, rules), not row.torch_pin, row.date, failed
    return *ran, *how, msgspec.json.encode(row)


def newest(rows: Iterable[Row], today: Mapping[str, str], rules: str) -> list[Row]:
    """Without superseded rows. today: by release, the identity of what the queue does to it."""
    best: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        kept = best.setdefault(row.subject, [])
        if row.kind == "time" and kept and kept[0].raw == row.raw and row not in kept:
            kept.append(row)  # of the same run
            continue
        now = today.get(row.release, "")
        if not kept or weight(row, now, rules) > max(weight(one, now, rules) for one in kept):
            kept[:] = [row]
    return [row for kept in best.values() for row in kept]


def slug(gpu: str) -> str:
    """A GPU's name in file names and runs: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def raw_file(sha256: str) -> Path:
    return RAW / f"{sha256[:16]}.json.xz"
