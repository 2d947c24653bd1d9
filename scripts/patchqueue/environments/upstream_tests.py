"""Run upstream's unit tests for CPUs on a release's pristine tree and on the patched one, in the
release's environment, and compare."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

from ..files.locking import locked
from ..files.tree import list_folder
from ..upstream import source
from ..upstream.pins import Pin
from ..upstream.source import Source
from . import suite, verdicts
from .environment import Environment
from .suite import Suite
from .testing import Prepared
from .verdicts import Case, State, Verdict

LOG = logging.getLogger(__name__)

LIMIT = 300  # seconds for a file; upstream's own limit for one is 1200
TICK = 0.5  # seconds until an interrupted run ends what it has started
PROCESSES = 4  # at most: each imports torch and sglang, which takes 10 s and 1 GB
NO_TESTS = 5  # pytest's exit code where it ran no test: there is none, or the file skips itself
GOOD = (0, 1, 2, NO_TESTS)  # passed, some failed, what was not collected interrupted it
# A device that no host has: sglang's helpers for tests make a number of the first character, and
# fail where there is none (python/sglang/test/test_utils.py).
NO_DEVICE = "99"
# what those helpers import at their top, and no lock has (LEFT_OUT in environments/lock.py)
IMPORTED = ("datasets",)
LACKED = (
    "import sys\nfrom importlib.util import find_spec\n"
    "print(*[name for name in sys.argv[1:] if find_spec(name) is None])"
)
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

    name: str
    folder: Path
    path: tuple[Path, ...]


@dataclass(frozen=True)
class Ran:
    """One file on one tree. cases: by test id; seconds: of its process."""

    cases: verdicts.Cases
    seconds: float


@dataclass(frozen=True)
class Compared:
    """One file on both trees. seconds: of all its processes."""

    file: str
    verdict: Verdict
    seconds: float


@dataclass(frozen=True)
class Run:
    """What all files are run with. limit: seconds for one file on one tree; stop: set where
    the user interrupts, to end what runs."""

    pristine: Side
    patched: Side
    environment: Environment
    limit: float
    stop: Event = field(default_factory=Event)

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.pristine, self.patched


@contextmanager
def laid(prepared: Prepared, checkout: Path, pristine: Path, limit: float) -> Iterator[Run]:
    """Both trees with the checkout's tests beside them, in a folder that is removed again.

    pristine: the folder of the pristine tree. Nothing is written into the checkout.
    """
    with tempfile.TemporaryDirectory(prefix="patchqueue-upstream-") as name:
        space = Path(name)
        more = _stand_ins(prepared.environment, space / "stand-ins")
        before = _side(checkout, space / "pristine", pristine / "python", more)
        after = _side(checkout, space / "patched", prepared.tree / "python", more)
        yield Run(before, after, prepared.environment, limit)


def _stand_ins(environment: Environment, folder: Path) -> Path:
    """A folder with a stand-in for each package of IMPORTED that the environment lacks."""
    words = [str(environment.python), "-c", LACKED, *IMPORTED]
    told = subprocess.run(words, cwd=folder.parent, capture_output=True, text=True, check=True)
    folder.mkdir()
    for name in told.stdout.split():
        (folder / f"{name}.py").write_text(STAND_IN)
    return folder


def _side(checkout: Path, folder: Path, python: Path, more: Path) -> Side:
    """Tests find their release from where they lie, as `parents[4] / "python"`."""
    (folder / "tmp").mkdir(parents=True)
    left = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    shutil.copytree(checkout / "test", folder / "test", symlinks=True, ignore=left)
    (folder / "python").symlink_to(python)
    return Side(folder.name, folder, (python, more))


def pristine_tree(root: Path, pin: Pin, pristine: Source) -> Path:
    """The unpatched release as a folder, kept beside the trees in work/, so that its byte code is
    kept too. It is made anew where a file of it is not the release's."""
    folder = root / "work/.patchqueue" / f"{pin.tag}.pristine"
    aside = folder.with_suffix(".unpacking")
    with locked(folder.with_suffix(".pristine-lock")):
        shutil.rmtree(aside, ignore_errors=True)
        if not folder.is_dir() or list_folder(folder) != pristine.listing():
            shutil.rmtree(folder, ignore_errors=True)
            pristine.unpack(aside)
            aside.rename(folder)
    return folder.absolute()


def release_of(root: Path, pin: Pin, checkout: Path) -> tuple[Suite, Path]:
    """The checkout's tests, and the folder of the pristine release.

    Raises Refused where the checkout is not the release's, or holds no such test.
    """
    suite.refuse_no_checkout(checkout, pin)
    pristine = source.fetch(pin, None)
    suite.refuse_other_release(checkout, pin, pristine.listing())
    return suite.find(checkout), pristine_tree(root, pin, pristine)


def run_all(run: Run, files: Sequence[str], processors: int) -> Iterator[Compared]:
    """Every file on both trees, several at once; a file as soon as it and all before it are done.

    Where a test passes on one tree alone, its file is run again on both trees when the others are
    done, with nothing beside it: what does not come again is flaky.
    """
    doubtful: list[Compared] = []
    with ThreadPoolExecutor(max(1, min(processors, PROCESSES))) as pool:
        try:
            jobs = [
                [pool.submit(run_file, run, side, file) for side in run.sides] for file in files
            ]
            for file, job in zip(files, jobs):
                compared = _compared(file, *(one.result() for one in job))
                if compared.verdict.doubtful:
                    doubtful.append(compared)
                else:
                    yield compared
        except BaseException:
            run.stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    for first in doubtful:
        LOG.info(f"once more, alone: {first.file}")
        again = _compared(first.file, *(run_file(run, side, first.file) for side in run.sides))
        verdict = verdicts.settle(first.verdict, again.verdict)
        yield replace(first, verdict=verdict, seconds=first.seconds + again.seconds)


def _compared(file: str, pristine: Ran, patched: Ran) -> Compared:
    verdict = verdicts.compare(pristine.cases, patched.cases, file)
    return Compared(file, verdict, pristine.seconds + patched.seconds)


def run_file(run: Run, side: Side, file: str) -> Ran:
    """Run one file in a process of its own. Its processes are killed when it ends, or at the limit.

    pytest is started where upstream starts its tests: in test/.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=side.folder / "tmp", prefix="file-") as name:
        space = Path(name)
        command = [str(run.environment.python), "-m", "pytest", str(side.folder / file)]
        command += ["-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]
        command += [f"--rootdir={side.folder}", f"--junitxml={space / 'junit.xml'}"]
        with (space / "log").open("wb") as log:
            code = _ended(command, side, run, log.fileno())
        cases = _read(space, file, code, run.limit)
    return Ran(cases, time.monotonic() - started)


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


def _read(space: Path, file: str, code: int | None, limit: float) -> dict[str, Case]:
    """The file's results; what became of it as a whole where it has none."""
    if code is None:
        return {file: Case(State.TIMED_OUT, f"timed out after {limit:g} s")}
    try:
        found = verdicts.read((space / "junit.xml").read_bytes(), file)
    except (OSError, ValueError):
        found = {}
    if found and code in GOOD:
        return found
    if code == NO_TESTS:
        return {file: Case(State.NOT_RUN, "pytest finds no test in it")}
    lines = (space / "log").read_text("utf-8", "replace").strip().splitlines() or [""]
    ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return {**found, file: Case(State.ERROR, f"{ended}: {lines[-1][:150]}")}
