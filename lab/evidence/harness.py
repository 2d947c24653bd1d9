"""What tests/gpu says of itself: its harness.py, and which models and modes it knows."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from patchqueue.files import record
from patchqueue.outcome import Refused

FOLDER = Path("tests/gpu")
FILE = FOLDER / "harness.json"
# A GPU host has tests/gpu alone: what it must hash as this side does stands there.
_OWN = runpy.run_path(str(Path(__file__).resolve().parents[2] / FOLDER / "harness.py"))
code: Callable[[bytes], str] = _OWN["code"]


class Harness(Struct, frozen=True):
    """files: relative to tests/gpu."""

    files: tuple[str, ...]
    models: tuple[str, ...]
    modes: tuple[str, ...]


def load(root: Path) -> Harness:
    """Raises Refused naming what is wrong with the file."""
    try:
        content = (root / FILE).read_bytes()
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise Refused.of("bad-harness", str(FILE), what, "use a whole clone") from None
    return record.json(content, Harness, str(FILE), "bad-harness")


def identity(root: Path) -> str:
    """A hash over the rules that tests/gpu judges by now. Raises Refused as `load` does."""
    load(root)
    return str(_OWN["identity"](root / FOLDER))


def refuse_unknown(root: Path, models: Sequence[str], modes: Sequence[str]) -> None:
    """Raise Refused for a model or graph mode that tests/gpu does not know: its own refusal comes
    after gigabytes were built."""
    if not models and not modes:
        return
    known = load(root)
    for given, names, bad in ((models, known.models, "no-model"), (modes, known.modes, "no-mode")):
        if unknown := [word for word in given if word not in names]:
            what, step = f"is unknown to {FOLDER}", f"name one of {' '.join(names)}"
            raise Refused.of(bad, repr(unknown[0]), what, step)
