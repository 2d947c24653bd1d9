"""Run git, uv, quilt and diff, each in an environment that no setting of the caller's changes.

quilt is the one on PATH, or fetched with apt as an ordinary user.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..outcome import Refused, disk_step
from . import atomic

LOG = logging.getLogger(__name__)

Done = subprocess.CompletedProcess[bytes]


@dataclass(frozen=True, eq=False)
class Tool:
    """A program. dropped: the caller's variables that it does not get; given: what it gets."""

    name: str
    install: str
    dropped: str = "(?!)"
    given: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """The caller's environment without what steers the program."""
        dropped = re.compile(self.dropped)
        kept = {name: value for name, value in os.environ.items() if not dropped.match(name)}
        return {**kept, **self.given}


GIT = Tool(
    "git",
    "install git",
    r"GIT_(?!SSL)",  # GIT_SSL_* say which servers to trust
    {
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
    },
)
# What could add packages from anywhere but the one package index. A mirror of it stays: hashes
# prove that it serves the same files.
UV = Tool(
    "uv",
    "start from `scripts/nox`, which brings it, or `pip install uv`",
    "(?:UV_(?:EXTRA_INDEX_URL|INDEX|FIND_LINKS|EXCLUDE|OVERRIDE|CONSTRAINT|EXCLUDE_NEWER|PRERELEASE"
    "|RESOLUTION|TORCH_BACKEND|NO_BINARY|CUSTOM_COMPILE_COMMAND)|VIRTUAL_ENV)$",
)
QUILT = Tool(
    "quilt",
    "install quilt and patch with your package manager (apt install quilt, dnf install quilt, brew"
    " install quilt)",
    "QUILT|(?:POSIXLY_CORRECT|GREP_OPTIONS|PATCH_GET|PATCH_VERSION_CONTROL|VERSION_CONTROL"
    "|SIMPLE_BACKUP_SUFFIX|BASH_ENV|ENV|CDPATH)$",
    {"LC_ALL": "C", "QUILT_PATCHES": "patches", "QUILT_PC": ".pc", "QUILT_SERIES": "series"},
)
DIFF = Tool("diff", "install diffutils", given={"LC_ALL": "C"})

NO_CONFIGURATION = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
# What git writes is a function of its input alone.
SETTINGS = (
    "core.autocrlf=false",
    "core.eol=lf",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.hooksPath=/dev/null",
    "core.quotePath=true",
    "core.fsmonitor=false",
    "column.ui=never",
    "i18n.commitEncoding=UTF-8",
    "i18n.logOutputEncoding=UTF-8",
    "merge.conflictStyle=diff3",
    "rerere.enabled=false",
    "commit.gpgSign=false",
    "format.signOff=false",
    "gc.auto=0",
)
# Of repositories that the tool itself makes. Of any other git asks who owns it, since its own
# settings name programs that git runs.
OWN_SETTINGS = (
    "core.compression=0",
    "core.fsync=none",
    "user.name=patch queue",
    "user.email=",
    "safe.directory=*",
)
# what git says of a repository that another user owns
FOREIGN = re.compile(r"detected dubious ownership in repository at '(.*)'")


class Failed(Exception):
    """A program that did not end well. str() is the last line that it said; said: all of it."""

    def __init__(self, tool: str, done: Done) -> None:
        self.tool, self.done = tool, done
        streams = (done.stderr or b"", done.stdout or b"")
        texts = [stream.decode("utf-8", "replace").strip() for stream in streams]
        self.said = next(filter(None, texts), f"{tool} ended with code {done.returncode}")
        super().__init__(re.sub(r"^(fatal|error): ", "", self.said.splitlines()[-1]))


def run(
    tool: Tool,
    *words: str,
    folder: Path | None = None,
    stdin: bytes = b"",
    more: Mapping[str, str] | None = None,
    good: tuple[int, ...] | None = (0,),
    held: int | None = None,
    program: str = "",
) -> Done:
    """Run one command of the tool. Raises Failed, and Refused where it is not installed.

    more: further variables. good: exit codes that are no failure; None for all. held: a locked
    descriptor that it holds too, so that the lock outlives a killed caller.
    """
    try:
        done = subprocess.run(
            [program or tool.name, *words],
            cwd=folder,
            env=tool.environment() | dict(more or {}),
            input=stdin,
            capture_output=True,
            pass_fds=[] if held is None else [held],
        )
    except FileNotFoundError:
        what = f"{tool.name} is not installed"
        raise Refused.of(f"no-{tool.name}", str(folder or "."), what, tool.install) from None
    if good is not None and done.returncode not in good:
        raise Failed(tool.name, done)
    return done


