"""One engine that answers prompts and stays until it is ended: `python ready_engine.py PLAN.json`.
Started by ready.py.

PLAN: as engine.py's, without watch. `out` is written behind the last answer.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import cases
import engine as engines
import ready


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    engine, result = engines.start(plan)
    for number, prompt in enumerate(ready.prompts()):
        call = cases.Call(f"prompt-{number}", "ready", (tuple(prompt),), 2)
        engines.ask(engine, call, logprobs=False)
    Path(plan["out"]).write_text(json.dumps(result))
    while True:
        time.sleep(1)


if __name__ == "__main__":  # the engine's own processes import this file again
    main()
