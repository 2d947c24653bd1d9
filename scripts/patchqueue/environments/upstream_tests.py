"""Run upstream's unit tests for CPUs on a release's pristine tree and on the patched one, in the
release's environment: which pass unpatched and do not pass patched."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from ..files.atomic import locked
from ..files.tree import list_folder
from ..upstream import source
from ..upstream.pins import Pin
from ..upstream.source import Source
from . import suite
from .environment import Environment
from .suite import Suite
from .testing import Prepared

LIMIT = 300  # seconds for a file; upstream's own limit for one is 1200
TICK = 0.5  # seconds until an interrupted run ends what it has started
PROCESSES = 4  # at most: each imports torch and sglang, which takes 10 s and 1 GB
# A device that no host has: sglang's helpers for tests make a number of the first character, and
# fail where there is none (python/sglang/test/test_utils.py).
NO_DEVICE = "99"
SUMMARY = " short test summary info "  # pytest's heading: a line for each test follows
# what those helpers import at their top, and no lock has (LEFT_OUT in environments/lock.py)
IMPORTED = ("datasets",)
STAND_IN = '''"""In place of a package that the environment lacks: it imports, and no more."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_, **__):
        raise ModuleNotFoundError(f"No module named {__name__!r}", name=__name__)

    return missing
'''
# what of the caller's variables no test gets: other packages, and how upstream's CI runs them
DROPPED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTEST_ADDOPTS", "CI", "GITHUB_ACTIONS")


@dataclass(frozen=True)
class Side:
    """One tree, and a copy of the checkout's tests beside it.

    folder: holds test/, a copy, and python, a link to the tree; path: what Python finds modules in,
    the tree's own python/ first.
    """

    folder: Path
    path: tuple[Path, ...]


@dataclass(frozen=True)
class Outcome:
    """One file on one tree. passed: test ids, as pytest prints them; lines: pytest's lines about
    the others; ended: why the file has no results, "" where it has."""

    passed: frozenset[str]
    lines: tuple[str, ...] = ()
    ended: str = ""

    def reason(self, test: str) -> str:
        """Why a test did not pass."""
        marks = (f"{kind} {test}" for kind in ("FAILED", "ERROR"))
        own = [
            line for mark in marks for line in self.lines if f"{line} - ".startswith(f"{mark} - ")
        ]
        return (own or [self.ended or "it is skipped, or not among the file's tests"])[0]


@dataclass(frozen=True)
class Compared:
    """One file on both trees. both: how many tests passed on both; broken: what passed on the
    pristine tree alone, with what became of it on the patched one; ended: on the pristine tree."""

    file: str
    both: int
    broken: Mapping[str, str]
    ended: str


@dataclass(frozen=True)
class Run:
    """What all files are run with. limit: seconds for one file on one tree; stop: set where
    the user interrupts, to end what runs."""

    pristine: Side
    patched: Side
    environment: Environment
    limit: float
    stop: Event = field(default_factory=Event)


@contextmanager
def laid(prepared: Prepared, checkout: Path, pristine: Path, limit: float) -> Iterator[Run]:
    """Both trees with the checkout's tests beside them, in a folder that is removed again. Nothing
    is written into the checkout. pristine: the folder of the pristine tree."""
    with tempfile.TemporaryDirectory(prefix="patchqueue-upstream-") as name:
        more = Path(name) / "stand-ins"
        more.mkdir()
        for package in IMPORTED:
            (more / f"{package}.py").write_text(STAND_IN)
        before = _side(checkout, Path(name) / "pristine", pristine / "python", more)
        after = _side(checkout, Path(name) / "patched", prepared.tree / "python", more)
        yield Run(before, after, prepared.environment, limit)


def _side(checkout: Path, folder: Path, python: Path, more: Path) -> Side:
    """Tests find their release from where they lie, as `parents[4] / "python"`."""
    (folder / "tmp").mkdir(parents=True)
    left = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    shutil.copytree(checkout / "test", folder / "test", symlinks=True, ignore=left)
    (folder / "python").symlink_to(python)
    return Side(folder, (python, more))


def _pristine_tree(root: Path, pin: Pin, pristine: Source) -> Path:
    """The unpatched release as a folder, kept beside the trees in work/ since its byte code is kept
    by its place. It is made anew where a file of it is not the release's."""
    folder = root / "work/.patchqueue" / f"{pin.tag}.pristine"
    with locked(folder.with_suffix(".pristine-lock")):
        if not folder.is_dir() or list_folder(folder) != pristine.listing():
            shutil.rmtree(folder, ignore_errors=True)
            pristine.unpack(folder)
    return folder.absolute()


def release_of(root: Path, pin: Pin, checkout: Path) -> tuple[Suite, Path]:
    """The checkout's tests, and the folder of the pristine release.

    Raises Refused where the checkout is not the release's, or holds no such test.
    """
    suite.refuse_no_checkout(checkout, pin)
    pristine = source.fetch(pin, None)
    suite.refuse_other_release(checkout, pin, pristine.listing())
    return suite.find(checkout), _pristine_tree(root, pin, pristine)


def run_all(run: Run, files: Sequence[str], processors: int) -> Iterator[Compared]:
    """Every file on both trees, several at once; each as soon as it and all before it are done."""
    with ThreadPoolExecutor(max(1, min(processors, PROCESSES))) as pool:
        try:
            sides = (run.pristine, run.patched)
            jobs = [[pool.submit(run_file, run, side, file) for side in sides] for file in files]
            for file, (before, after) in zip(files, jobs):
                yield compare(file, before.result(), after.result())
        except BaseException:
            run.stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def compare(file: str, pristine: Outcome, patched: Outcome) -> Compared:
    """What passed on the pristine tree alone, and why not on the patched one."""
    broken = {test: patched.reason(test) for test in sorted(pristine.passed - patched.passed)}
    return Compared(file, len(pristine.passed & patched.passed), broken, pristine.ended)


def run_file(run: Run, side: Side, file: str) -> Outcome:
    """Run one file in a process of its own. Its processes are killed when it ends, or at the limit.

    pytest is started where upstream starts its tests: in test/.
    """
    command = [str(run.environment.python), "-m", "pytest", str(side.folder / file)]
    command += ["-q", "-rpfE", "--tb=short", "--show-capture=no", "-p", "no:cacheprovider"]
    command += [f"--rootdir={side.folder}"]
    with tempfile.TemporaryFile(dir=side.folder / "tmp") as log:
        code = _ended(command, side, run, log.fileno())
        log.seek(0)
        said = log.read().decode("utf-8", "replace")
    return read(said, code, run.limit)


def read(said: str, code: int | None, limit: float) -> Outcome:
    """A file's results from what pytest printed. code: its exit code, None where it was killed at
    the limit of `limit` seconds."""
    if code is None:
        return Outcome(frozenset(), ended=f"timed out after {limit:g} s")
    lines = [line for line in said.rpartition(SUMMARY)[2].splitlines() if line.strip()]
    bad = tuple(line for line in lines if line.startswith(("FAILED ", "ERROR ")))
    passed = {line.partition(" ")[2] for line in lines if line.startswith("PASSED ")}
    # an error at its end counts: such a test has two lines
    passed -= {line.partition(" ")[2].partition(" - ")[0] for line in bad}
    if passed or bad:
        # where the file itself has an error it is the reason of all its tests
        whole = next((line for line in bad if "::" not in line.partition(" - ")[0]), "")
        marked = re.findall(r"(?m)^E {2,}(\S.*)$", said) if whole else []
        return Outcome(frozenset(passed), bad, ": ".join([whole, *marked[-1:]]))
    ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return Outcome(frozenset(), ended=f"{ended}: {(said.strip().splitlines() or [''])[-1][:150]}")


def _variables(side: Side, run: Run) -> dict[str, str]:
    """What the tests of the release itself get (environments/testing.py), and a folder for
    temporary files. No SGLANG_… of the caller's: sglang and its tests are set by them."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in DROPPED and not name.startswith("SGLANG_")
    }
    own = {
        "PYTHONPATH": os.pathsep.join(map(str, side.path)),
        "CUDA_VISIBLE_DEVICES": NO_DEVICE,
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(side.folder / "tmp"),
        "COLUMNS": "240",  # of a line in the summary
    }
    return {**kept, **run.environment.variables, **own}


def _ended(command: Sequence[str], side: Side, run: Run, log: int) -> int | None:
    """The process's exit code; None where it was killed at the limit."""
    process = subprocess.Popen(
        command,
        cwd=side.folder / "test",
        env=_variables(side, run),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    end = time.monotonic() + run.limit
    try:
        while time.monotonic() < end and not run.stop.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(min(TICK, run.limit))
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
