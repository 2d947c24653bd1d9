"""Run a pull request's own tests in the release's environment: on its branch, where they must pass,
and without the changes of each commit, where they must fail."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..environments.environment import Environment
from ..environments.testing import build_environment
from .backport import PACKAGE
from .export import Exported, PullRequest
from .repository import Repository

LOG = logging.getLogger(__name__)

# of pytest's last line
COUNTED = re.compile(r"\d+ (?:subtests )?(?:passed|failed|skipped|errors?)\b")
GOOD, FAILED, INTERRUPTED = 0, 1, 2  # pytest's exit codes


@dataclass(frozen=True)
class Tried:
    """A file of tests. passed: on the branch; failed: on the base, without any of its changes;
    said: pytest's counts."""

    path: str
    patch: str
    passed: bool
    failed: bool
    said: tuple[str, str]

    @property
    def good(self) -> bool:
        return self.passed and self.failed


def try_tests(
    root: Path, repository: Repository, exported: Exported, request: PullRequest
) -> list[Tried]:
    """Each test file of the pull request's own commits, on the branch and on the base. Raises
    Refused where there is no environment."""
    made = build_environment(root, exported.pin)
    files = [
        (path, part.patch, part.files[path])
        for part in request.parts
        if part.own
        for path in part.tests
    ]
    found = []
    with tempfile.TemporaryDirectory(prefix="patchqueue-tests-") as space:
        trees = {name: Path(space) / name for name in ("branch", "base")}
        for name, commit in (("branch", request.tip), ("base", request.base)):
            _write(
                trees[name],
                repository.contents(commit, PACKAGE)
                | {path: content for path, _, content in files},
            )
        for path, patch, _ in files:
            LOG.info(f"{request.branch}: {path}")
            only = [name for part in request.parts for name in part.cases.get(path, ())]
            (on, said), (off, said_off) = (
                _run(root, made, trees[name], path, only) for name in ("branch", "base")
            )
            found.append(
                Tried(path, patch, on == GOOD, off in (FAILED, INTERRUPTED), (said, said_off))
            )
    return found


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def _run(
    root: Path, made: Environment, tree: Path, path: str, only: Sequence[str]
) -> tuple[int, str]:
    """pytest's exit code and counts. only: our cases in a file of upstream's, others need a GPU."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    }
    variables |= made.variables | {
        "PYTHONPATH": os.pathsep.join(
            [str(tree / "python"), str((root / "tests/revision").absolute())]
        )
    }
    del variables["PYTHONPYCACHEPREFIX"]  # byte code of a folder that is gone soon
    command = [str(made.python), "-m", "host.upstream", "-q", "-p", "no:cacheprovider", path]
    command += ["-k", " or ".join(only)] if only else []
    done = subprocess.run(command, cwd=tree, env=variables, capture_output=True, text=True)
    counts = COUNTED.findall((done.stdout.strip().splitlines() or [""])[-1])
    return done.returncode, ", ".join(counts) if counts else (
        done.stderr.strip() or "pytest said nothing"
    ).splitlines()[-1]
