"""Results of GPU hosts, checked and made into rows of evidence/results.jsonl."""

from __future__ import annotations

import enum
import hashlib
import json
import lzma
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from patchqueue.applying.apply import load_queue
from patchqueue.files import atomic
from patchqueue.outcome import Problem, Refused, counted, to_type
from patchqueue.upstream.pins import Pin, Pins

from . import cells, footprints, harness, results, written
from .results import BREAKABLE, NO_MEASURE, NOT_RUN, PATCHED, UNTOUCHED, Kind, Load, Row
from .written import PROOF, TIMES, Answers, Result, Run, Served, Times, Visit

REFERENCE = "reference"  # how the modes that others are held against begin
HELD = ("piecewise", "piecewise-inductor", BREAKABLE, "eager")  # modes held against a reference
EAGER = "eager"
PLACE = re.compile(r"(?<![\w.])(?:/[\w.+@-]+){2,}")  # a path on the host: nobody else has it
NOTES = "loaded"  # which files a run looked at: nine tenths of a log, and rows have the footprints


class Fate(str, enum.Enum):
    """What became of one file."""

    TAKEN = "taken"
    SUPERSEDED = "superseded"
    REFUSED = "refused"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Gathered:
    """One file's fate. why: how many of its rows stay, or the reason."""

    file: Path
    fate: Fate
    why: str


def found(root: Path, folder: Path) -> list[Path]:
    """The results below a folder. Raises Refused where there is none."""
    asked = (f"{one.mode}.json" for one in cells.load(root).features if one.asked)
    names = (PROOF, TIMES, *asked)
    files = sorted(file for name in names for file in folder.rglob(name))
    if not files:
        what, step = f"holds no {PROOF}", "name the folder that holds the hosts' result folders"
        raise Refused(Problem("no-evidence", str(folder), what, step))
    return files


def take(root: Path, pins: Pins, files: Sequence[Path]) -> list[Gathered]:
    """Add the rows of results to evidence/, with their logs. A file that is refused keeps no other
    out; the order of files does not matter."""
    with atomic.locked(root / results.LOCK):
        before = results.load(root)
        made: dict[Path, list[Row]] = {}
        gathered: dict[Path, Gathered] = {}
        for file in files:
            try:
                made[file] = _rows_of(root, pins, file)
            except Refused as refusal:
                why = "; ".join(f"{problem.what} [{problem.name}]" for problem in refusal.problems)
                gathered[file] = Gathered(file, Fate.REFUSED, why)
        today = {str(pin.version): pin.patched for pin in pins.all}
        new = [row for rows in made.values() for row in rows]
        rules = harness.identity(root)
        bound = _without_contradicted(root, pins, before, new, rules)
        kept = results.newest([*bound, *new], today, rules)
        for file, rows in made.items():
            fate, why = Fate.SUPERSEDED, "the rows that are kept say more"
            if stay := sum(row in kept for row in rows):
                fate, why = Fate.TAKEN, f"{stay} of {counted(len(rows), 'row')}"
                _keep_log(root, file)
            gathered[file] = Gathered(file, fate, why)
        results.save(root, kept)
        named = {results.raw_file(row.raw).name for row in kept}
        for path in (root / results.RAW).glob("*.json.xz"):
            if path.name not in named:
                path.unlink()
    return [gathered[file] for file in files]


def _without_contradicted(
    root: Path, pins: Pins, before: Sequence[Row], new: Sequence[Row], rules: str
) -> list[Row]:
    """The rows of before. A release whose footprints were contradicted loses all of them: a row
    that was valid for its files alone, and whose subject answers otherwise now."""
    kept = {row.subject: row for row in before if row.footprint}
    wrong: set[str] = set()
    for row in new:
        old = kept.get(row.subject)
        if old and row.verdict != NOT_RUN and old.verdict not in (NOT_RUN, row.verdict):
            validity = footprints.Validity(pins.find(row.release).patched, rules)
            [old] = footprints.compared(root, pins, [old], rules)
            if not validity.is_today(old) and validity.same_files(old):
                wrong.add(row.release)
    return [replace(row, footprint=None) if row.release in wrong else row for row in before]


