"""Build and find the environment that one release's tests run in: home/v<version>, made from its
lock."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from ..files import run
from ..files.atomic import locked
from ..hint import to_type
from ..outcome import Refused
from . import cuda_stubs
from .lock import PYTHON

LOG = logging.getLogger(__name__)

MARKER = "made-from.sha256"  # written last: an environment without it was never finished
STAND_INS = "stand-ins"
BYTECODE = "bytecode"
SIZE = "4 to 5 GB on disk, about 1.5 GB from the package index, minutes"
# raise it when `build` makes something else of the same lock: environments made before then count
# no more
RECIPE = "1"


@dataclass(frozen=True)
class Environment:
    """A finished environment: its interpreter, and the variables that a process using it needs on
    top of the caller's."""

    python: Path
    variables: dict[str, str]


def stamp(lock: Path) -> str:
    """What an environment depends on, as one sha256 (64 hex digits): the lock's entries and the way
    it is built."""
    entries = [line for line in lock.read_bytes().splitlines() if not line.startswith(b"#")]
    recipe = [RECIPE.encode(), PYTHON.encode(), Path(cuda_stubs.__file__).read_bytes()]
    return hashlib.sha256(b"\n".join([*recipe, *entries])).hexdigest()


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


def find(version: str, lock: Path, home: Path) -> Environment | None:
    """The environment of `version` below `home` if it is finished and made from this very lock."""
    folder = home / f"v{version}"
    try:
        made_from = (folder / MARKER).read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _environment(folder) if made_from == stamp(lock) else None


def build(version: str, lock: Path, home: Path) -> Environment:
    """The environment of `version`, built from `lock` unless home/v<version> was already made from
    it.

    It is built aside and renamed into place, under a lock file, so a second run waits, a killed run
    leaves nothing that looks whole, and a failed one leaves the environment before it as it was.

    Raises Refused.
    """
    if not lock.is_file():
        step = f"{to_type('pin', version, '--lock')} makes one"
        raise _refused(version, f"{version} has no environment: there is no {lock}", step)
    if sys.platform != "linux" or platform.machine() != "x86_64":
        what = f"the locks are for Linux on x86_64, this is {sys.platform} on {platform.machine()}"
        raise _refused(version, what, "run the tests there, or in CI")
    home = home.absolute()
    with locked(home / f".v{version}.lock") as held:
        aside, old = home / f".building-v{version}", home / f".old-v{version}"
        for leftover in (aside, old):
            shutil.rmtree(leftover, ignore_errors=True)
        found = find(version, lock, home)
        if found:
            return found
        LOG.info(f"building the environment of {version} from {lock.name}, once ({SIZE})")
        folder = home / f"v{version}"
        try:
            # its scripts must survive the rename
            make = ("venv", "--relocatable", "--python", PYTHON, str(aside))
            _uv(version, held, f"make a Python {PYTHON} environment", *make)
            install = ("pip", "install", "--no-deps", "--no-build", "--require-hashes")
            where = ("--python", str(aside / "bin/python"), "--requirement", str(lock))
            _uv(version, held, f"install {lock}", *install, *where)
            packages = next((aside / "lib").glob("python*/site-packages"))
            _check(version, aside, cuda_stubs.write_stand_ins(packages, aside / STAND_INS))
            (aside / MARKER).write_text(stamp(lock) + "\n")
            if folder.exists():
                folder.rename(old)
            aside.rename(folder)
        finally:
            for leftover in (aside, old):
                shutil.rmtree(leftover, ignore_errors=True)
        return _environment(folder)


def _uv(version: str, held: int, what: str, *arguments: str) -> None:
    try:
        # held: where this process is killed, uv keeps the lock until it too has stopped writing
        run.uv(*arguments, held=held)
    except run.Failed as failure:
        raise _refused(
            version,
            f"{version}: uv could not {what}:\n{textwrap.indent(failure.said, '    ')}",
            "if the network or the disk failed, run it again; if a file is gone from the index,"
            f" {to_type('pin', version, '--lock')}",
        ) from None


def _refused(version: str, what: str, step: str) -> Refused:
    return Refused.of("no-environment", f"v{version}", what, step)


def _check(version: str, folder: Path, stand_ins: list[str]) -> None:
    """torch and sgl_kernel must load here, or every test would fail with the loader's riddle
    instead of a reason."""
    environment = _environment(folder)
    variables = os.environ | environment.variables
    done = subprocess.run(
        [str(environment.python), "-c", "import torch, sgl_kernel"],
        env=variables,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        last = (
            "\n".join(done.stderr.strip().splitlines()[-4:])
            or f"killed by signal {-done.returncode}"
        )
        raise _refused(
            version,
            f"{version}: torch and sgl_kernel do not load with stand-ins for"
            f" {' '.join(stand_ins)}:\n{textwrap.indent(last, '    ')}",
            "a library named there is missing on this host, or belongs into STANDS_IN_FOR"
            " (scripts/patchqueue/environments/cuda_stubs.py)",
        )
