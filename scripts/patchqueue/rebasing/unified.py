"""A patch's diff from the files before and after it, in the form that `quilt refresh` writes (quilt
asks the same diff)."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ..outcome import Problem, Refused
from ..queue.patchfile import CONTEXT


def unified(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """The diff of every file of `after` that is not as it was, sorted by path; "" where none is.
    Both hold the same paths."""
    with tempfile.TemporaryDirectory(prefix="patchqueue-diff-") as space:
        return "".join(
            _one(Path(space), path, before[path], after[path])
            for path in sorted(after)
            if before[path] != after[path]
        )


def _one(space: Path, path: str, before: bytes, after: bytes) -> str:
    (space / "before").write_bytes(before)
    (space / "after").write_bytes(after)
    command = [
        "diff",
        "-a",
        "-U",
        str(CONTEXT),
        "--label",
        f"a/{path}",
        "--label",
        f"b/{path}",
        "before",
        "after",
    ]
    try:
        done = subprocess.run(
            command, cwd=space, capture_output=True, env=os.environ | {"LC_ALL": "C"}
        )
    except FileNotFoundError:
        raise Refused(Problem("no-diff", "diff", "is not installed", "install diffutils")) from None
    if done.returncode != 1:
        raise Refused(
            Problem(
                "diff-failed",
                path,
                done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}",
                "report this",
            )
        )
    try:
        return done.stdout.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(
            Problem(
                "not-utf-8",
                path,
                "has text that is not UTF-8 beside the change",
                "a patch is UTF-8; leave those lines alone",
            )
        ) from None
