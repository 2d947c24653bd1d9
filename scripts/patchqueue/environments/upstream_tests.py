"""Upstream's unit tests for CPUs, on a release's pristine tree and on the patched one: which pass
unpatched and do not pass patched.

Upstream marks a test file with a call at its top level, `register_cpu_ci(est_time=…, suite=…)`,
which its test/run_suite.py reads without an import (python/sglang/test/ci/ci_register.py, 0.5.6 and
later). `disabled="reason"` excludes the file from every run. The folder test/registered/unit/ came
after 0.5.9 (sglang#20626). Many of its files had the mark of a GPU alone, although they need none
(sglang#24569, sglang#33654).
"""

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
from xml.etree import ElementTree

from ..files.atomic import locked
from ..files.tree import differing, list_folder, python_part
from ..hint import some
from ..outcome import Outcome, Refused
from ..upstream import source
from ..upstream.pins import Pin
from .testing import Environment, Prepared

FOLDERS = ("test/registered", "test/srt")  # test/manual holds what upstream runs nowhere
UNIT = "test/registered/unit"
MARK, TEST = re.compile(r"(?m)^register_cpu_ci\("), re.compile(r"(?m)^\s*(?:async )?def test_")
# a reason by its word, or as the fourth argument
DISABLED = re.compile(r"(?m)^register_\w+_ci\((?:[^()]*\bdisabled\s*=|(?:[^(),]*,){3})\s*[\"']")
NO_TESTS = ("conftest.py", "__init__.py")
# sglang's own helpers for tests that start a server, an engine or a model's runner
SERVERS = re.compile(
    r"\bpopen_launch|\blaunch_server\b|\bEngine\(|ServerBase\b|\b(?:SRT|HF)Runner\b"
    r"|Mixin\b.*CustomTestCase|\bbench_one_batch\b|\brun_(?:bench_serving|eval)\b"
)
LIMIT = 300  # seconds for a file on one tree; upstream's own limit for one is 1200
TICK = 0.5  # seconds until an interrupted run ends its processes
PROCESSES = 4  # at most: each imports torch and sglang, which takes 10 s and 1 GB
# A device that no host has: sglang's helpers for tests make a number of the first character, and
# fail where there is none (python/sglang/test/test_utils.py).
NO_DEVICE = "99"
# imports of those helpers that no lock has (LEFT_OUT in environments/lock.py)
IMPORTED = ("datasets",)
STAND_IN = """def __getattr__(name):
    def missing(*_, **__):
        raise ModuleNotFoundError(f"No module named {__name__!r}", name=__name__)

    if name.startswith("__"):
        raise AttributeError(name)
    return missing
"""
# variables of the caller that no test gets: other packages, how upstream's CI runs them, and those
# that change sglang and its tests
DROPPED = re.compile(
    "(?:PYTHONPATH|PYTHONHOME|VIRTUAL_ENV|PYTEST_ADDOPTS|CI|GITHUB_ACTIONS)$|SGLANG_"
)


def find(checkout: Path) -> tuple[list[str], int]:
    """(the files of tests that may need no GPU, as paths below the checkout; how many others there
    are): files with upstream's mark for CPUs, and other unit tests.

    Those are the files of test/registered/unit/, and in an older checkout all files, unless they
    start a server. Raises Refused where there is none.
    """
    units = f"{UNIT}/" if (checkout / UNIT).is_dir() else ""
    paths = [path for folder in FOLDERS for path in sorted((checkout / folder).rglob("*.py"))]
    names = {
        path.relative_to(checkout).as_posix(): path.read_text("utf-8", "replace")
        for path in paths
        if path.name not in NO_TESTS and path.is_file()
    }
    chosen = []
    for name, text in names.items():
        # a unit test with the mark of a GPU alone often needs none
        is_unit = name.startswith(units) and TEST.search(text) and not SERVERS.search(text)
        if (MARK.search(text) or is_unit) and not DISABLED.search(text):
            chosen.append(name)
    if not chosen:
        what = f"holds no unit tests for CPUs in {' or '.join(FOLDERS)}"
        step = "name a whole checkout of sgl-project/sglang at the release's tag"
        raise Refused.of("no-tests", str(checkout), what, step)
    return chosen, len(names) - len(chosen)


@dataclass(frozen=True)
class Results:
    """One file on one tree. tests: id -> why the test did not pass, "" where it passed; ended: why
    the file has no further results, "" where it has them all."""

    tests: Mapping[str, str]
    ended: str = ""


@dataclass(frozen=True)
class Compared:
    """One file on both trees. both: how many tests passed on both; broken: the tests that passed on
    the pristine tree alone, with their result on the patched one; ended: of the pristine tree."""

    file: str
    both: int
    broken: Mapping[str, str]
    ended: str

    def __str__(self) -> str:
        lost = f", {len(self.broken)} passed on the pristine tree alone" if self.broken else ""
        return self.ended or f"{self.both} passed on both{lost}"


@dataclass(frozen=True)
class Run:
    """How files are run. pristine, patched: a folder for each tree, with test/, a copy, python, a
    link to the tree's own, and tmp/; stand_ins: modules that both need; stop: set where the user
    interrupts."""

    pristine: Path
    patched: Path
    stand_ins: Path
    environment: Environment
    stop: Event = field(default_factory=Event)


