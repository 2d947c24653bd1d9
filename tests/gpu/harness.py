"""Which rules a result was judged by: standard library only, read by run.py and by the tool that
keeps evidence."""

from __future__ import annotations

import hashlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
FILES = (
    "cases.py",
    "compare.py",
    "engine.py",
    "models.py",
    "modes.py",
    "returned.py",
    "watch/sitecustomize.py",
)


def identity() -> str:
    """A hash over the files that settle what is asked, of which models, and what counts as
    agreement."""
    named = "".join(
        f"{hashlib.sha256((HERE / name).read_bytes()).hexdigest()}  {name}\n" for name in FILES
    )
    return f"sha256:{hashlib.sha256(named.encode()).hexdigest()}"
