"""Which rules a result was judged by: standard library only. harness.json says which files hold
them; the tool that keeps evidence reads it too, and makes the same hash."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
KNOWN = HERE / "harness.json"


def identity() -> str:
    """A hash over the files that settle what is asked, of which models, and what counts as
    agreement."""
    files = json.loads(KNOWN.read_text(encoding="utf-8"))["files"]
    named = "".join(
        f"{hashlib.sha256((HERE / name).read_bytes()).hexdigest()}  {name}\n" for name in files
    )
    return f"sha256:{hashlib.sha256(named.encode()).hexdigest()}"