def git(
    folder: Path, *words: str, stdin: bytes = b"", more: Mapping[str, str] | None = None
) -> Done:
    """Run a command of git in a user's repository, with SETTINGS above all others.

    Raises Failed; and Refused where it is another user's, and no setting allows it
    (safe.directory).
    """
    try:
        return run(GIT, *_set(SETTINGS), *words, folder=folder, stdin=stdin, more=more)
    except Failed as failure:
        if not (foreign := FOREIGN.search(failure.said)):
            raise
        what = "belongs to another user, and git refuses it: its settings run programs"
        allow = f"`git config --global --add safe.directory {shlex.quote(foreign[1])}`"
        step = f"where you trust it: {allow}"
        raise Refused.of("foreign-repository", foreign[1], what, step) from None


def own_git(
    folder: Path,
    *words: str,
    stdin: bytes = b"",
    more: Mapping[str, str] | None = None,
    check: bool = True,
) -> Done:
    """The same in a repository of the tool's own, by no configuration. Raises Refused."""
    above = {"GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    more = NO_CONFIGURATION | above | dict(more or {})
    settings, good = _set(SETTINGS + OWN_SETTINGS), (0,) if check else None
    try:
        return run(GIT, *settings, *words, folder=folder, stdin=stdin, more=more, good=good)
    except Failed as failure:
        step = disk_step(str(failure)) or "where it is a rebase's: delete it, and begin again"
        where = f"git {words[0]} in {folder.name}"
        raise Refused.of("git-failed", where, str(failure), step) from None


def _set(settings: tuple[str, ...]) -> list[str]:
    return [word for setting in settings for word in ("-c", setting)]


def find_uv() -> str:
    """The uv beside this Python, else the one on PATH. Raises Refused where there is none."""
    beside = Path(sys.executable).with_name("uv")
    if program := str(beside) if beside.is_file() else shutil.which("uv"):
        return program
    what = "uv is neither beside this Python nor on PATH"
    raise Refused.of("no-uv", "uv", what, UV.install)


def uv(
    *words: str,
    folder: Path | None = None,
    held: int | None = None,
    more: Mapping[str, str] | None = None,
) -> Done:
    """Run a command of uv by no configuration. Arguments, and Raises: as for `run`."""
    words = ("--no-config", "--quiet", *words)
    return run(UV, *words, folder=folder, held=held, more=more, program=find_uv())


PLAIN_PATH = re.compile(r"[\w./@%+,-]+")


@dataclass(frozen=True)
class Quilt:
    """A quilt that works. variables: of its environment."""

    command: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(
        self, tree: Path, *words: str, lock: int | None = None, **how: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Run one quilt command in a work tree. lock: as `run`'s held; how: of subprocess."""
        environment = QUILT.environment() | dict(self.variables)
        held = () if lock is None else (lock,)
        return subprocess.run(
            [self.command, *words], cwd=tree, env=environment, pass_fds=held, **how
        )


def find_quilt(cache: Path) -> Quilt:
    """quilt and GNU patch from PATH, else from the cache, else fetched with apt as an ordinary
    user. Raises Refused where none of that works."""
    if shutil.which("quilt") and shutil.which("patch"):
        where = os.environ.get("QUILT_DIR")  # where it is, no setting
        return Quilt("quilt", {} if where is None else {"QUILT_DIR": where})
    home = (cache / "quilt").resolve()
    if not PLAIN_PATH.fullmatch(str(home)):
        what = "holds a character that quilt's scripts would hand to a shell"
        step = f"PATCHQUEUE_CACHE=FOLDER; or {QUILT.install}"
        raise Refused.of("no-quilt", str(home), what, step)
    usr = home / "usr"
    with atomic.locked(cache / ".lock"):
        if not (usr / "bin/quilt").is_file() and (fault := _fetch(home, cache)):
            raise Refused.of("no-quilt", "quilt", fault, QUILT.install)
    path = f"{os.environ.get('PATH', os.defpath)}:{usr}/bin"
    return Quilt(f"{usr}/bin/quilt", {"QUILT_DIR": f"{usr}/share/quilt", "PATH": path})


def _fetch(home: Path, cache: Path) -> str:
    """Unpack Debian's quilt and patch below `home`; quilt is shell scripts that find themselves
    through QUILT_DIR. Returns why they cannot be had, "" where they are there."""
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
            words = ("apt-get", *words)
            return subprocess.run(words, cwd=space, capture_output=True, input=b"").returncode

        # The system's package lists first: a fresh container has none, and then this user reads
        # lists of its own.
        if fails(*download) and (fails(*own_lists, "update", "-q") or fails(*own_lists, *download)):
            return "apt could not download it"
        for package in space.glob("*.deb"):
            if subprocess.run(["dpkg-deb", "-x", package, space / "root"]).returncode:
                return "dpkg-deb could not unpack it, for the reason above"
        shutil.rmtree(home, ignore_errors=True)
        os.rename(space / "root", home)
    return ""
