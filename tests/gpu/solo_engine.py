"""What the engine scripts of solo.py's share: `python NAME_engine.py PLAN.json` starts one engine,
asks it, and writes what it said. PLAN: as engine.py's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engine as engines


def main(asked: Callable[[Any], dict]) -> None:
    """asked: what the started engine is asked, and what becomes part of the result."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    engine, result = engines.start(plan)
    Path(plan["out"] + ".ready").touch()
    result |= asked(engine) | {"prefills": engines.watched(plan["watch"])}
    Path(plan["out"]).write_text(json.dumps(result))
    engine.shutdown()
