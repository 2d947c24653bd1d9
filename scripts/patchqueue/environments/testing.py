"""Each release's environment, home/v<version>, made from its lock; and the tests run: tests/queue
on the tool, tests/revision on a release in its environment."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..applying import worktree
from ..applying.apply import apply
from ..files import run
from ..files.atomic import locked
from ..outcome import Refused, to_type
from ..upstream.pins import Pin
from . import cuda_stubs
from .lock import PYTHON, version_of

LOG = logging.getLogger(__name__)

MARKER = "made-from.sha256"  # written last: an environment without it was never finished
STAND_INS = "stand-ins"
BYTECODE = "bytecode"
SIZE = "4 to 5 GB on disk, about 1.5 GB from the package index, minutes"
# raise it when `build` makes something else of the same lock, stand-ins included: environments made
# before then count no more
RECIPE = "1"
HOME = Path(".nox/revisions")
WORKERS = 4  # of a release, at most: each imports torch and sglang, which takes 10 s and 1 GB
TOOL_WORKERS = 8  # at most, for tests/queue
# what spreads tests over processes: plain Python, of the tool's own environment
SPREAD = ("xdist", "execnet")


@dataclass(frozen=True)
class Environment:
    """A finished environment: its interpreter, and the variables that it needs."""

    python: Path
    variables: dict[str, str]


def stamp(lock: Path) -> str:
    """The sha256 of what an environment depends on: the lock's entries, and how it is built."""
    entries = [line for line in lock.read_bytes().splitlines() if not line.startswith(b"#")]
    return hashlib.sha256(b"\n".join([RECIPE.encode(), PYTHON.encode(), *entries])).hexdigest()


def _environment(folder: Path) -> Environment:
    libraries = [str(folder / STAND_INS), os.environ.get("LD_LIBRARY_PATH", "")]
    return Environment(
        python=folder / "bin" / "python",
        variables={
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
            "CUDA_VISIBLE_DEVICES": "",  # the same tests on a host that has a GPU
            # sglang takes twice as long to import without byte code, and a work tree gets none
            "PYTHONPYCACHEPREFIX": str(folder / BYTECODE),
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONNOUSERSITE": "1",
            "HF_HUB_OFFLINE": "1",
        },
    )


def lock_file(root: Path, pin: Pin) -> Path:
    return root / "upstream/locks" / f"{pin.version}.txt"


def pinned_torch(root: Path, pin: Pin) -> str:
    """The torch that a release's lock names; empty where there is no lock, or no torch in it."""
    file = lock_file(root, pin)
    return version_of(file.read_text(encoding="utf-8"), "torch") if file.is_file() else ""


def has_environment(root: Path, pin: Pin) -> bool:
    return lock_file(root, pin).is_file()


def find(root: Path, pin: Pin) -> Environment | None:
    """The release's environment if it is finished and made from this very lock."""
    folder = (root / HOME).absolute() / f"v{pin.version}"
    try:
        made_from = (folder / MARKER).read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _environment(folder) if made_from == stamp(lock_file(root, pin)) else None


def build(root: Path, pin: Pin) -> Environment:
    """The release's environment, built from its lock unless it was already made from that: under a
    lock file, its marker written last. Raises Refused."""
    version, lock, home = str(pin.version), lock_file(root, pin), (root / HOME).absolute()
    if not lock.is_file():
        step = f"{to_type('pin', version, '--lock')} makes one"
        raise _refused(version, f"{version} has no environment: there is no {lock}", step)
    if sys.platform != "linux" or platform.machine() != "x86_64":
        what = f"the locks are for Linux on x86_64, this is {sys.platform} on {platform.machine()}"
        raise _refused(version, what, "run the tests there, or in CI")
    with locked(home / f".v{version}.lock") as held:
        if found := find(root, pin):
            return found
        LOG.info(f"building the environment of {version} from {lock.name}, once ({SIZE})")
        folder = home / f"v{version}"
        shutil.rmtree(folder, ignore_errors=True)
        make = ("venv", "--python", PYTHON, str(folder))
        _uv(version, held, f"make a Python {PYTHON} environment", *make)
        install = ("pip", "install", "--no-deps", "--no-build", "--require-hashes")
        where = ("--python", str(folder / "bin/python"), "--requirement", str(lock))
        _uv(version, held, f"install {lock}", *install, *where)
        packages = next((folder / "lib").glob("python*/site-packages"))
        _check(version, folder, cuda_stubs.write_stand_ins(packages, folder / STAND_INS))
        (folder / MARKER).write_text(stamp(lock) + "\n")
        return _environment(folder)


