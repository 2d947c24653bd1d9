"""Run the tests: tests/queue on the tool, tests/revision on a release in its environment."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..files import run
from ..files.atomic import locked
from ..laying import worktree
from ..laying.apply import apply
from ..outcome import Refused
from ..upstream.pins import Pin
from . import environment
from .lock import version_of

LOG = logging.getLogger(__name__)

HOME = Path(".nox/revisions")
COVERAGE = ("requirements", "plots", "coverage")  # locks in scripts/
PLOTS = Path("scripts/plots.txt")  # what the tests of plots need: matplotlib, locked
PARALLEL = 4  # releases, at most
WORKERS = 4  # of a release, at most: each imports torch and sglang, which takes 10 s and 1 GB
TOOL_WORKERS = 8  # at most, for tests/queue
# what spreads tests over processes: plain Python, of the tool's own environment
SPREAD = ("xdist", "execnet")
# pytest's exit code when nothing was selected: for a release without patches that is right
NO_TESTS = 5


@dataclass(frozen=True)
class Result:
    """One release's run. as_it_stands: the tree had edits that the queue does not hold, and was
    tested with them."""

    pin: Pin
    exit_code: int
    as_it_stands: bool

    @property
    def passed(self) -> bool:
        return self.exit_code == 0 or (self.exit_code == NO_TESTS and bool(self.pin.no_patches))


def lock_file(root: Path, pin: Pin) -> Path:
    return root / "upstream/locks" / f"{pin.version}.txt"


def pinned_torch(root: Path, pin: Pin) -> str:
    """The torch that a release's lock names; empty where there is no lock, or no torch in it."""
    file = lock_file(root, pin)
    return version_of(file.read_text(encoding="utf-8"), "torch") if file.is_file() else ""


def has_environment(root: Path, pin: Pin) -> bool:
    return lock_file(root, pin).is_file()


def is_built(root: Path, pin: Pin) -> bool:
    return environment.find(str(pin.version), lock_file(root, pin), root / HOME) is not None


def build_environment(root: Path, pin: Pin) -> environment.Environment:
    """The release's environment, built from its lock where it is not there yet. Raises Refused
    with the reason."""
    return environment.build(str(pin.version), lock_file(root, pin), root / HOME)


def matplotlib_folder(root: Path) -> Path | None:
    """A folder with matplotlib for the tests of plots, made once; None, with the reason said, where
    it cannot be had.

    It is kept out of the tool's own environment, which it would make twice as large for everybody.
    """
    wanted, folder = (
        root / PLOTS,
        root / HOME.parent / f"plots-{sys.version_info.major}.{sys.version_info.minor}",
    )
    marker = folder / "made-from.txt"
    with locked(folder.with_name(f".{folder.name}.lock")) as held:
        if marker.is_file() and marker.read_bytes() == wanted.read_bytes():
            return folder
        LOG.info(
            f"installing matplotlib for the tests of plots into {folder.relative_to(root)}, once"
            " (about 140 MB)"
        )
        shutil.rmtree(folder, ignore_errors=True)
        if why := _install(wanted, folder, held):
            LOG.info(f"the tests of plots are skipped, matplotlib could not be installed: {why}")
            return None
        marker.write_bytes(wanted.read_bytes())
        return folder


def _install(wanted: Path, folder: Path, held: int) -> str:
    """Install locked requirements for this Python into a folder; why that failed, else ""."""
    words = ["pip", "install", "--require-hashes", "--python", sys.executable]
    try:
        run.uv(*words, "--target", str(folder), "--requirement", str(wanted), held=held)
    except run.Failed as failure:
        return failure.said
    except Refused as refusal:
        return refusal.problems[0].what
    return ""


def test_tool(root: Path) -> int:
    """Run tests/queue in the environment that runs the tool, on all processors; pytest's exit
    code."""
    plots = matplotlib_folder(root)
    more = {
        "PYTHONPATH": os.pathsep.join(
            str(path) for path in (plots, os.environ.get("PYTHONPATH")) if path
        ),
        # tests start the tool and engines hundreds of times; half of such a start is compiling
        "PYTHONDONTWRITEBYTECODE": "",
    }
    # twice as many: tests wait for processes
    workers = min(2 * (os.cpu_count() or 1), TOOL_WORKERS)
    command = [sys.executable, "-m", "pytest", str(root / "tests/queue")]
    if importlib.util.find_spec("xdist"):
        command += [f"--numprocesses={workers}", "--dist=worksteal"]
    return subprocess.run(command, cwd=root, env=os.environ | more).returncode


