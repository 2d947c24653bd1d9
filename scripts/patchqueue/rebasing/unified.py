"""Texts merged by git; and a patch's diff from the files before and after it.

The diff has the form that `quilt refresh` writes: quilt asks the same program.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..files import run
from ..outcome import Refused
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
    labels = ["--label", f"a/{path}", "--label", f"b/{path}"]
    words = ["-a", "-U", str(CONTEXT), *labels, "before", "after"]
    try:
        return run.run(run.DIFF, *words, folder=space, good=(1,)).stdout.decode("utf-8")
    except run.Failed as failure:
        raise Refused.of("diff-failed", path, failure.said, "report this") from None
    except UnicodeDecodeError:
        what = "has text that is not UTF-8 beside the change"
        step = "a patch is UTF-8; leave those lines alone"
        raise Refused.of("not-utf-8", path, what, step) from None


@dataclass(frozen=True)
class Merged:
    """Three texts in one. regions: how many places are left to solve, each between diff3 markers in
    `text`."""

    text: bytes
    regions: int


def merge(base: bytes, ours: bytes, theirs: bytes, names: tuple[str, str, str]) -> Merged:
    """The change from `base` to `theirs` laid on `ours`. names: what the markers call ours, base
    and theirs."""
    with tempfile.TemporaryDirectory(prefix="patchqueue-merge-") as space:
        for name, content in (("ours", ours), ("base", base), ("theirs", theirs)):
            (Path(space) / name).write_bytes(content)
        labels = [word for name in names for word in ("-L", name)]
        words = ["merge-file", "-p", "--diff3", *labels, "ours", "base", "theirs"]
        done = run.own_git(Path(space), *words, check=False)
    if not 0 <= done.returncode <= 127:  # above: git's own failures, as a binary file
        said = str(run.Failed("git", done))
        raise Refused.of("git-failed", "git merge-file", said, "report this")
    return Merged(done.stdout, done.returncode)
