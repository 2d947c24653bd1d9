"""git, run as nobody's repository and nobody's configuration would have it."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..hint import to_type
from ..outcome import Problem, Refused
from . import disk

CONFIG = (
    "core.autocrlf=false",
    "core.eol=lf",
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "merge.conflictStyle=diff3",
    "rerere.enabled=false",
    "gc.auto=0",
    "core.compression=0",
    "core.fsync=none",
    "commit.gpgSign=false",
    "user.name=patch queue",
    "user.email=",
    "safe.directory=*",
)
NO_CONFIGURATION = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}


class GitFailed(Exception):
    """A command of git that did not end well. str() is the last line that it said."""


@dataclass(frozen=True)
class Merged:
    """Three texts in one. regions: how many places are left to solve, each between diff3 markers in
    `text`."""

    text: bytes
    regions: int


def run(
    folder: Path,
    *arguments: str,
    stdin: bytes | None = None,
    more: Mapping[str, str] | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[bytes]:
    """Run one git command in `folder`, with none of the caller's GIT_* variables, and `more`
    instead.

    Raises GitFailed where it ends with another code than 0, unless check is False; Refused where
    there is no git.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_LITERAL_PATHSPECS": "0",
        **(more or {}),
    }
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env=environment,
            input=stdin if stdin is not None else b"",
            capture_output=True,
        )
    except FileNotFoundError:
        raise Refused(
            Problem("no-git", str(folder), "git is not installed", "install git")
        ) from None
    if check and done.returncode:
        said = [
            line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()
        ]
        raise GitFailed(
            re.sub(
                r"^(fatal|error): ",
                "",
                (
                    said[-1]
                    if said
                    else f"git {' '.join(arguments[:1])} ended with code {done.returncode}"
                ),
            )
        )
    return done


def git(
    folder: Path, *arguments: str, stdin: bytes | None = None, check: bool = True
) -> subprocess.CompletedProcess[bytes]:
    """Run one git command in a repository of the tool's own, and in none above it. Raises Refused
    with git's words where it fails."""
    more = NO_CONFIGURATION | {"GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    try:
        return run(
            folder,
            *(word for setting in CONFIG for word in ("-c", setting)),
            *arguments,
            stdin=stdin,
            more=more,
            check=check,
        )
    except GitFailed as failure:
        step = (
            disk.said(str(failure))
            or "where it is a rebase's repository: "
            f"{to_type('rebase', 'VERSION --abort')}, and begin again"
        )
        raise Refused(
            Problem("git-failed", f"git {arguments[0]} in {folder.name}", str(failure), step)
        ) from None


def merge(base: bytes, ours: bytes, theirs: bytes, names: tuple[str, str, str]) -> Merged:
    """The change from `base` to `theirs` laid on `ours`. names: what the markers call ours, base
    and theirs."""
    with tempfile.TemporaryDirectory(prefix="patchqueue-merge-") as space:
        for name, content in (("ours", ours), ("base", base), ("theirs", theirs)):
            (Path(space) / name).write_bytes(content)
        labels = [word for name in names for word in ("-L", name)]
        done = git(
            Path(space),
            "merge-file",
            "-p",
            "--diff3",
            *labels,
            "ours",
            "base",
            "theirs",
            check=False,
        )
    if not 0 <= done.returncode <= 127:  # above: git's own failures, as a binary file
        raise Refused(
            Problem(
                "git-failed",
                "git merge-file",
                done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}",
                "report this",
            )
        )
    return Merged(done.stdout, done.returncode)