def log_of(file: Path) -> bytes:
    """A result without paths of its host and without NOTES."""
    return json.dumps(_as_kept(json.loads(file.read_bytes())), sort_keys=True).encode()


def _keep_log(root: Path, file: Path) -> None:
    log = log_of(file)
    (root / results.RAW).mkdir(parents=True, exist_ok=True)
    name = results.raw_file(hashlib.sha256(log).hexdigest())
    atomic.write(root / name, lzma.compress(log, preset=9))


def _as_kept(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_kept(inner) for name, inner in value.items() if name != NOTES}
    if isinstance(value, list):
        return [_as_kept(inner) for inner in value]
    is_text = isinstance(value, str) and not value.startswith("python/")
    return PLACE.sub("…", value) if is_text else value


def _rows_of(root: Path, pins: Pins, file: Path) -> list[Row]:
    """The rows of one result. Raises Refused where it cannot be read, is about another tree, or
    proves nothing."""
    result = written.read(file)
    pin = pins.find(result.version)
    check_tree(pin, result, file.name)
    if isinstance(result, Times):
        rows = list(time_rows(result))
    elif result.without is not None:
        rows = [_answer_row(result, run, "question", file.stem) for run in result.runs]
    else:
        rows = proof_rows(result, file.name)
    if isinstance(result, Answers) and result.loaded:
        tree = footprints.tree_of(load_queue(root), pin)
        notes = ([*result.loaded, *run.loaded] for run in result.runs)
        made = zip(rows, notes, strict=True)
        rows = [replace(row, footprint=footprints.footprint(tree, note)) for row, note in made]
    sha256 = hashlib.sha256(log_of(file)).hexdigest()
    return [results.shortened(replace(row, raw=sha256)) for row in rows]


def check_tree(pin: Pin, result: Result, name: str) -> None:
    """Raise Refused unless the run was of the tree that the queue makes now, with every file as it
    was built."""
    again = f"{to_type('gpu', pin.tag)} runs it on the tree of today"
    if not result.tree_untouched:
        what = "files of the tree were changed after it was built"
        raise Refused(Problem("touched-tree", name, what, again))
    if result.tree != pin.patched:
        what = f"is about another queue than today's for {pin.tag}"
        raise Refused(Problem("stale-evidence", name, what, again))


def _common(result: Result) -> dict[str, Any]:
    torch = result.torch
    return {
        "release": result.version,
        "date": result.date,
        "gpu": result.gpu.name,
        "torch": torch.version.partition("+")[0],
        "torch_pin": torch.pinned if torch.off_pin else "",
        "queue": result.tree,
        "attention": result.attention,
    }


def proof_rows(result: Answers, name: str) -> list[Row]:
    """A row for each model and mode. A pass against a reference that failed counts as not run.
    Raises Refused for a pass that was held against nothing."""
    held_against = (run for run in result.runs if run.mode.startswith(REFERENCE))
    references = {(run.model, run.mode): run for run in held_against}

    def judged(run: Run) -> Run:
        if run.verdict != "passed" or run.mode not in HELD:
            return run
        against = _reference(run, references)
        if against is None or against.verdict == NOT_RUN:
            what = f"says that {run.model} passed in {run.mode}, without its reference"
            raise Refused(Problem("bad-evidence", name, what, "give the whole result"))
        if against.verdict == "failed":
            return replace(run, verdict="not run", why=f"{NO_MEASURE}: {against.why}")
        return run

    return [_answer_row(result, judged(run), "proof", run.mode) for run in result.runs]


