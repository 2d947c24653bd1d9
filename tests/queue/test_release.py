"""The files of a release of the queue: the same bytes twice, nothing else under a tagged number;
and pip and uv take a wheel from its page of links."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import fakes
import pytest
from fakes import QUEUE, contents
from served import Site

from patchqueue.files.run import find_uv
from patchqueue.handover import release
from patchqueue.upstream import pins

WHEEL = f"sglang-9.9.1+{fakes.LABEL}-py3-none-any.whl"
PATCH = f"sglang-9.9.1+{fakes.LABEL}.patch"
FOLDER = f"dist/release-{QUEUE}"


def test_the_folder_has_all_that_is_published(project, tool):
    code, said, _ = tool(project, "build", "--release")
    assert code == 0 and f"{FOLDER}: 1 wheel, 1 patch file" in said
    assert f"--find-links {project.root / FOLDER} sglang==9.9.1+{fakes.LABEL}" in said
    folder = project.root / FOLDER
    made = contents(folder)
    assert sorted(made) == ["SHA256SUMS", "index.html", WHEEL, PATCH]
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True)
    assert len(made["SHA256SUMS"].splitlines()) == len(made) - 1


def test_the_same_queue_gives_the_same_bytes(project):
    first = contents(release.make(project.root, pins.load(project.root).all))
    for path in project.root.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    assert contents(release.make(project.root, pins.load(project.root).all)) == first


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


PIP = (sys.executable, "-m", "pip", "install", "--isolated", "--no-cache-dir", "--no-input")
UV = (find_uv(), "--no-config", "pip", "install", "--no-cache", "--python", sys.executable)


@pytest.mark.parametrize("client", [PIP, UV], ids=["pip", "uv"])
def test_a_wheel_is_taken_from_the_page_of_links_where_it_is_the_pages(project, tmp_path, client):
    folder = release.make(project.root, pins.load(project.root).all)
    steering = ("PIP_", "UV_", "PYTHON", "VIRTUAL_ENV", "HTTP", "NO_PROXY", "ALL_PROXY")
    kept = {name: os.environ[name] for name in os.environ if not name.upper().startswith(steering)}
    words = ("--no-index", "--target", tmp_path / "target", f"sglang==9.9.1+{fakes.LABEL}")

    def install() -> int:
        command = [*client, "--find-links", f"{site.url}/index.html", *words]
        return fakes.run(*command, cwd=tmp_path, env=kept).returncode

    with Site.started(folder) as site:
        assert install() == 0
        assert "added_step" in (tmp_path / "target/sglang/srt/runner.py").read_text()
        shutil.rmtree(tmp_path / "target")
        with (folder / WHEEL).open("ab") as wheel:
            wheel.write(b"more")
        assert install() != 0 and not (tmp_path / "target/sglang").exists()
