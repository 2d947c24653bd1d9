"""Take the built wheel of every release that has GPU proofs from a package index, install it in
front of its locked environment, and ask it what it is.

The index is static pages on a server of this host. On a host without a GPU: the wheel's version,
`python -m sglang.srt.prefill_graph --verify` in place, and the parts that a server imports before
it needs a GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from patchqueue.environments import testing
from patchqueue.environments.lock import PYTHON
from patchqueue.publishing import index
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


class Quiet(SimpleHTTPRequestHandler):
    """Files, without a line for each request."""

    def log_message(self, *words: object) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which a folder's files are served, on this host alone."""
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def fetch(built: build.Built, python: Path, site: Path) -> None:
    """Install a built wheel into `site`, by its version, from an index of the folder it is in."""
    folder = built.path.parent
    index.write(index.of_folder(folder), folder)
    uv = [sys.executable, "-m", "uv", "--no-config", "pip", "install", "--quiet", "--no-deps"]
    uv += ["--no-cache", "--python", str(python), "--target", str(site)]
    with served(folder) as url:
        words = ["--default-index", f"{url}/simple/", f"sglang=={built.version}"]
        subprocess.run([*uv, *words], check=True)


def measure(pin: pins.Pin, space: Path) -> dict[str, object]:
    """What the installed wheel says; a bool is a claim that must be true."""
    home = testing.build_environment(ROOT, pin)
    target = build.Target(PYTHON, os.uname().machine)
    built = build.build(ROOT, pin, target, None, space / "wheels")
    site = space / "site"
    fetch(built, home.python, site)
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
