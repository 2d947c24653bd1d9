"""Upstream's unit tests for CPUs, on a release's pristine tree and on the patched one: which pass
unpatched and do not pass patched.

Upstream marks a test file with a call at its top level, `register_cpu_ci(est_time=…, suite=…)`
(python/sglang/test/ci/ci_register.py, 0.5.6 and later). `disabled="reason"` excludes the file from
every run. The folder test/registered/unit/ came after 0.5.9 (sglang#20626). Many of its files had
the mark of a GPU alone, although they need none (sglang#24569, sglang#33654).
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from ..files.tree import differing, list_folder, python_part
from ..outcome import Outcome, Refused, some
from ..upstream import source
from ..upstream.pins import Pin
from .testing import Environment, Prepared

FOLDERS = ("test/registered", "test/srt")  # test/manual holds what upstream runs nowhere
UNIT = "test/registered/unit/"
MARK = re.compile(r"(?m)^register_cpu_ci\(")
# a reason by its word, or as the fourth argument
DISABLED = re.compile(r"(?m)^register_\w+_ci\((?:[^()]*\bdisabled\s*=|(?:[^(),]*,){3})\s*[\"']")
LIMIT = 300  # seconds for a file; upstream's own limit for one is 1200
# A device that no host has: sglang's helpers for tests make a number of the first character, and
# fail where there is none (python/sglang/test/test_utils.py).
NO_DEVICE = "99"
# variables of the caller that no test gets: other packages, how upstream's CI runs them, and those
# that change sglang and its tests
DROPPED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTEST_ADDOPTS", "CI", "GITHUB_ACTIONS")


def find(checkout: Path) -> list[str]:
    """The files of tests that may need no GPU, as paths below the checkout: those with upstream's
    mark for CPUs, and all unit tests. Raises Refused where there is none."""
    paths = [path for folder in FOLDERS for path in sorted((checkout / folder).rglob("*.py"))]
    names = {path.relative_to(checkout).as_posix(): path for path in paths if path.is_file()}
    chosen = []
    for name, path in names.items():
        text = path.read_text("utf-8", "replace")
        is_unit = name.startswith(UNIT) and path.name.startswith("test_")
        if (MARK.search(text) or is_unit) and not DISABLED.search(text):
            chosen.append(name)
    if not chosen:
        what = f"holds no unit tests for CPUs in {' or '.join(FOLDERS)}"
        step = "name a whole checkout of sgl-project/sglang at the release's tag"
        raise Refused.of("no-tests", str(checkout), what, step)
    return chosen


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
    """How files are run. sides: a folder for the pristine tree and one for the patched, each with
    test/, a copy, and python/."""

    sides: tuple[Path, Path]
    environment: Environment


@contextmanager
def trees(prepared: Prepared, checkout: Path, pristine: source.Source) -> Iterator[Run]:
    """Both trees with the checkout's tests beside them, in a folder that is removed again. Nothing
    is written into the checkout."""
    left = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    with tempfile.TemporaryDirectory(prefix="patchqueue-upstream-") as name:
        sides = (Path(name) / "pristine", Path(name) / "patched")
        pristine.unpack(sides[0])
        shutil.rmtree(sides[0] / "test", ignore_errors=True)
        sides[1].mkdir()
        (sides[1] / "python").symlink_to(prepared.tree / "python")
        for side in sides:
            # tests find their release from where they lie, as `parents[4] / "python"`
            shutil.copytree(checkout / "test", side / "test", symlinks=True, ignore=left)
        yield Run(sides, prepared.environment)


def pristine_of(pin: Pin, checkout: Path) -> source.Source:
    """The pristine release. Raises Refused where the checkout is of another one."""
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
    return pristine


def compare(file: str, pristine: Results, patched: Results) -> Compared:
    """The tests that passed on the pristine tree alone, and why not on the patched one."""
    gone = patched.ended or "it is not among the file's tests"
    passed = sorted(test for test, why in pristine.tests.items() if not why)
    broken = {test: why for test in passed if (why := patched.tests.get(test, gone))}
    return Compared(file, len(passed) - len(broken), broken, pristine.ended)


def run_file(run: Run, file: str) -> Compared:
    """Run one file on both trees at once, each in a process of its own, in test/ as upstream does.
    The processes, and what they leave running, are killed at the end or at the limit."""
    with tempfile.TemporaryDirectory() as name:
        spaces = (Path(name) / "pristine", Path(name) / "patched")
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for side, space in zip(run.sides, spaces):
                space.mkdir()
                processes.append(_start(run, side, file, space))
            end = time.monotonic() + LIMIT
            codes = [_exit_code(process, end) for process in processes]
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        results = [_results(code, space, file) for code, space in zip(codes, spaces)]
    return compare(file, results[0], results[1])


def _start(run: Run, side: Path, file: str, space: Path) -> subprocess.Popen[bytes]:
    """Start pytest on a file, with the variables of the release's own tests (testing.py). space:
    the folder for its report, its log and temporary files."""
    command = [str(run.environment.python), "-m", "pytest", str(side / file), "-q"]
    command += ["-p", "no:cacheprovider", f"--rootdir={side}", f"--junit-xml={space}/report.xml"]
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in DROPPED and not name.startswith("SGLANG_")
    }
    own = {
        "PYTHONPATH": str((side / "python").resolve()),  # byte code is kept by the tree's own path
        "CUDA_VISIBLE_DEVICES": NO_DEVICE,
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(space),
    }
    with (space / "log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=side / "test",
            env={**kept, **run.environment.variables, **own},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _exit_code(process: subprocess.Popen[bytes], end: float) -> int | None:
    """A process's exit code; None where it runs at the time `end`."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(max(0, end - time.monotonic()))
    return None


def _results(code: int | None, space: Path, file: str) -> Results:
    """What a process reported. code: see `_exit_code`."""
    if code is None:
        return Results({}, f"timed out after {LIMIT:g} s")
    if (space / "report.xml").is_file():
        return read((space / "report.xml").read_text("utf-8"), file)
    ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    lines = (space / "log").read_text("utf-8", "replace").strip().splitlines() or [""]
    return Results({}, f"{ended}: {lines[-1][:150]}")


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
