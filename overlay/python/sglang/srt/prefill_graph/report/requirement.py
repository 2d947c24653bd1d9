"""Whether every scheduler on this host runs the tree that is asked for: for start scripts and
readiness probes. What a scheduler runs is what its record says (records.py)."""

from __future__ import annotations

import argparse
import enum
import re
from dataclasses import dataclass

from . import records, schedulers
from .provenance import ALGORITHM, SHOWN
from .records import Record
from .schedulers import Scheduler


class Answer(enum.IntEnum):
    """The exit code of the command. 2 is left to words that cannot be understood."""

    RUNS = 0
    DIFFERS = 1
    SILENT = 3
    NO_SERVER = 4


@dataclass(frozen=True)
class Found:
    """answer, and the one sentence that says why. compared: how many schedulers were looked at."""

    answer: Answer
    sentence: str
    compared: int = 0


def digits(tree: str) -> str:
    """The hexadecimal digits of a tree's hash, or of its beginning, as a log or `--verify` prints
    it. Raises ArgumentTypeError where it is no such hash, or too short to tell trees apart."""
    found = tree.strip().lower().removeprefix(ALGORITHM).rstrip("…")
    if not re.fullmatch(rf"[0-9a-f]{{{SHOWN},64}}", found):
        raise argparse.ArgumentTypeError(
            f"{tree!r} is not a tree: give sha256: and {SHOWN} to 64 of its hexadecimal digits, as"
            " the server's log prints them"
        )
    return found


def require(wanted: str, below: int | None = None) -> Found:
    """wanted: as `digits` gives it. below: a process; only those that descend from it count."""
    running = schedulers.running(below)
    told = {one.pid: one for uid in {one.uid for one in running} for one in records.read_all(uid)}
    return decide(wanted, running, told)


def decide(wanted: str, running: list[Scheduler], told: dict[int, Record]) -> Found:
    """told: the records by pid. A tree that differs comes before a scheduler without a record."""
    if not running:
        return Found(Answer.NO_SERVER, "No scheduler of an sglang server runs here.")
    count = len(running)
    trees = {one.pid: told[one.pid].tree for one in running if one.pid in told}
    begin = ALGORITHM + wanted
    for one in running:
        if one.pid in trees and not trees[one.pid].startswith(begin):
            runs = trees[one.pid] or "a tree without a listing"
            return Found(Answer.DIFFERS, f"{one} runs {runs}, not {begin}.", count)
    silent = [one for one in running if one.pid not in trees]
    if silent:
        what = (
            f"{silent[0]} left no record: it runs an unpatched sglang, or its graph is not decided"
            f" yet ({len(silent)} of {count} schedulers)."
        )
        return Found(Answer.SILENT, what, count)
    if len(set(trees.values())) > 1:
        what = f"Two trees begin with {begin}: give more of its digits."
        return Found(Answer.DIFFERS, what, count)
    who = f"All {count} schedulers run" if count > 1 else f"{running[0]} runs"
    return Found(Answer.RUNS, f"{who} {next(iter(trees.values()))}.", count)
