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


@pytest.fixture
def run(capsys):
    """Run a command on a project: exit code, and all that it said."""

    def call(project, *words: str) -> tuple[int, str]:
        code = fakes.main(["--root", str(project.root), *words])
        said = capsys.readouterr()
        return code, said.out + said.err

    return call


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_folder_has_all_that_is_published(project, run):
    code, said = run(project, "build", "--release")
    assert code == 0 and f"{FOLDER}: 1 wheel, 1 patch file" in said
    assert f"--find-links {FOLDER} sglang==9.9.1+{fakes.LABEL}" in said
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


@pytest.mark.parametrize("program", ["git apply", "patch -s -p1 -i"])
def test_the_patch_file_makes_the_patched_tree(project, tmp_path, program):
    checkout = project.checkout(tmp_path / "sglang")
    release.make(project.root, pins.load(project.root).all)
    command = [*program.split(), str(project.root / FOLDER / PATCH)]
    subprocess.run(command, cwd=checkout, check=True)
    for path in (project.tree / "python").rglob("*.py"):
        name = path.relative_to(project.tree)
        if name.name != "_version.py":
            assert (checkout / name).read_bytes() == path.read_bytes(), name


@pytest.mark.parametrize("change", ["a patch", "an overlay file", "nothing"])
def test_other_content_under_a_tagged_number_is_refused(project, run, tmp_path, change):
    fakes.to_repository(project, tmp_path / "home")
    fakes.git(project.root, "tag", f"pcg-{QUEUE}")
    name = "patches/steps/count-once-more.patch"
    if change == "a patch":
        project.edit(name, "Why: without it a user saw", "Why: without it users saw")
    elif change == "an overlay file":
        name = "overlay/python/sglang/srt/steps/more.py"
        project.write(name, "more = 1\n")
    code, said = run(project, "build", "--release")
    if change == "nothing":
        assert code == 0, said
    else:
        assert code == 1 and "[released]" in said and Path(name).name in said
        assert not (project.root / FOLDER).exists()