def _uv(version: str, held: int, what: str, *arguments: str) -> None:
    try:
        # held: where this process is killed, uv keeps the lock until it too has stopped writing
        run.uv(*arguments, held=held)
    except run.Failed as failure:
        what = f"{version}: uv could not {what}:\n{textwrap.indent(failure.said, '    ')}"
        again = "if the network or the disk failed, run it again; if a file is gone from the index,"
        raise _refused(version, what, f"{again} {to_type('pin', version, '--lock')}") from None


def _refused(version: str, what: str, step: str) -> Refused:
    return Refused.of("no-environment", f"v{version}", what, step)


def _check(version: str, folder: Path, stand_ins: list[str]) -> None:
    """torch and sgl_kernel must load, or every test would fail with the loader's words."""
    environment = _environment(folder)
    variables = os.environ | environment.variables
    command = [str(environment.python), "-c", "import torch, sgl_kernel"]
    done = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-4:])
        last = last or f"killed by signal {-done.returncode}"
        raise _refused(
            version,
            f"{version}: torch and sgl_kernel do not load with stand-ins for"
            f" {' '.join(stand_ins)}:\n{textwrap.indent(last, '    ')}",
            "a library named there is missing on this host, or belongs into STANDS_IN_FOR"
            " (scripts/patchqueue/environments/cuda_stubs.py)",
        )


def test_tool(root: Path, words: Sequence[str] = ()) -> int:
    """Run tests/queue on all processors; pytest's exit code. words: further words for pytest."""
    # tests start the tool and engines hundreds of times; half of such a start is compiling
    variables = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    # twice as many: tests wait for processes
    workers = min(2 * (os.cpu_count() or 1), TOOL_WORKERS)
    command = [sys.executable, "-m", "pytest", str(root / "tests/queue")]
    if importlib.util.find_spec("xdist"):
        command += [f"--numprocesses={workers}", "--dist=worksteal"]
    return subprocess.run([*command, *words], cwd=root, env=variables).returncode


def test_release(
    root: Path, pin: Pin, words: Sequence[str], workers: int, is_beside: bool = False
) -> tuple[int, bool, str]:
    """Run pytest in a release's environment: its exit code, whether the tree has edits of a user's,
    and its output. is_beside: behind other tests; else the output is shown as it is written."""
    work = worktree.WorkTree(root, pin.tag)
    is_edited, tree = work.inspect().state is worktree.State.CHANGED, work.path.absolute()
    if is_edited:
        LOG.info(f"work/{pin.tag} has edits of yours: it is tested as it stands")
    else:
        apply(root, pin, None)
    environment = build(root, pin)
    dropped = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    own = {
        "PYTHONPATH": str(tree / "python"),
        "PATCHQUEUE_TREE": str(tree),
        "PATCHQUEUE_REVISION": str(pin.version),
        # PyTorch's threads spin for each other wherever a processor has other work as well
        "OMP_NUM_THREADS": "1",
    }
    variables = kept | environment.variables | own
    command = [*(["nice"] if is_beside else []), str(environment.python), "-m", "pytest"]
    with tempfile.TemporaryDirectory(prefix="patchqueue-test-") as space:
        beside = spread(Path(space), workers)
        if beside:
            variables["PYTHONPATH"] += f"{os.pathsep}{space}"
        command += [str(root / "tests/revision"), *beside, *words]
        output = subprocess.PIPE if is_beside else None
        done = subprocess.run(command, cwd=root, env=variables, stdout=output, text=True)
    return done.returncode, is_edited, done.stdout or ""


def spread(folder: Path, workers: int) -> list[str]:
    """What pytest needs for several processors, with the tool's own pytest-xdist in `folder`."""
    found = {name: importlib.util.find_spec(name) for name in SPREAD}
    places = {name: spec.origin for name, spec in found.items() if spec and spec.origin}
    if workers < 2 or len(places) < len(SPREAD):
        return []
    for name, origin in places.items():
        (folder / name).symlink_to(Path(origin).parent)
    plugin = ["-p", "xdist.plugin", f"--numprocesses={workers}"]
    return [*plugin, "--dist=loadfile", "--no-loadscope-reorder"]
