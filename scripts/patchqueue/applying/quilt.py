"""quilt, which applies the series in a work tree: found or fetched, and run alike for everybody.

No user configuration reaches it (--quiltrc -, QUILT_* and the variables that steer GNU patch
removed), messages are in English, no hunk is ever applied with fuzz.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..files import atomic, run
from ..outcome import Refused, disk_step

LOG = logging.getLogger(__name__)

PLAIN_PATH = re.compile(r"[\w./@%+,-]+")
INSTALL = run.QUILT.install
NOTHING_TO_DO = 2  # quilt's exit code for "already at the top (or bottom) of the series"


@dataclass(frozen=True)
class Quilt:
    """A quilt that works. variables: what its environment needs besides the scrubbed one."""

    command: str
    variables: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """The caller's environment without anything that configures quilt or patch."""
        return run.QUILT.environment() | self.variables

    def works(self) -> bool:
        try:
            said = self.run(Path("/"), "push", "-h", check=False).stdout
        except (OSError, Refused):
            return False
        return said.startswith(b"Usage: quilt push")

    def run(
        self, tree: Path, *arguments: str, lock: int | None = None, check: bool = True
    ) -> run.Done:
        """Run one quilt command in a work tree, as `quilt push -a --fuzz=0`. Raises Refused with
        quilt's words when it fails.

        lock: a locked descriptor that quilt and its children hold too, so that the lock outlives a
        killed parent.
        """
        how: dict[str, Any] = {"folder": tree, "more": self.variables, "held": lock}
        how |= {"program": self.command}
        how["good"] = (0, NOTHING_TO_DO) if check else None
        try:
            return run.run(run.QUILT, "--quiltrc", "-", *arguments, **how)
        except run.Failed as failure:
            where, step = f"quilt {' '.join(arguments)}", disk_step(failure.said)
            raise Refused.of("quilt-failed", where, failure.said, step) from None


def applied(tree: Path) -> list[str]:
    """The patches that quilt has applied in this tree, bottom first."""
    record = tree / ".pc/applied-patches"
    return record.read_text().split("\n")[:-1] if record.is_file() else []


@dataclass(frozen=True)
class Layer:
    """A patch that is applied in a tree. before, after: its files below it and above it, by path,
    sorted; empty where there is none."""

    patch: str
    before: dict[str, bytes]
    after: dict[str, bytes]


def layers(tree: Path) -> list[Layer]:
    """The patches that quilt has applied in this tree, bottom first, with what each makes now.

    quilt keeps a copy of every file below a patch in .pc/PATCH/, an empty one where there is none.
    An edit that no `quilt refresh` has seen is one of the topmost patch that has the file.
    """
    top_first: list[Layer] = []
    above: dict[str, bytes] = {}
    for patch in reversed(applied(tree)):
        folder = tree / ".pc" / patch
        copies = sorted(path for path in folder.rglob("*") if path.is_file())
        before = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in copies
            if path.name != ".timestamp"
        }
        after = {path: above[path] if path in above else content(tree / path) for path in before}
        above |= before
        top_first.append(Layer(patch, before, after))
    return top_first[::-1]


def content(file: Path) -> bytes:
    """The content of a file; empty where there is none."""
    return file.read_bytes() if file.is_file() else b""


def is_begun(tree: Path, patch: str) -> bool:
    """Whether a patch is on top, and has neither a text nor a file yet."""
    folder = tree / ".pc" / patch
    holds = (folder.is_dir() and any(folder.iterdir())) or (tree / "patches" / patch).exists()
    return applied(tree)[-1:] == [patch] and not holds


def listed(tree: Path) -> list[str]:
    """The patches of the tree's series, bottom first."""
    series = tree / "patches/series"
    lines = series.read_text().splitlines() if series.is_file() else []
    return [words[0] for line in lines if (words := line.partition("#")[0].split())]


def find(cache: Path) -> Quilt:
    """quilt and GNU patch from PATH, else from the cache, else fetched with apt as an ordinary
    user.

    Raises Refused saying what to install where none of that works.
    """
    where = os.environ.get("QUILT_DIR")  # where it is, no setting
    installed = Quilt("quilt", {} if where is None else {"QUILT_DIR": where})
    if shutil.which("quilt") and shutil.which("patch") and installed.works():
        return installed
    home = (cache / "quilt").resolve()
    if not PLAIN_PATH.fullmatch(str(home)):
        what = "holds a character that quilt's scripts would hand to a shell"
        raise Refused.of("no-quilt", str(home), what, f"PATCHQUEUE_CACHE=FOLDER; or {INSTALL}")
    if not _unpacked(home).works():
        with atomic.locked(cache / ".lock"):
            fault = "" if _unpacked(home).works() else _fetch(home, cache)
        if fault:
            raise Refused.of("no-quilt", "quilt", fault, INSTALL)
    return _unpacked(home)


def _unpacked(home: Path) -> Quilt:
    """The one in the cache."""
    usr = f"{home}/usr"
    path = f"{os.environ.get('PATH', os.defpath)}:{usr}/bin"
    return Quilt(f"{usr}/bin/quilt", {"QUILT_DIR": f"{usr}/share/quilt", "PATH": path})


def _fetch(home: Path, cache: Path) -> str:
    """Unpack Debian's quilt and patch below `home`; quilt is shell scripts that find themselves
    through QUILT_DIR. Returns why they cannot be had, "" where they work."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return "neither quilt (with patch) nor apt is on PATH"
    LOG.info("fetching quilt with apt (unpacked in the cache, nothing is installed)")
    with tempfile.TemporaryDirectory(dir=cache, prefix="tmp-") as name:
        space = Path(name)
        for folder in ("state/lists/partial", "cache/archives/partial"):
            (space / folder).mkdir(parents=True)
        settings = (f"Dir::State={space}/state", f"Dir::Cache={space}/cache", "APT::Sandbox::User=")
        own_lists = [word for setting in settings for word in ("-o", setting)]
        download = ["download", "-q", "quilt", "patch"]

        def fails(*words: str) -> int:
            quiet: dict[str, Any] = {"capture_output": True, "stdin": subprocess.DEVNULL}
            return subprocess.run(["apt-get", *words], cwd=space, **quiet).returncode

        # The system's package lists first: a fresh container has none, and then this user reads
        # lists of its own.
        if fails(*download) and (fails(*own_lists, "update", "-q") or fails(*own_lists, *download)):
            return "apt could not download it"
        for package in space.glob("*.deb"):
            if subprocess.run(["dpkg-deb", "-x", package, space / "root"]).returncode:
                return "dpkg-deb could not unpack it, for the reason above"
        shutil.rmtree(home, ignore_errors=True)
        os.rename(space / "root", home)
    return "" if _unpacked(home).works() else "the one that apt delivered does not start"
