"""The files of a release of the queue: the same bytes twice, and nothing else under a tagged
number."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import fakes
import pytest
from fakes import QUEUE

from patchqueue.handover import release
from patchqueue.upstream import pins

WHEEL = f"sglang-9.9.1+{fakes.LABEL}-py3-none-any.whl"
PATCH = f"sglang-9.9.1+{fakes.LABEL}.patch"
FOLDER = f"dist/release-{QUEUE}"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_folder_has_all_that_is_published(project, tool):
    code, said, _ = tool(project, "build", "--release")
    assert code == 0 and f"{FOLDER}: 1 wheel, 1 patch file" in said
    assert f"--find-links {project.root / FOLDER} sglang==9.9.1+{fakes.LABEL}" in said
    folder = project.root / FOLDER
    made = files(folder)
    assert sorted(made) == ["SHA256SUMS", "index.html", WHEEL, PATCH]
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True)
    assert len(made["SHA256SUMS"].splitlines()) == len(made) - 1


def test_the_same_queue_gives_the_same_bytes(project):
    first = files(release.make(project.root, pins.load(project.root).all).folder)
    for path in project.root.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    shutil.rmtree(project.root / "work")
    assert files(release.make(project.root, pins.load(project.root).all).folder) == first


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (f"patches/{fakes.COUNT}", ""),
        ("overlay/python/sglang/srt/steps/more.py", "more = 1\n"),
        ("", ""),
    ],
    ids=["a patch", "an overlay file", "nothing"],
)
def test_other_content_under_a_tagged_number_is_refused(project, tool, tmp_path, name, text):
    fakes.to_repository(project, tmp_path / "home")
    fakes.git(project.root, "tag", f"pcg-{QUEUE}")
    if text:
        project.write(name, text)
    elif name:
        project.edit(name, "Why: without it a user saw", "Why: without it users saw")
    code, _, err = tool(project, "build", "--release")
    assert code == bool(name), err
    if name:
        assert "[released]" in err and Path(name).name in err
        assert not (project.root / FOLDER).exists()
