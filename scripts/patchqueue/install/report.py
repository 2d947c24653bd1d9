"""What became of an installed sglang."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..outcome import Outcome


@dataclass(frozen=True)
class Report:
    """What became of an installed sglang. record: its provenance; changed, added: the number of
    files; notes: what to know.

    faults: files of the queue that are not as it made them, by their names below the folder.
    others: files that others edited since, where every change of the queue is still in place;
    before: files that others had edited before. next_step: what puts faults right.
    """

    site: Path
    outcome: Outcome
    record: dict[str, Any]
    changed: int = 0
    added: int = 0
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    next_step: str = ""
