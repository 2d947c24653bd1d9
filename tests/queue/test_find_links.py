"""pip and uv take a patched release from the page of links that `release` makes, beside an index
that stands for PyPI, as docs/install.md has it.

Both are folders on a local server: no network. The releases are small, under the names of real
ones.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import fakes
import pytest
from served import Site

from patchqueue.files.run import find_uv
from patchqueue.handover import release
from patchqueue.upstream import pins

PURE = "0.5.9"  # patched, on the page
LACKING = "0.5.11"  # on the index alone
PATCHED = f"{PURE}+{fakes.LABEL}"


@dataclass
class Served:
    """The index, the page, and a folder for what is installed."""

    site: Site
    folder: Path
    space: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def links(self) -> tuple[str, ...]:
        return ("--find-links", f"{self.site.url}/queue/index.html")

    def run(self, *words: str) -> tuple[int, str]:
        done = subprocess.run(
            [*words], cwd=self.space, env=self.environment, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr

    def installed(self, *words: str) -> str:
        """The version that a command installs into a folder of its own; "error" where it fails."""
        target = self.space / "target"
        shutil.rmtree(target, ignore_errors=True)
        code, _ = self.run(*words, "--target", str(target))
        if code:
            return "error"
        (info,) = target.glob("sglang-*.dist-info")
        return info.name.removesuffix(".dist-info").partition("-")[2]


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
def served(folders, tmp_path) -> Iterator[Served]:
    site = Site(folders)
    thread = Thread(target=site.serve_forever, daemon=True)
    thread.start()
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PIP_", "UV_", "PYTHON", "VIRTUAL_ENV"))
        and "proxy" not in name.lower()
    }
    yield Served(site, folders / "queue", tmp_path, kept)
    site.shutdown()
    thread.join()
    site.server_close()


def pip(served: Served, request: str, *links: str) -> str:
    command = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--no-input", request]
    index = ("--index-url", f"{served.site.url}/pypi/")
    return served.installed(*command, "--isolated", *index, *(links or served.links))


def uv(served: Served, request: str, *links: str) -> str:
    command = [find_uv(), "--no-config", "pip", "install", "--no-cache", "--python", sys.executable]
    index = ("--default-index", f"{served.site.url}/pypi/")
    return served.installed(*command, *index, *(links or served.links), request)


WORDS = {PATCHED: "patched", PURE: "upstream's", LACKING: "upstream's", "error": "error"}
SITUATIONS = {  # what a user asks for -> what pip and uv give
    f"sglang=={PATCHED}": ("patched", "patched"),
    f"sglang=={PURE}": ("patched", "patched"),
    f"sglang==={PURE}": ("upstream's", "upstream's"),
    f"sglang=={LACKING}": ("upstream's", "upstream's"),
}


@pytest.mark.parametrize("request_", SITUATIONS)
def test_what_a_request_gives(served, request_):
    found = tuple(WORDS[client(served, request_)] for client in (pip, uv))
    assert found == SITUATIONS[request_]


def test_what_is_installed_verifies_itself(served):
    assert pip(served, f"sglang=={PATCHED}") == PATCHED
    code, said = served.run(
        sys.executable, str(served.space / "target/sglang/srt/prefill_graph"), "--verify"
    )
    assert code == 0 and f"sglang {PURE}, queue release {fakes.QUEUE}, 2 patches" in said


def test_the_patch_file_makes_what_verifies_itself(folders, tmp_path):
    """On an installed release, as the file's first lines say."""
    site = fakes.install(tmp_path / "site", fakes.release_of(PURE), PURE)
    (patch,) = (folders / "queue").glob("*.patch")
    subprocess.run(["patch", "-s", "-p2", "-i", str(patch)], cwd=site, check=True)
    command = [sys.executable, "sglang/srt/prefill_graph", "--verify"]
    done = subprocess.run(command, cwd=site, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"sglang {PURE}, queue release {fakes.QUEUE}, 2 patches" in done.stdout


@pytest.mark.parametrize("client", [pip, uv])
def test_a_wheel_that_is_not_the_pages_is_refused(served, folders, client):
    (wheel,) = (folders / "queue").glob("*.whl")
    right = wheel.read_bytes()
    wheel.write_bytes(right + b"more")
    try:
        assert client(served, f"sglang=={PATCHED}") == "error"
    finally:
        wheel.write_bytes(right)
