"""How a command of this project, and a number of things, is written for a user: the one place that
knows."""

from __future__ import annotations

import shlex
from pathlib import Path


def to_type(name: str, *words: object) -> str:
    """The command as a user types it in the queue's folder, in backticks: `scripts/nox apply
    v0.5.9`.

    A path is quoted for a shell where it has to be; other words stand as they are, so that one may
    hold several.
    """
    shown = (shlex.quote(str(word)) if isinstance(word, Path) else str(word) for word in words)
    return f"`{' '.join(['scripts/nox', name, *shown])}`"


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things: `1 file`, `2 files`. many: a plural that does not end in a mere s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"
