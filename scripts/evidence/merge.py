"""Gather what the hosts of a fleet wrote into evidence/<version>/<gpu>.json: of every model and
mode the run that says most.

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

from . import store

RESULT = "evidence.json"  # as tests/gpu/run.py names it
REFERENCE = "reference"  # how the modes that others are held against begin
AGAINST_REFERENCE = ("piecewise", "piecewise-inductor", store.BREAKABLE, "eager")
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")  # as run.py writes it, and in an order that text has too


class Fate(str, enum.Enum):
    """What became of one file."""

    TAKEN = "taken"
    THERE = "already there"
    OUTDONE = "outdone"
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

    entry: dict
    facts: dict
    file: Path | None

    @property
    def text(self) -> str:
        """What two equal runs have in common, wherever they came from."""
        return json.dumps([self.entry, self.facts], sort_keys=True)

    def rank(self, now: str, rules: str) -> tuple:
        """Of two runs of one model in one mode the greater stays. now: the identity of today's
        queue; rules: of today's harness.

        One that ran; about today's tree; by today's harness; on the torch that the release pins;
        the later one; and of equals the one that failed, so that nobody can ask until it passes.
        The text decides last, for nothing but one answer.
        """
        lifetimes = self.facts.get("lifetimes") or {"verdict": store.GOOD[0]}
        failed = any(one["verdict"] not in store.GOOD for one in (self.entry, lifetimes))
        return (
            self.entry["verdict"] != store.NOT_RUN,
            *standing(self.facts, now, rules),
            failed,
            self.text,
        )


def standing(facts: dict, now: str, rules: str) -> tuple:
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
    check = _checker(root)
    results: dict[Path, list[tuple[Path, dict]]] = {}
    gathered: dict[Path, Gathered] = {}
    pin_of: dict[Path, Pin] = {}
    for file in files:
        try:
            found = usable(store.read(file), file.name)
            pin = pins.find(str(found["version"]))
            check(
                pin,
                json.dumps(
                    [found[name] for name in ("tree_untouched", "changes", "queue", "tree")]
                ),
                file.name,
            )
            path, kept = store.place_of(root, pin, found), store.clean(found)
        except Refused as refusal:
            gathered[file] = Gathered(
                file,
                Fate.REFUSED,
                None,
                "; ".join(f"{problem.what} [{problem.name}]" for problem in refusal.problems),
            )
            continue
        pin_of[path] = pin
        results.setdefault(path, []).append((file, kept))
    rules, texts = store.harness(root), {}
    for path, found in results.items():
        before = store.read(path) if path.is_file() else None
        whole, fates = fold(before, found, store.today(root, pin_of[path]), rules)
        gathered |= {file: Gathered(file, fate, path, why) for file, (fate, why) in fates.items()}
        if whole != before:
            texts[path] = json.dumps(whole, indent=1) + "\n"
    for path, text in texts.items():
        store.put(path, text)
    return [gathered[file] for file in files]


def _checker(root: Path) -> Callable[[Pin, str, str], None]:
    """store.check_tree, asked once for each tree: a fleet sends many results about one."""

    @cache
    def problems(pin: Pin, identity: str, name: str) -> tuple[Problem, ...]:
        try:
            untouched, changes, queue, tree = json.loads(identity)
            store.check_tree(
                root,
                pin,
                {"tree_untouched": untouched, "changes": changes, "queue": queue, "tree": tree},
                name,
            )
        except Refused as refusal:
            return refusal.problems
        return ()

    def check(pin: Pin, identity: str, name: str) -> None:
        if found := problems(pin, identity, name):
            raise Refused(found)

    return check


def usable(found: dict, name: str) -> dict:
    """A result as it is merged: what passed against a reference that failed itself counts as not
    run.

    Raises Refused for a bench, for what was merged already, and for a pass that was held against
    nothing.
    """
    references = [run for run in found["runs"] if run["mode"].startswith(REFERENCE)]
    held = [
        run
        for run in found["runs"]
        if run["mode"] in AGAINST_REFERENCE and run["verdict"] == "passed"
    ]
    ran = {run.get("model") for run in references if run["verdict"] != store.NOT_RUN}
    alone = [run for run in held if run.get("model") not in ran]
    wrong = ""
    if not DAY.fullmatch(str(found.get("date"))):
        wrong = f"is of no day: {found.get('date')}"
    elif "load" in found or not all(isinstance(run.get("model"), str) for run in found["runs"]):
        wrong = "is a bench's result, and only proofs are merged"
    elif any("host" in run for run in found["runs"]):
        wrong = "was merged already: its runs name several hosts"
    elif alone:
        wrong = (
            f"says that {alone[0]['model']} passed in {alone[0]['mode']}, and holds no run that it"
            " was held against"
        )
    if wrong:
        raise Refused(
            Problem(
                "bad-evidence",
                name,
                wrong,
                f"{to_type('gpu', '--take FILE')} keeps a bench; of a proof give the file that"
                " tests/gpu/run.py wrote",
            )
        )
    bad = {run["model"]: run.get("why", "") for run in references if run["verdict"] == "failed"}
    late = {
        id(run): {"verdict": store.NOT_RUN, "why": f"its reference failed: {bad[run['model']]}"}
        for run in held
        if run["model"] in bad
    }
    return found | {"runs": [run | late.get(id(run), {}) for run in found["runs"]]}


def fold(
    before: dict | None, found: list[tuple[Path, dict]], now: str, rules: str
) -> tuple[dict, dict[Path, tuple[Fate, str]]]:
    """One file below evidence/ with the results of the same release and kind of GPU, and what
    became of each result.

    The file's own facts are those of the weightiest result that has a run in it.
    """
    headers = {file: result for file, result in [(None, before), *found] if result}
    runs = [
        Run(
            {name: value for name, value in entry.items() if name != "host"},
            store.facts(result, entry),
            file,
        )
        for file, result in headers.items()
        for entry in result["runs"]
    ]
    stays: dict[tuple, Run] = {}
    for run in runs:
        key = store.key(run.entry)
        # of equal ones the first stays: the kept one
        if key not in stays or run.rank(now, rules) > stays[key].rank(now, rules):
            stays[key] = run
    sources = {run.file for run in stays.values()}
    header = max(
        (headers[file] for file in headers if file in sources),
        key=lambda one: (
            *standing(one, now, rules),
            one is before,
            json.dumps(_head(one), sort_keys=True),
        ),
    )
    head = _head(header)
    if not any(run.facts.get("lifetimes") == head.get("lifetimes") for run in stays.values()):
        head.pop("lifetimes", None)  # of a host none of whose breakable runs stays
    entries = [
        store.stated(run.entry, run.facts, head)
        for _, run in sorted(stays.items(), key=lambda item: (item[0][0], item[0][1]))
    ]
    whole = head | {"runs": entries}
    whole["passed"] = store.passed(whole)
    return whole, {
        file: _fate([run for run in runs if run.file == file], stays) for file, _ in found
    }


def _head(found: dict) -> dict:
    return {name: value for name, value in found.items() if name not in ("runs", "passed")}


def _fate(mine: list[Run], stays: dict[tuple, Run]) -> tuple[Fate, str]:
    """What became of one result's runs."""
    new = [run for run in mine if stays[store.key(run.entry)] is run]
    if new:
        return Fate.TAKEN, f"{len(new)} of {len(mine)} runs"
    outdone = [run for run in mine if stays[store.key(run.entry)].text != run.text]
    if not outdone:
        return Fate.THERE, counted(len(mine), "run")
    one, other = outdone[0], stays[store.key(outdone[0].entry)]
    return (
        Fate.OUTDONE,
        (
            f"what is kept says more, as {one.entry['model']} in {one.entry['mode']}:"
            f" {other.entry['verdict']} on {other.facts.get('date')} rather than"
            f" {one.entry['verdict']} on {one.facts.get('date')}"
        ),
    )
