"""Gather what the hosts of a fleet wrote into evidence/<version>/<gpu>.json: the most authoritative
run of each model and mode.

Each host runs some models of some releases, in parts. A run stands for itself: it was held against
its own host's eager prefill, and keeps what it was made under where that is not what the file says
(store.facts). Which of two runs of one model in one mode stays is a total order, so that neither
the order of files nor gathering them twice changes the outcome.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from patchqueue.files.locking import locked
from patchqueue.hint import counted, to_type
from patchqueue.outcome import Problem, Refused
from patchqueue.upstream.pins import Pin, Pins

from . import harness, store
from .store import Entry, Key, without

RESULT = "evidence.json"  # as tests/gpu/run.py names it
REFERENCE = "reference"  # how the modes that others are held against begin
AGAINST_REFERENCE = ("piecewise", "piecewise-inductor", store.BREAKABLE, "eager")
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")  # as run.py writes it, and in an order that text has too
OF_RUNS = ("runs", "passed")  # what a file says of its runs


class Fate(str, enum.Enum):
    """What became of one file."""

    TAKEN = "taken"
    THERE = "already there"
    SUPERSEDED = "superseded"
    REFUSED = "refused"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Gathered:
    """One file's fate. kept: the file below evidence/, None where it was refused; why: how many
    runs stay, or the reason."""

    file: Path
    fate: Fate
    kept: Path | None
    why: str


@dataclass(frozen=True)
class Run:
    """One run and what it was made under. entry: without its own "host"; facts: see store.facts;
    file: None where it was kept before."""

    entry: Entry
    facts: Entry
    file: Path | None

    @property
    def text(self) -> str:
        """What two equal runs have in common, wherever they came from."""
        return json.dumps([self.entry, self.facts], sort_keys=True)

    def rank(self, now: str, rules: str) -> tuple[object, ...]:
        """Of two runs of one model in one mode the greater stays. now: the identity of today's
        queue; rules: of today's harness.

        One that ran, with a reference or without; about today's tree; held against a reference; by
        today's harness; on the torch that the release pins; the later one; and of equals the one
        that failed, so that nobody can ask until it passes. The text decides last, for nothing but
        one answer.
        """
        told = self.entry["verdict"] != store.NOT_RUN
        ran = told or str(self.entry.get("why", "")).startswith(store.NO_MEASURE)
        of_today, *weight = standing(self.facts, now, rules)
        lifetimes = self.facts.get("lifetimes") or {"verdict": store.GOOD[0]}
        failed = any(one["verdict"] not in store.GOOD for one in (self.entry, lifetimes))
        return (
            ran,
            of_today,
            told,
            *weight,
            failed,
            self.text,
        )


def standing(facts: Entry, now: str, rules: str) -> tuple[object, ...]:
    """How much weight what a run was made under gives it: about today's tree, by today's rules, on
    the release's own torch, late."""
    return (
        facts["changes"] == now,
        facts.get("harness") == rules,
        not facts["torch"].get("off_pin"),
        str(facts.get("date") or ""),
    )


def merge(root: Path, pins: Pins, folder: Path) -> list[Gathered]:
    """Gather every store.json below `folder`, each checked as store.take checks it. What is
    refused keeps no other out.

    Every file below evidence/ is replaced whole or left alone; a merge that was killed is finished
    by the next. Raises Refused where there is nothing to gather, or where a file below evidence/
    cannot be read.
    """
    files = sorted(folder.rglob(RESULT))
    if not files:
        raise Refused(
            Problem(
                "no-evidence",
                str(folder),
                f"holds no {RESULT}",
                "name the folder that the hosts' result folders were put into",
            )
        )
    with locked(root / store.LOCK):
        return _merge(root, pins, files)


def _merge(root: Path, pins: Pins, files: list[Path]) -> list[Gathered]:
    checked = _checker(root)
    results: dict[tuple[Pin, Path], list[tuple[Path, Entry]]] = {}
    gathered: dict[Path, Gathered] = {}
    for file in files:
        try:
            found = usable(store.read(file), file.name)
            pin = pins.find(str(found["version"]))
            if problems := checked(pin, *(found[name] for name in store.TREE)):
                raise Refused(problems)
            place = store.place_of(root, pin, found)
            results.setdefault((pin, place), []).append((file, store.clean(found)))
        except Refused as refusal:
            why = "; ".join(f"{problem.what} [{problem.name}]" for problem in refusal.problems)
            gathered[file] = Gathered(file, Fate.REFUSED, None, why)
    rules, texts = harness.identity(root), {}
    for (pin, path), mine in results.items():
        before = store.read(path) if path.is_file() else None
        whole, fates = fold(before, mine, store.today(root, pin), rules)
        gathered |= {file: Gathered(file, fate, path, why) for file, (fate, why) in fates.items()}
        if whole != before:
            texts[path] = json.dumps(whole, indent=1) + "\n"
    for path, text in texts.items():
        store.put(path, text)
    return [gathered[file] for file in files]


