"""Upstream's formatters and linters, each asked once about the same files: they start for a tenth
of a second, and most tests of one process send them what an earlier one sent."""

from __future__ import annotations

from pathlib import Path

from patchqueue.handover import formatting

Files = dict[str, bytes]

STARTED = formatting._run
ANSWERS: dict[tuple[object, ...], tuple[str, Files]] = {}


def run(tool: str, folder: Path, *words: str, good: tuple[int, ...] = (0,)) -> str:
    """What formatting._run returns, and leaves in the folder; one that fails is asked again."""
    before = _files(folder)
    key = tool, words, good, tuple(sorted(before.items()))
    if key not in ANSWERS:
        ANSWERS[key] = STARTED(tool, folder, *words, good=good), _files(folder)
    said, after = ANSWERS[key]
    for name, content in after.items():
        (folder / name).write_bytes(content)
    return said


def _files(folder: Path) -> Files:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
