"""Run tests/gpu on this host: on the built wheel's own files, in an environment made for them or in
the one at hand."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree, unpack_archive

from bundle import untouched
from patchqueue.environments.lock import until
from patchqueue.files.atomic import locked
from patchqueue.files.run import Failed, uv
from patchqueue.outcome import Problem, Refused, to_type
from patchqueue.upstream import source
from patchqueue.upstream.pins import Pin
from patchqueue.wheels import Target, build

from . import harness

LOG = logging.getLogger(__name__)

RESULTS = {"run": "evidence.json"}  # what a script of tests/gpu writes, if it is not NAME.json
BESIDE_UNTOUCHED = ("gain", "agree")  # what runs the release without the queue too
FOLDER = Path("dist/gpu")


@dataclass(frozen=True)
class Ran:
    """What became of a run. result: the file it wrote, or None where it wrote none."""

    code: int
    result: Path | None


@dataclass(frozen=True)
class Call:
    """What is run, and where. script: of tests/gpu; words: more for it; experiment: the row of
    run.py's table, if another than the proof. here: the interpreter to run it in, with the folders
    `sites` of packages; empty: in an environment of the release's own. out: a new folder for the
    result, so that several runs of one release can go on at once (default: dist/gpu/<tag>)."""

    script: str
    words: Sequence[str] = ()
    here: str = ""
    sites: Sequence[Path] = ()
    out: Path | None = None
    experiment: str = ""


def run(root: Path, pin: Pin, call: Call) -> Ran:
    """Build the release's wheel and run a script on it, with its output passed on."""
    if call.out and call.out.is_dir() and any(call.out.iterdir()):
        what, step = "holds files already", "name a new folder with --out"
        raise Refused(Problem("not-empty", str(call.out), what, step))
    look_for_gpu(pin)
    built = build(root, pin, Target(), None, root / "dist")
    folder = root / FOLDER / pin.tag
    name = call.experiment or call.script
    out = call.out or folder / name
    if call.here:
        python, tree = call.here, unpack(built.path, (call.out or folder) / "tree")
    else:
        lock = root / "upstream/locks" / f"{pin.version}.txt"
        with locked(root / FOLDER / f"{pin.tag}.lock"):
            python, tree = environment(pin, built.path, lock, folder / "env")
    if out.parent == folder:
        rmtree(out, ignore_errors=True)
    command = [python, str(root / harness.FOLDER / f"{call.script}.py")]
    command += [call.experiment] if call.experiment else []
    folders = [("--out", out), ("--tree", tree), *(("--site", site) for site in call.sites)]
    if name in BESIDE_UNTOUCHED:
        folders.append(("--untouched", untouched.lay(built, out / "release")))
    command += [word for option, path in folders for word in (option, str(path.absolute()))]
    code = subprocess.run([*command, *call.words]).returncode
    result = out / RESULTS.get(name, f"{name}.json")
    return Ran(code, result if result.is_file() else None)


def look_for_gpu(pin: Pin) -> None:
    """Raise Refused where the host shows no GPU: asked before gigabytes are built that no run would
    use."""
    why = "nvidia-smi shows no GPU"
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.strip():
            return
    except OSError as error:
        why = f"nvidia-smi cannot be run ({error.strerror})"
    test = to_type("test", pin.tag)
    step = f"run it on a host with an NVIDIA GPU; without one, {test} tests the release"
    raise Refused(Problem("no-gpu", pin.tag, f"{why}; nothing was built", step))


def unpack(wheel: Path, folder: Path) -> Path:
    """The wheel's files in a folder of their own."""
    rmtree(folder, ignore_errors=True)
    unpack_archive(wheel, folder, "zip")
    return folder


def environment(pin: Pin, wheel: Path, lock: Path, folder: Path) -> tuple[str, Path]:
    """(python, its site-packages) with the wheel and all that it requires: as in the release's
    lock, and what that leaves out (CUDA's libraries, kernels built ahead) as the index stood on the
    pin's day. Made once for each wheel. Raises Refused with uv's words where the host cannot have
    it."""
    python = folder / "bin/python"
    mark = folder / f"{wheel.name}.{source.file_sha256(wheel)[:16]}"
    if not mark.is_file():
        LOG.info(f"making {pin.tag}'s own environment, once (about 10 GB on disk, minutes)")
        own = f"{sys.version_info.major}.{sys.version_info.minor}"
        _uv("venv", "--clear", "--python", own, str(folder))
        words = ["--prerelease=allow"]
        words += ["--exclude-newer", until(pin.resolve_as_of), "--python", str(python)]
        words += ["--constraint", str(lock)] if lock.is_file() else []
        _uv("pip", "install", *words, str(wheel))
        mark.touch()
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    asked = subprocess.run(ask, capture_output=True, text=True, check=True)
    return str(python), Path(asked.stdout.strip())


def _uv(*words: str) -> None:
    try:
        uv(*words)
    except Failed as failure:
        step = f"`--here --site FOLDER` runs in the interpreter at hand; see {to_type('bundle')}"
        raise Refused(Problem("no-environment", "gpu", failure.said[-1500:], step)) from None
