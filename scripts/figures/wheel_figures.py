"""Install the built wheel of every release that has GPU proofs in front of its locked environment,
and ask it what it is.

    python scripts/figures/wheel_figures.py [RELEASE …]

On a host without a GPU: the wheel's version, `python -m sglang.srt.prefill_graph --verify` in
place, and the parts that a server imports before it needs a GPU.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from patchqueue.environments import environment, testing  # noqa: E402
from patchqueue.proofs.evidence import MEASURED  # noqa: E402
from patchqueue.upstream import pins  # noqa: E402
from patchqueue.wheels import build  # noqa: E402

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
    target = build.Target(environment.PYTHON, os.uname().machine)
    built = build.build(ROOT, pin, target, None, space / "wheels", lambda *_: None)
    site = space / "site"
    uv = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--offline",
        "--python",
        str(home.python),
        "--target",
        str(site),
        str(built.path),
    ]
    subprocess.run(uv, check=True)
    variables = (
        {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        | home.variables
        | {"PYTHONPATH": str(site)}
    )

    def ask(*words: str) -> list | dict:
        done = subprocess.run(
            [str(home.python), *words], cwd=space, env=variables, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{pin.tag}: {done.stdout[-500:]}{done.stderr[-1500:]}")
        return json.loads(done.stdout[done.stdout.index("{" if "--json" in words else "[") :])

    said = ask("-m", "sglang.srt.prefill_graph", "--verify", "--json")
    version, file = ask("-c", ASK)
    return {
        "wheel": built.path.name,
        "its own": version == built.version and Path(file).is_relative_to(site),
        "intact": said["verification"]["intact"],
        "files": said["verification"]["files"],
        "queue": (
            said["tree"]["queue"]
            == json.loads((site / "sglang/srt/prefill_graph/provenance.json").read_text())["queue"]
        ),
        "patches": len(said["tree"]["patches"]),
    }


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    known, bad = pins.load(ROOT), 0
    chosen = [known.find(word) for word in sys.argv[1:]] or proven(known)
    for pin in chosen:
        with tempfile.TemporaryDirectory(prefix="patchqueue-wheel-") as space:
            found = measure(pin, Path(space))
        bad += not all(value for value in found.values() if isinstance(value, bool))
        print(pin.tag, *(f"{name}={value}" for name, value in found.items()), flush=True)
    print(f"{len(chosen) - bad} of {len(chosen)} wheels right")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