def _answer_row(result: Answers, run: Run, kind: Kind, name: str) -> Row:
    return Row(
        kind=kind,
        name=name,
        model=run.model,
        verdict=run.verdict,
        why=run.why,
        rules=result.harness or "" if kind == "proof" else "",
        control=bool(result.without),
        **_common(result),
    )


def _reference(run: Run, references: Mapping[tuple[str, str], Run]) -> Run | None:
    """What a run was held against, as tests/gpu/modes.py chose it: where a release has two
    references, the piecewise graphs have the first."""
    of_model = [references[key] for key in sorted(references) if key[0] == run.model]
    return of_model[-1 if run.mode in (BREAKABLE, EAGER) else 0] if of_model else None


def time_rows(result: Times) -> Iterator[Row]:
    """A row for each tree in each mode, and for each peer. Visits of one engine count together."""
    engines: dict[tuple[str, str], list[Visit]] = {}
    for visit in result.runs:
        engines.setdefault((visit.tree, visit.mode), []).append(visit)
    for peer in result.peers:
        engines.setdefault((f"{peer.name} {peer.version}".rstrip(), peer.mode), []).append(peer)
    run = _run_name(result)
    floor = {shape: least for shape, least in result.floor_ms.items() if least}
    for (name, mode), visits in engines.items():
        last = visits[-1]
        yield Row(
            kind="time",
            name=name,
            mode=mode,
            model=result.model,
            run=run,
            verdict=last.verdict,
            why=last.why,
            states=last.states or "",
            floor_ms=floor if name == PATCHED else {},
            **_figures(visits),
            **_common(result),
        )


def _figures(visits: Sequence[Visit]) -> dict[str, Any]:
    """First quartiles of all calls, and medians of profiles and loads."""
    calls: dict[str, list[float]] = {}
    busy: dict[str, list[float]] = {}
    served: dict[str, list[Served]] = {}
    for visit in visits:
        for shape, one in visit.first_token_ms.items():
            calls.setdefault(shape, []).extend(one.all)
        for shape, profile in visit.profile.items():
            busy.setdefault(shape, []).append(profile.busy_ms)
        for kind, loads in visit.traffic.items():
            served.setdefault(kind, []).extend(loads)
    rates = [load.tokens_per_s for visit in visits for load in visit.loads]
    return {
        "first_token_ms": {shape: _quartile(spans) for shape, spans in calls.items() if spans},
        "busy_ms": {shape: round(statistics.median(spans), 2) for shape, spans in busy.items()},
        "input_tokens_per_s": round(statistics.median(rates), 1) if rates else None,
        "loads": {kind: _load(loads) for kind, loads in served.items() if loads},
    }


def _quartile(spans: Sequence[float]) -> float:
    if len(spans) == 1:
        return round(spans[0], 2)
    return round(statistics.quantiles(spans, n=4, method="inclusive")[0], 2)


def _load(loads: Sequence[Served]) -> Load:
    rates = [
        one.input_tokens_per_s if one.later_ms == {} else one.output_tokens_per_s for one in loads
    ]
    half, most = (statistics.median(one.first_ms[part] for one in loads) for part in ("p50", "p99"))
    return Load(round(statistics.median(rates), 1), round(half, 1), round(most, 1))


def _run_name(result: Times) -> str:
    """What tells the runs of one release apart: GPU, attention, model, how both trees prefilled,
    with which states in the graph, and which loads of users the run took."""
    untouched, patched = (
        "-".join(sorted({run.mode for run in result.runs if run.tree == tree}))
        for tree in (UNTOUCHED, PATCHED)
    )
    states = {run.states or "" for run in result.runs if run.tree == PATCHED} - {""}
    words = (
        results.slug(result.gpu.name),
        "" if result.attention == results.USUAL_ATTENTION else result.attention,
        result.subject,
        "+".join([f"{untouched or 'peers'}-to-{patched}", *sorted(states)]),
        "-".join(sorted(result.gain.traffic)),
    )
    return ".".join(word for word in words if word)
