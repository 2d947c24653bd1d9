"""Run the tests: tests/queue on the tool, tests/revision on a release in its environment."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..files import run
from ..laying import worktree
from ..laying.apply import apply
from ..upstream.pins import Pin
from . import environment
from .lock import version_of

LOG = logging.getLogger(__name__)

HOME = Path(".nox/revisions")
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


def test_tool(root: Path) -> int:
    """Run tests/queue on all processors; pytest's exit code. Without matplotlib the tests of plots
    are skipped."""
    # tests start the tool and engines hundreds of times; half of such a start is compiling
    variables = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    # twice as many: tests wait for processes
    workers = min(2 * (os.cpu_count() or 1), TOOL_WORKERS)
    command = [*_with_plots(root), "-m", "pytest", str(root / "tests/queue")]
    if importlib.util.find_spec("xdist"):
        command += [f"--numprocesses={workers}", "--dist=worksteal"]
    return subprocess.run(command, cwd=root, env=variables).returncode


def _with_plots(root: Path) -> list[str]:
    """The Python that runs the tests of the tool: with matplotlib, which plots alone need; this one
    with the reason logged where matplotlib cannot be had."""
    python = [*with_packages(root, "plots"), "python"]
    tried = subprocess.run([*python, "-c", "import matplotlib"], capture_output=True, text=True)
    if tried.returncode == 0:
        return python
    LOG.info(f"the tests of plots are skipped, matplotlib cannot be had: {tried.stderr.strip()}")
    return [sys.executable]


def measure_coverage(root: Path) -> int:
    """Run tests/queue with coverage, and print the tool's lines that they run; the exit code of the
    first command that fails, else 0."""
    coverage = [*with_packages(root, "plots", "coverage"), "coverage"]
    tests = ["run", "-m", "pytest", "tests/queue", "-q", "-n", "auto"]
    for words in (tests, ["combine", "-q"], ["report"]):
        if code := subprocess.run([*coverage, *words], cwd=root).returncode:
            return code
    return 0


def with_packages(root: Path, *names: str) -> list[str]:
    """uv's command that runs another with the tool's packages, and with those of more locks in
    scripts/. uv keeps them, so that a second call asks for nothing."""
    files = [f"--with-requirements={root}/scripts/{each}.txt" for each in ("requirements", *names)]
    python = f"--python={sys.executable}"
    return [run.find_uv(), "run", "--quiet", "--no-project", python, *files]


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


def share(releases: int, processors: int) -> tuple[int, int]:
    """How many releases are tested in parallel, and in how many processes each. Releases first: a
    second process of one imports torch and sglang once more."""
    parallel = max(1, min(releases, processors, PARALLEL))
    return parallel, min(processors // parallel, WORKERS)


def test_release(
    root: Path, prepared: Prepared, words: Sequence[str], workers: int, log: Path | None
) -> Result:
    """Run pytest in the release's environment. words: further words for it; log: the file for its
    output, None for standard output."""
    pin, tree = prepared.pin, prepared.tree
    dropped = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    variables = (
        kept
        | prepared.environment.variables
        | {
            "PYTHONPATH": str(tree / "python"),
            "PATCHQUEUE_TREE": str(tree),
            "PATCHQUEUE_REVISION": str(pin.version),
            # PyTorch's threads spin for each other wherever a processor has other work as well
            "OMP_NUM_THREADS": "1",
        }
    )
    with tempfile.TemporaryDirectory(prefix="patchqueue-test-") as space:
        beside = spread(Path(space), workers)
        if beside:
            variables["PYTHONPATH"] += f"{os.pathsep}{space}"
        command = [str(prepared.environment.python), "-m", "pytest", str(root / "tests/revision")]
        command += [*beside, *words]
        with log.open("wb") if log else contextlib.nullcontext() as output:
            done = subprocess.run(command, cwd=root, env=variables, stdout=output, stderr=output)
    return Result(pin, done.returncode, prepared.as_it_stands)


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
    plugin = ["-p", "xdist.plugin", f"--numprocesses={workers}"]
    return [*plugin, "--dist=loadfile", "--no-loadscope-reorder"]