def _checker(root: Path) -> Callable[..., tuple[Problem, ...]]:
    """What store.check_tree has against a tree, asked once for each: a fleet sends many results
    about one."""

    @cache
    def problems(pin: Pin, *tree: str) -> tuple[Problem, ...]:
        try:
            store.check_tree(root, pin, dict(zip(store.TREE, tree)), RESULT)
        except Refused as refusal:
            return refusal.problems
        return ()

    return problems


def usable(found: Entry, name: str) -> Entry:
    """A result as it is merged: what passed against a reference that failed itself counts as not
    run.

    Raises Refused for a bench, for what was merged already, and for a pass that was held against
    nothing.
    """
    runs = found["runs"]
    references = [run for run in runs if run["mode"].startswith(REFERENCE)]
    held = [run for run in runs if run["mode"] in AGAINST_REFERENCE and run["verdict"] == "passed"]
    if wrong := _unusable(found, references, held):
        step = f"{to_type('gpu', '--take FILE')} keeps a bench; of a proof give the file that"
        raise Refused(Problem("bad-evidence", name, wrong, f"{step} tests/gpu/run.py wrote"))
    against = {(run["model"], run["mode"]): run for run in references}
    late = {
        id(run): {"verdict": store.NOT_RUN, "why": f"{store.NO_MEASURE}: {of.get('why', '')}"}
        for run in held
        if (of := _reference(run, against))["verdict"] == "failed"
    }
    return found | {"runs": [run | late.get(id(run), {}) for run in runs]}


def _reference(run: Entry, against: dict[tuple[str, str], Entry]) -> Entry:
    """What a run was held against, as tests/gpu/modes.py chose it: where a release has two
    references, the piecewise graphs have the first."""
    found = [against[key] for key in sorted(against) if key[0] == run["model"]]
    return found[-1 if run["mode"] in (store.BREAKABLE, "eager") else 0]


def _unusable(found: Entry, references: list[Entry], held: list[Entry]) -> str:
    """Why a result cannot be merged; empty where it can."""
    if not DAY.fullmatch(str(found.get("date"))):
        return f"is of no day: {found.get('date')}"
    if "load" in found or not all("model" in run for run in found["runs"]):
        return "is a bench's result, and only proofs are merged"
    if any("host" in run for run in found["runs"]):
        return "was merged already: its runs name several hosts"
    ran = {run["model"] for run in references if run["verdict"] != store.NOT_RUN}
    for run in held:
        if run["model"] not in ran:
            what = f"says that {run['model']} passed in {run['mode']}"
            return f"{what}, and holds no run that it was held against"
    return ""


def fold(
    before: Entry | None, found: list[tuple[Path, Entry]], now: str, rules: str
) -> tuple[Entry, dict[Path, tuple[Fate, str]]]:
    """One file below evidence/ with the results of the same release and kind of GPU, and what
    became of each result.

    The file's own facts are those of the weightiest result that has a run in it.
    """
    headers = {file: result for file, result in [(None, before), *found] if result}
    runs = [
        Run(without(entry, "host"), store.facts(result, entry), file)
        for file, result in headers.items()
        for entry in result["runs"]
    ]
    stays: dict[Key, Run] = {}
    for run in runs:
        # of equal ones the first stays: the kept one
        key = store.key(run.entry)
        stays[key] = max(stays.get(key, run), run, key=lambda one: one.rank(now, rules))
    head = _head([headers[file] for file in headers if file in _files(stays)], before, now, rules)
    if not any(run.facts.get("lifetimes") == head.get("lifetimes") for run in stays.values()):
        head.pop("lifetimes", None)  # of a host none of whose breakable runs stays
    kept = [stays[key] for key in sorted(stays, key=lambda key: key[:2])]
    whole = head | {"runs": [store.stated(run.entry, run.facts, head) for run in kept]}
    whole["passed"] = store.passed(whole)
    return whole, {
        file: _fate([run for run in runs if run.file == file], stays) for file, _ in found
    }


def _files(stays: dict[Key, Run]) -> set[Path | None]:
    return {run.file for run in stays.values()}


def _head(results: list[Entry], before: Entry | None, now: str, rules: str) -> Entry:
    """The weightiest result without its runs."""

    def weight(one: Entry) -> tuple[object, ...]:
        text = json.dumps(without(one, *OF_RUNS), sort_keys=True)
        return *standing(one, now, rules), one is before, text

    return without(max(results, key=weight), *OF_RUNS)


def _fate(mine: list[Run], stays: dict[Key, Run]) -> tuple[Fate, str]:
    """What became of one result's runs."""
    new = [run for run in mine if stays[store.key(run.entry)] is run]
    if new:
        return Fate.TAKEN, f"{len(new)} of {len(mine)} runs"
    outdone = [run for run in mine if stays[store.key(run.entry)].text != run.text]
    if not outdone:
        return Fate.THERE, counted(len(mine), "run")
    one, other = outdone[0], stays[store.key(outdone[0].entry)]
    what = f"what is kept says more, as {one.entry['model']} in {one.entry['mode']}"
    told = (f"{each.entry['verdict']} on {each.facts.get('date')}" for each in (other, one))
    return Fate.SUPERSEDED, f"{what}: {' rather than '.join(told)}"
