"""How a command of this project, and a number of things, is written for a user: the one place that
knows.

The tool runs from a clone of the queue, by scripts/nox, or from a wheel that brings the queue's
files, by `patchqueue`. A wheel's has the commands that write nothing into the queue.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

PACKAGED = Path(__file__).with_name("packaged")  # what pyproject.toml puts there: in a wheel alone


def in_wheel() -> bool:
    """Whether this is the tool of a wheel, with the queue in PACKAGED."""
    return PACKAGED.is_dir()


def program() -> str:
    """What a user types before a command's name."""
    return "patchqueue" if in_wheel() else "scripts/nox"


def _typed() -> str:
    """The same, and for uvx, which sets UV and leaves no program behind, the whole call."""
    if not in_wheel() or "UV" not in os.environ:
        return program()
    text = metadata.distribution("sglang-patch-queue").read_text("direct_url.json")  # PEP 610
    origin = json.loads(text or '{"url": "sglang-patch-queue"}')
    git = origin.get("vcs_info", {})
    at = f"@{git['requested_revision']}" if "requested_revision" in git else ""
    url = re.sub("//[^/]*@", "//", f"{'git+' if git else ''}{origin['url']}{at}")
    return f"uvx --from {shlex.quote(url)} patchqueue"


def to_type(name: str, *words: object) -> str:
    """The command as a user types it, in backticks: in the queue's folder `scripts/nox apply
    v0.5.9`.

    A path is quoted for a shell where it has to be; other words stay as they are, so that one may
    hold several.
    """
    shown = (shlex.quote(str(word)) if isinstance(word, Path) else str(word) for word in words)
    return f"`{' '.join([_typed(), name, *shown])}`"


def in_clone(name: str, words: str) -> str:
    """A command that a wheel's tool lacks, as a user types it in a clone of the queue."""
    if in_wheel():
        return f"in a clone of the queue `scripts/nox {name} {words}`"
    return to_type(name, words)


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things: `1 file`, `2 files`. many: a plural that does not end in a mere s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def some(names: Sequence[str]) -> str:
    """The first five, and how many more there are."""
    return " ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