def pristine_of(root: Path, pin: Pin, checkout: Path) -> Path:
    """The pristine release as a folder, kept beside the trees in work/ for its byte code, and made
    anew where a file of it is not the release's. Raises Refused where the checkout is of another
    release."""
    make = f"`git clone --branch {pin.tag} --depth 1 https://github.com/sgl-project/sglang`"
    if not (checkout / "python/sglang").is_dir():
        what = "is no checkout of sglang: it has no python/sglang"
        raise Refused.of("no-checkout", str(checkout), what, f"{make} makes one")
    pristine = source.fetch(pin, None)
    changed = differing(python_part(list_folder(checkout)), python_part(pristine.listing()))
    if changed:
        what = f"is not {pin.tag}: {len(changed)} of its files differ, as {some(changed)}"
        step = f"check out the tag {pin.tag} there, without edits"
        raise Refused.of(str(Outcome.TREE_MISMATCH), str(checkout), what, step)
    folder = root / "work/.patchqueue" / f"{pin.tag}.pristine"
    with locked(folder.with_suffix(".pristine-lock")):
        if not folder.is_dir() or list_folder(folder) != pristine.listing():
            shutil.rmtree(folder, ignore_errors=True)
            pristine.unpack(folder)
    return folder.absolute()


@contextmanager
def trees(prepared: Prepared, checkout: Path, pristine: Path) -> Iterator[Run]:
    """Both trees with the checkout's tests beside them, in a folder that is removed again. Nothing
    is written into the checkout. pristine: the folder of the pristine tree."""
    left = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    with tempfile.TemporaryDirectory(prefix="patchqueue-upstream-") as name:
        space = Path(name)
        (space / "stand-ins").mkdir()
        for package in IMPORTED:
            (space / "stand-ins" / f"{package}.py").write_text(STAND_IN)
        for side, tree in (("pristine", pristine), ("patched", prepared.tree)):
            (space / side / "tmp").mkdir(parents=True)
            # tests find their release from where they lie, as `parents[4] / "python"`
            shutil.copytree(checkout / "test", space / side / "test", symlinks=True, ignore=left)
            (space / side / "python").symlink_to(tree / "python")
        folders = (space / "pristine", space / "patched", space / "stand-ins")
        yield Run(*folders, prepared.environment)


def compare(file: str, pristine: Results, patched: Results) -> Compared:
    """The tests that passed on the pristine tree alone, and why not on the patched one."""
    gone = patched.ended or "it is not among the file's tests"
    passed = sorted(test for test, why in pristine.tests.items() if not why)
    broken = {test: why for test in passed if (why := patched.tests.get(test, gone))}
    return Compared(file, len(passed) - len(broken), broken, pristine.ended)


def run_all(run: Run, files: Sequence[str], processors: int) -> Iterator[Compared]:
    """Every file on both trees, several at once, in the order of `files`."""
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


def run_file(run: Run, side: Path, file: str) -> Results:
    """Run one file in a process of its own, in test/ as upstream does. Its processes are killed
    when it ends, or at the limit."""
    with tempfile.TemporaryDirectory(dir=side / "tmp") as space:
        report, log = Path(space) / "report.xml", Path(space) / "log"
        command = [str(run.environment.python), "-m", "pytest", str(side / file)]
        command += ["-q", "-p", "no:cacheprovider", f"--rootdir={side}"]
        command += [f"--junit-xml={report}"]
        with log.open("wb") as output:
            code = _exit_code(command, side, run, output.fileno())
        if code is None:
            return Results({}, f"timed out after {LIMIT:g} s")
        if not report.is_file():
            ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            lines = log.read_text("utf-8", "replace").strip().splitlines() or [""]
            return Results({}, f"{ended}: {lines[-1][:150]}")
        return read(report.read_text("utf-8"), file)


def read(report: str, file: str) -> Results:
    """A file's results from pytest's report in JUnit's XML.

    A test whose end has an error is reported twice. A file that cannot be imported, or skips
    itself, is reported as a test of no class.
    """
    module = file.removesuffix(".py").replace("/", ".")
    tests: dict[str, str] = {}
    ended = ""
    for case in ElementTree.fromstring(report).iter("testcase"):
        reasons = []
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                marked = re.findall(r"(?m)^E {2,}(\S.*)$", child.text or "")  # by pytest
                lines = marked or (child.get("message") or "").splitlines() or [""]
                reasons.append(f"{child.tag}: {lines[-1]}")
        why = " ".join(reasons)
        group = (case.get("classname") or "").removeprefix(module).replace(".", "::")
        if case.get("name") == module:
            ended = why
        else:
            name = f"{file}{group}::{case.get('name')}"
            tests[name] = tests.get(name) or why
    return Results(tests, ended)


def _exit_code(command: Sequence[str], side: Path, run: Run, log: int) -> int | None:
    """Run a process; its exit code, None where it was killed at the limit. It gets the variables of
    the release's own tests (testing.py), and a folder for temporary files."""
    kept = {name: value for name, value in os.environ.items() if not DROPPED.match(name)}
    path = ((side / "python").resolve(), run.stand_ins)  # byte code is kept by the tree's own path
    own = {
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "CUDA_VISIBLE_DEVICES": NO_DEVICE,
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(side / "tmp"),
    }
    process = subprocess.Popen(
        command,
        cwd=side / "test",
        env={**kept, **run.environment.variables, **own},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    end = time.monotonic() + LIMIT
    try:
        while time.monotonic() < end and not run.stop.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(min(TICK, LIMIT))
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
