"""quilt, the engine that lays the series: found or fetched, and run the same way for everybody.

No user configuration reaches it (--quiltrc -, QUILT_* and the variables that steer GNU patch
removed), messages are in English, no hunk is ever applied with fuzz.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from ..files import disk, run
from ..files.locking import locked
from ..outcome import Refused

LOG = logging.getLogger(__name__)

# how a refreshed patch is written: the same bytes every time
FORM = ("-p", "ab", "--no-timestamps", "--no-index", "--sort")
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
        good = (0, NOTHING_TO_DO) if check else None
        try:
            return run.run(
                run.QUILT,
                "--quiltrc",
                "-",
                *arguments,
                folder=tree,
                more=self.variables,
                good=good,
                held=lock,
                program=self.command,
            )
        except run.Failed as failure:
            where, step = f"quilt {' '.join(arguments)}", disk.said(failure.said)
            raise Refused.of("quilt-failed", where, failure.said, step) from None


def applied(tree: Path) -> list[str]:
    """The patches that quilt has applied in this tree, bottom first."""
    record = tree / ".pc/applied-patches"
    return record.read_text().split("\n")[:-1] if record.is_file() else []


def find(cache: Path) -> Quilt:
    """quilt and GNU patch from PATH, else from the cache, else fetched with apt as an ordinary
    user.

    Raises Refused saying what to install where none of that works.
    """
    # where it is, no setting
    installed = Quilt(
        "quilt", {"QUILT_DIR": os.environ["QUILT_DIR"]} if "QUILT_DIR" in os.environ else {}
    )
    if shutil.which("quilt") and shutil.which("patch") and installed.works():
        return installed
    home = cache / "quilt"
    if not _unpacked(home).works():
        with locked(cache / ".lock"):
            if not _unpacked(home).works():
                _fetch(home, cache)
    return _unpacked(home)


def _unpacked(home: Path) -> Quilt:
    path = f"{os.environ.get('PATH', os.defpath)}:{home / 'usr/bin'}"
    return Quilt(
        str(home / "usr/bin/quilt"), {"QUILT_DIR": str(home / "usr/share/quilt"), "PATH": path}
    )


def _fetch(home: Path, cache: Path) -> None:
    """Unpack Debian's quilt and patch below `home`; quilt is shell scripts that find themselves
    through QUILT_DIR."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise _no_quilt("neither quilt (with patch) nor apt is on PATH")
    LOG.info("fetching quilt with apt (unpacked in the cache, nothing is installed)")
    with tempfile.TemporaryDirectory(dir=cache, prefix="tmp-") as name:
        space = Path(name)
        for folder in ("state/lists/partial", "cache/archives/partial"):
            (space / folder).mkdir(parents=True)
        settings = (f"Dir::State={space}/state", f"Dir::Cache={space}/cache", "APT::Sandbox::User=")
        own_lists = [word for setting in settings for word in ("-o", setting)]
        download = ["download", "-q", "quilt", "patch"]
        # The system's package lists first: a fresh container has none, and then this user reads
        # lists of its own.
        if _apt(space, *download).returncode and (
            _apt(space, *own_lists, "update", "-q").returncode
            or _apt(space, *own_lists, *download).returncode
        ):
            raise _no_quilt("apt could not download it")
        for package in space.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(space / "root")], check=True)
        shutil.rmtree(home, ignore_errors=True)
        os.rename(space / "root", home)
    if not _unpacked(home).works():
        raise _no_quilt("the one that apt delivered does not start")


def _no_quilt(what: str) -> Refused:
    return Refused.of("no-quilt", "quilt", what, run.QUILT.install)


def _apt(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["apt-get", *arguments], cwd=folder, capture_output=True, stdin=subprocess.DEVNULL
    )