def measure_coverage(root: Path) -> int:
    """Run tests/queue with coverage, and print the tool's lines that they run; the exit code of the
    first command that fails, else 0."""
    files = [f"--with-requirements={root}/scripts/{name}.txt" for name in COVERAGE]
    uv = [run.find_uv(), "run", "--quiet", "--no-project", f"--python={sys.executable}", *files]
    tests = ["run", "-m", "pytest", "tests/queue", "-q", "-n", "auto"]
    for words in (tests, ["combine", "-q"], ["report"]):
        if code := subprocess.run([*uv, "coverage", *words], cwd=root).returncode:
            return code
    return 0


@dataclass(frozen=True)
class Prepared:
    """A release's tree and environment, ready for its tests. as_it_stands: as in Result."""

    pin: Pin
    tree: Path
    environment: environment.Environment
    as_it_stands: bool


def prepare(root: Path, pin: Pin) -> Prepared:
    """Apply (a tree with edits of the user's stays as it is), and build the environment where it is
    not there yet.

    Raises Refused when the tree or the environment cannot be had.
    """
    tree = worktree.WorkTree(root, pin.tag)
    as_it_stands = tree.inspect().state is worktree.State.CHANGED
    if as_it_stands:
        LOG.info(
            f"work/{pin.tag} has edits that the queue does not hold: it is tested as it stands"
        )
    else:
        apply(root, pin, None)
    return Prepared(pin, tree.path.absolute(), build_environment(root, pin), as_it_stands)


@dataclass(frozen=True)
class Share:
    """How many releases are tested in parallel, and in how many processes each."""

    releases: int
    workers: int


def share(releases: int, processors: int) -> Share:
    """Releases first: a second process of one imports torch and sglang once more."""
    parallel = max(1, min(releases, processors, PARALLEL))
    return Share(parallel, min(processors // parallel, WORKERS))


def test_release(
    root: Path, prepared: Prepared, words: Sequence[str], workers: int, log: Path | None
) -> Result:
    """Run pytest in the release's environment. words: further words for it; log: the file for its
    output, None for standard output."""
    pin, tree = prepared.pin, prepared.tree
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    }
    variables |= prepared.environment.variables | {
        "PYTHONPATH": str(tree / "python"),
        "PATCHQUEUE_TREE": str(tree),
        "PATCHQUEUE_REVISION": str(pin.version),
        # PyTorch's threads spin for each other wherever a processor has other work as well
        "OMP_NUM_THREADS": "1",
    }
    with tempfile.TemporaryDirectory(prefix="patchqueue-test-") as space:
        beside = spread(Path(space), workers)
        if beside:
            variables["PYTHONPATH"] += f"{os.pathsep}{space}"
        command = [
            str(prepared.environment.python),
            "-m",
            "pytest",
            str(root / "tests/revision"),
            *beside,
            *words,
        ]
        with log.open("wb") if log else contextlib.nullcontext() as output:
            code = subprocess.run(
                command, cwd=root, env=variables, stdout=output, stderr=output
            ).returncode
    return Result(pin, code, prepared.as_it_stands)


def spread(folder: Path, workers: int) -> list[str]:
    """What pytest needs to run a file of tests on each of several processors, once `folder` is on
    its path; nothing for one.

    The locks stay as their releases are: pytest-xdist is linked from the environment that runs the
    tool.
    """
    found = {name: importlib.util.find_spec(name) for name in SPREAD}
    places = {name: spec.origin for name, spec in found.items() if spec and spec.origin}
    if workers < 2 or len(places) < len(SPREAD):
        return []
    for name, origin in places.items():
        (folder / name).symlink_to(Path(origin).parent)
    return [
        "-p",
        "xdist.plugin",
        f"--numprocesses={workers}",
        "--dist=loadfile",
        "--no-loadscope-reorder",
    ]
