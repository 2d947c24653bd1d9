"""docs/bench.md, made from the times in evidence/results.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.version import Version

from .. import results
from ..results import PATCHED, UNTOUCHED, USUAL_ATTENTION, Row
from .render import put, render, table

PAGE = Path("docs/bench.md")
SHAPES = ("1x64", "1x512", "1x4096")
LONG = SHAPES[-1]
HEAD = ("release", "prefill", "64", "512", "4096", "busy", "/floor", "tokens/s")
LOADS = ("gsm8k", "chat-16", "chat-32", "long", "prefill", "turns")
LOADED = "NVIDIA-Nemotron-Nano-9B-v2"  # the model of all loads but those that name theirs
USUAL_GPU = "NVIDIA H200"


def write(root: Path) -> list[Path]:
    """Make the page. Returns what this changed."""
    return [PAGE] if put(root / PAGE, page(results.load(root))) else []


def page(rows: Iterable[Row]) -> str:
    """The page's text: of each model the runs with first tokens, then those with loads."""
    runs = _runs(row for row in rows if row.kind == "time")
    models: dict[str, list[list[str]]] = {}
    for run in runs:
        models.setdefault(run[0].model.removeprefix("NVIDIA-"), []).extend(_first_tokens(run))
    loads = [line for run in runs for line in _loads(run)]
    timed = {model: table(HEAD, lines) for model, lines in models.items() if lines}
    return render("bench.md", models=timed, loads=table(["release", "prefill", *LOADS], loads))


def _runs(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows by run, releases in their order."""
    runs: dict[tuple[Version, str], list[Row]] = {}
    for row in rows:
        runs.setdefault((Version(row.release), row.run), []).append(row)
    return [runs[key] for key in sorted(runs)]


def _first_tokens(run: Sequence[Row]) -> list[list[str]]:
    """A line for each patched engine beside each untouched one, and for each peer. No line of a
    run that has neither: graph modes of one tree, which the matrix is about."""
    patched = [row for row in run if row.name == PATCHED and row.first_token_ms]
    untouched: list[Row | None] = [row for row in run if row.name == UNTOUCHED]
    peers = [row for row in run if row.name not in (UNTOUCHED, PATCHED)]
    if not untouched and not peers:
        return []
    pairs = [(row, before) for row in patched for before in untouched or [None]]
    return [_line(row, before) for row, before in [*pairs, *((peer, None) for peer in peers)]]


def _line(row: Row, before: Row | None) -> list[str]:
    own, other = _figures(row), _figures(before) if before else {}
    floor, busy = row.floor_ms.get(LONG), own.get("busy")
    *first, rate = (_pair(other.get(of), own.get(of)) for of in (*SHAPES, "busy", "tokens/s"))
    way = _way(row, before) if row.name == PATCHED else row.name
    return [_release(row), way, *first, f"{busy / floor:.2f}" if busy and floor else "-", rate]


def _loads(run: Sequence[Row]) -> list[list[str]]:
    """A line for each patched engine that took loads, beside each untouched one."""
    lines = []
    for patched in (row for row in run if row.name == PATCHED and row.mode != "eager"):
        for untouched in (row for row in run if row.name == UNTOUCHED):
            cells = [load_pair(untouched, patched, kind) for kind in LOADS]
            if any(cell != "-" for cell in cells):
                lines.append([_loaded(patched), _way(patched, untouched), *cells])
    return lines


def _loaded(row: Row) -> str:
    """The release, and the model where it is another one than the other loads'."""
    drafts = " with MTP" if "(MTP)" in row.model else ""
    model = "" if row.model == LOADED else f", {row.model.partition(',')[0]}{drafts}"
    return _release(row) + model


def load_pair(untouched: Row, patched: Row, kind: str) -> str:
    """Tokens a second; of chats and turns the median milliseconds to the first token."""
    before, after = (_figures(row).get(kind) for row in (untouched, patched))
    return _pair(before, after) if before and after else "-"


def _figures(row: Row) -> dict[str, float | None]:
    """What a row measured, by shapes, kinds of loads, "busy" and "tokens/s"."""
    loads = {
        kind: load.first_p50_ms if kind.startswith(("chat", "turns")) else load.tokens_per_s
        for kind, load in row.loads.items()
    }
    own = {"busy": row.busy_ms.get(LONG), "tokens/s": row.input_tokens_per_s}
    return {**row.first_token_ms, **loads, **own}


def _release(row: Row) -> str:
    gpu = "" if row.gpu == USUAL_GPU else f", {row.gpu.removeprefix('NVIDIA ').split()[0]}"
    return row.release + ("" if row.attention == USUAL_ATTENTION else ", FA3") + gpu


def _way(row: Row, before: Row | None) -> str:
    """How both engines prefilled."""
    states = f"+{row.states}" if row.states in ("capture", "all") else ""
    after = row.mode + states
    return after if before is None or before.mode == after else f"{before.mode} → {after}"


def _pair(before: float | None, after: float | None) -> str:
    shown = ["-" if one is None else f"{one:.0f}" for one in (before, after)]
    return shown[1] if before is None else " → ".join(shown)
