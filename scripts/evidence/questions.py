"""What scripts of tests/gpu ask beside the matrix: evidence/questions.toml names them, and
evidence/<version>/questions/<gpu>.<name>.json keeps what they found.

Such a script holds one engine's answers against that engine's own, asked otherwise. It writes one
file, and with --without queue a control: the release's own tree must answer otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct
from packaging.specifiers import SpecifierSet

from patchqueue.files import record
from patchqueue.files.locking import locked
from patchqueue.laying.apply import load_queue
from patchqueue.outcome import Problem, Refused
from patchqueue.queue.series import Queue
from patchqueue.upstream.pins import Pin, Pins

from . import store
from .matrix import Cell, State, gap, host, named
from .merge import DAY, Fate, Gathered
from .records import Found

FILE, FOLDER, CONTROL = store.FOLDER / "questions.toml", "questions", ".control"


class Question(Struct, frozen=True, forbid_unknown_fields=True):
    """One script. asks: the releases that it can ask, as in series."""

    title: str
    repairs: tuple[str, ...]
    asks: SpecifierSet

    def can_ask(self, pin: Pin) -> bool:
        return self.asks.contains(pin.version, prereleases=True)


class Told(Struct, frozen=True):
    """One check. what: in words; why: what was found."""

    what: str
    good: bool
    why: str = ""


class Answered(Found, frozen=True, kw_only=True):
    """One file, as far as it is read here. without: "queue" in a control."""

    date: Annotated[str, Meta(pattern=f"^{DAY.pattern}$")]
    without: Literal["", "queue"]
    checks: Annotated[tuple[Told, ...], Meta(min_length=1)]

    @property
    def wrong(self) -> str:
        """What the first check that is not good found; empty where all are good."""
        return next((one.why or one.what for one in self.checks if not one.good), "")

    def rank(self, now: str) -> tuple[object, ...]:
        """Of two files about one question the greater stays: about today's tree, on the torch that
        the release pins, the later one, and of equals the one that failed. The checks' text decides
        last, for nothing but one answer."""
        text = repr(self.checks)
        return self.changes == now, not self.torch.off_pin, self.date, bool(self.wrong), text


@dataclass(frozen=True)
class Row:
    """One release. cells: in the order of the questions."""

    pin: Pin
    cells: tuple[Cell, ...]


def load(root: Path) -> dict[str, Question]:
    """The questions by name; none where there is no such file. Raises Refused naming what is
    wrong."""
    if not (root / FILE).is_file():
        return {}
    found = record.toml((root / FILE).read_bytes(), dict[str, Question], str(FILE), "bad-questions")
    for name, one in found.items():
        for patch in one.repairs:
            if not (root / "patches" / patch).is_file():
                what = f"[{name}] names {patch}, and patches/ has no such file"
                raise Refused(Problem("bad-questions", str(FILE), what))
    return found


def table(root: Path, pins: Pins) -> list[Row]:
    """A row for each pin, newest first."""
    asked, queue = load(root), load_queue(root)
    return [
        Row(pin, tuple(cell(root, queue, pin, name, one) for name, one in asked.items()))
        for pin in reversed(pins.all)
    ]


def cell(root: Path, queue: Queue, pin: Pin, name: str, question: Question) -> Cell:
    """What is known of one question on one release: from its files, else from the queue. Untold
    where the control answered as the queue's tree did."""
    found = [store.load(file, Answered) for file in _kept(root, pin, name)]
    answers = [one for one in found if not one.without]
    if not answers:
        return _expected(queue, pin, name, question)
    now = store.today(root, pin)
    # one that failed about today's tree outweighs all that passed, on whatever GPU
    last = max(answers, key=lambda one: (one.changes == now, bool(one.wrong), one.rank(now)))
    state = State.FAILED if last.wrong else State.PROVEN
    reason = host(last) + (f": {last.wrong}" if last.wrong else "")
    if last.changes != now:
        why = f"the queue has changed since the run of {last.date}, which said {state}:"
        return Cell(State.STALE, f"{why} {reason}", last.date)
    controls = [one for one in found if one.without and one.gpu.name == last.gpu.name]
    if state is State.PROVEN and controls and all(one.wrong for one in controls):
        return Cell(State.UNTOLD, f"{reason}: the release's own tree answered alike", last.date)
    told = "the release's own tree answered otherwise" if controls else "no control ran"
    return Cell(state, f"{reason}; {told}", last.date)


def _expected(queue: Queue, pin: Pin, name: str, question: Question) -> Cell:
    """What the queue alone says."""
    selected = {queue.base(patch.name) for patch in queue.select(pin.version)}
    if repairs := [patch for patch in question.repairs if patch in selected]:
        why = f"the queue repairs it with {named(repairs)}"
        limit = "" if question.can_ask(pin) else f"; `{name}.py` asks {question.asks} alone"
        return Cell(State.NOT_RUN, why + limit)
    why = gap([queue.patches[patch].header for patch in question.repairs], pin)
    return Cell(State.NOT_APPLICABLE, why or "no patch repairs it there")


def gather(root: Path, pins: Pins, folder: Path) -> list[Gathered]:
    """Keep every file below `folder` that a question is named after, each checked as proofs are.
    What is refused keeps no other out."""
    files = sorted(file for name in load(root) for file in folder.rglob(f"{name}.json"))
    with locked(root / store.LOCK):
        return [_gathered(root, pins, file) for file in files]


def _gathered(root: Path, pins: Pins, file: Path) -> Gathered:
    try:
        one, found = store.load(file, Answered), json.loads(file.read_bytes())
        pin = pins.find(one.version)
        store.check_tree(root, pin, found, file.name)
        control = CONTROL if one.without else ""
        path = _folder(root, pin) / f"{store.slug(one.gpu.name)}.{file.stem}{control}.json"
        before = store.load(path, Answered) if path.is_file() else None
    except Refused as refusal:
        why = "; ".join(f"{problem.what} [{problem.name}]" for problem in refusal.problems)
        return Gathered(file, Fate.REFUSED, None, why)
    text = json.dumps(store.without_paths(found), indent=1) + "\n"
    if before:
        now = store.today(root, pin)
        if path.read_text() == text:
            return Gathered(file, Fate.THERE, path, "1 answer")
        if before.rank(now) >= one.rank(now):
            return Gathered(file, Fate.SUPERSEDED, path, f"what is kept is of {before.date}")
    path.parent.mkdir(parents=True, exist_ok=True)
    store.put(path, text)
    return Gathered(file, Fate.TAKEN, path, "1 answer")


def _folder(root: Path, pin: Pin) -> Path:
    return root / store.FOLDER / str(pin.version) / FOLDER


def _kept(root: Path, pin: Pin, name: str) -> Iterable[Path]:
    folder = _folder(root, pin)
    return [*folder.glob(f"*.{name}.json"), *folder.glob(f"*.{name}{CONTROL}.json")]
