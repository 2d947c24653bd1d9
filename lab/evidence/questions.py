"""What scripts of tests/gpu ask beside the matrix: evidence/questions.toml names them.

Such a script holds one engine's answers against that engine's own, asked otherwise. It writes one
file, and with --without queue a control: the release's own tree must answer otherwise.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from packaging.specifiers import SpecifierSet

from patchqueue.files import record
from patchqueue.outcome import Problem, Refused
from patchqueue.upstream.pins import Pin

FILE = Path("evidence/questions.toml")


class Question(Struct, frozen=True, forbid_unknown_fields=True):
    """One script. asks: the releases that it can ask, as in series."""

    title: str
    repairs: tuple[str, ...]
    asks: SpecifierSet

    def can_ask(self, pin: Pin) -> bool:
        return self.asks.contains(pin.version, prereleases=True)


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
