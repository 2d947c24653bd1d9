"""Install the built wheel of every release that has GPU proofs in front of its locked environment,
and ask it what it is.

On a host without a GPU: the wheel's version, `python -m sglang.srt.prefill_graph --verify` in
place, and the parts that a server imports before it needs a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from patchqueue.environments import testing
from patchqueue.environments.lock import PYTHON
from patchqueue.upstream import pins
from patchqueue.wheels import build

from ..store import MEASURED
from .copies import ROOT

# the HTTP server needs packages that these environments leave out
STARTS = "sglang.srt.entrypoints.engine, sglang.srt.model_executor.model_runner"
ASK = (
    f"import json, sglang.version, {STARTS}; print(json.dumps([sglang.version.__version__,"
    " sglang.__file__]))"
)


def proven(known: pins.Pins) -> list[pins.Pin]:
    """The releases with GPU proofs in evidence/."""
    return [
        pin
        for pin in known.all
        if any(
            not path.name.endswith(MEASURED)
            for path in (ROOT / "evidence" / str(pin.version)).glob("*.json")
        )
    ]


def measure(pin: pins.Pin, space: Path) -> dict[str, object]:
    """What the installed wheel says; a bool is a claim that must be true."""
    home = testing.build_environment(ROOT, pin)
    target = build.Target(PYTHON, os.uname().machine)
    built = build.build(ROOT, pin, target, None, space / "wheels")
    site = space / "site"
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--offline"]
    uv += ["--python", str(home.python), "--target", str(site), str(built.path)]
    subprocess.run(uv, check=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    variables = kept | home.variables | {"PYTHONPATH": str(site)}

    def ask(*words: str) -> Any:
        done = subprocess.run(
            [str(home.python), *words], cwd=space, env=variables, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{pin.tag}: {done.stdout[-500:]}{done.stderr[-1500:]}")
        return json.loads(done.stdout[done.stdout.index("{" if "--json" in words else "[") :])

    said = ask("-m", "sglang.srt.prefill_graph", "--verify", "--json")
    version, file = ask("-c", ASK)
    own = site / "sglang/srt/prefill_graph/provenance.json"
    return {
        "wheel": built.path.name,
        "its own": version == built.version and Path(file).is_relative_to(site),
        "intact": said["verification"]["intact"],
        "files": said["verification"]["files"],
        "queue": said["tree"]["queue"] == json.loads(own.read_text())["queue"],
        "patches": len(said["tree"]["patches"]),
    }
