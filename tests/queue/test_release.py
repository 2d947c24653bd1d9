"""The files of a release of the queue: the same bytes twice, nothing else under a tagged number;
and pip and uv take a wheel from its page of links, beside an index that stands for PyPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
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
    first = contents(release.make(project.root, pins.load(project.root).all).folder)
    for path in project.root.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    shutil.rmtree(project.root / "work")
    assert contents(release.make(project.root, pins.load(project.root).all).folder) == first


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


PURE = "0.5.9"  # patched, on the page
LACKING = "0.5.11"  # on the index alone
PATCHED = f"{PURE}+{fakes.LABEL}"
CLIENTS = {  # each with its option for the index
    "pip": (
        *(sys.executable, "-m", "pip", "install", "--isolated", "--no-cache-dir", "--no-input"),
        "--index-url",
    ),
    "uv": (
        *(find_uv(), "--no-config", "pip", "install", "--no-cache", "--python", sys.executable),
        "--default-index",
    ),
}


def make_queue(folder: Path) -> fakes.Project:
    """A queue for one release, with the overlay's own package; the release is cached."""
    project = fakes.Project(folder / "queue", folder / "cache", folder / "wheels")
    project.write("upstream/.keep", "")
    project.release(PURE)
    project.warm()
    project.package()
    project.queue(f"=={PURE}", f"=={PURE}", "python/sglang/srt/prefill_graph/")
    project.place()
    return project


@pytest.fixture(scope="module")
def folders(tmp_path_factory, quilt_home) -> Path:
    """pypi/ is an index of upstream's wheels, queue/ what `release` made."""
    home = tmp_path_factory.mktemp("index")
    with pytest.MonkeyPatch.context() as patch:
        (home / "cache").mkdir()
        if quilt_home:
            (home / "cache/quilt").symlink_to(quilt_home)
        patch.setenv("PATCHQUEUE_CACHE", str(home / "cache"))
        project = make_queue(home / "made")
        made = release.make(project.root, [pins.load(project.root).find(PURE)])
    made.folder.rename(home / "queue")
    for version in (PURE, LACKING):
        name = f"sglang-{version}-py3-none-any.whl"
        fakes.write_wheel(home / "pypi/sglang" / name, fakes.release_of(version))
        with (home / "pypi/sglang/index.html").open("a") as page:
            page.write(f'<a href="{name}">{name}</a>\n')
    return home


@pytest.fixture
def installed(folders, tmp_path) -> Iterator[Callable[[str, str], str]]:
    """Let a client install what is asked for: the version that it takes, "error" where it fails."""
    steering = ("PIP_", "UV_", "PYTHON", "VIRTUAL_ENV", "HTTP", "NO_PROXY", "ALL_PROXY")
    kept = {name: os.environ[name] for name in os.environ if not name.upper().startswith(steering)}
    target = tmp_path / "target"

    def install(client: str, request: str) -> str:
        shutil.rmtree(target, ignore_errors=True)
        index, links = f"{site.url}/pypi/", ["--find-links", f"{site.url}/queue/index.html"]
        command = [*CLIENTS[client], index, *links, "--target", target, request]
        if fakes.run(*command, cwd=tmp_path, env=kept).returncode:
            return "error"
        (info,) = target.glob("sglang-*.dist-info")
        return info.name.removesuffix(".dist-info").partition("-")[2]

    with Site.started(folders) as site:
        yield install


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (f"sglang=={PATCHED}", PATCHED),
        (f"sglang=={PURE}", PATCHED),
        (f"sglang==={PURE}", PURE),
        (f"sglang=={LACKING}", LACKING),
    ],
)
def test_what_a_request_gives(installed, tmp_path, client, request_, version):
    assert installed(client, request_) == version
    if version == PATCHED:
        done = fakes.run(sys.executable, tmp_path / "target/sglang/srt/prefill_graph", "--verify")
        said = f"sglang {PURE}, queue release {fakes.QUEUE}, 2 patches"
        assert done.returncode == 0 and said in done.stdout


@pytest.mark.parametrize("client", CLIENTS)
def test_a_wheel_that_is_not_the_pages_is_refused(installed, folders, client):
    (wheel,) = (folders / "queue").glob("*.whl")
    right = wheel.read_bytes()
    wheel.write_bytes(right + b"more")
    try:
        assert installed(client, f"sglang=={PATCHED}") == "error"
    finally:
        wheel.write_bytes(right)
