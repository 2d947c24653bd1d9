"""One engine that is asked what a question asks: `python solo_engine.py PLAN.json`. Started for the
rows of solo.py.

PLAN: as engine.py's, and question (the module that asks).
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import engine as engines


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    engine, result = engines.start(plan)
    Path(plan["out"] + ".ready").touch()
    result |= importlib.import_module(plan["question"]).asked(engine)
    result["prefills"] = engines.watched(plan["watch"])
    Path(plan["out"]).write_text(json.dumps(result))
    engine.shutdown()


if __name__ == "__main__":  # the engine's own processes import this file again
    main()
