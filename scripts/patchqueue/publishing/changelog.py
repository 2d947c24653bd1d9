"""CHANGELOG.md: the section of one release of the queue, and its heading."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

from ..outcome import Refused

FILE = Path("CHANGELOG.md")
NEXT = "Next"  # the heading of what is not released yet


def read(root: Path) -> str:
    """The whole file. Raises Refused where there is none."""
    try:
        return (root / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        step = f"write what a user gains, under `## {NEXT}`"
        raise Refused.of("no-changelog", str(FILE), "is not there", step) from None


def entry(text: str, release: int, cut: bool) -> str:
    """What stands under a release's heading, or, before it is cut, under `## Next`; ends with a
    line end. Raises Refused where nothing does."""
    heading = rf"{release}(?:,[^\n]*)?" if cut else NEXT
    found = re.search(rf"(?ms)^## {heading}$\n(.*?)(?=^## |\Z)", text)
    if not found or not found[1].strip():
        name = f"## {release}" if cut else f"## {NEXT}"
        what = f"has nothing under `{name}`"
        step = "write what a user gains by this release, a line or more"
        raise Refused.of("no-entry", str(FILE), what, step)
    return f"{found[1].strip()}\n"


def named(text: str, release: int, day: datetime.date) -> str:
    """The file with `## Next` turned into the heading of a release. Raises Refused where it has
    none."""
    entry(text, release, cut=False)
    return re.sub(rf"(?m)^## {NEXT}$", f"## {release}, {day.isoformat()}", text, count=1)


def begun(text: str) -> str:
    """The file with an empty `## Next` above the first release; as it is where it has one."""
    if re.search(rf"(?m)^## {NEXT}$", text):
        return text
    return re.sub(r"(?m)^## ", f"## {NEXT}\n\n## ", text, count=1)
