"""pip and uv take a patched release from the index, beside an index that stands for PyPI: six
situations, as docs/install.md tells them.

Both indexes are folders on a local server: no network. The same again with an index that answers
in JSON. The releases are the small ones of test_pages.py, under the names of real ones.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import fakes
import msgspec
import pytest
import test_pages

from patchqueue.files.run import find_uv
from patchqueue.publishing import assets, index
from patchqueue.upstream import pins

ROOT = Path(__file__).resolve().parents[2]
JSON = "application/vnd.pypi.simple.v1+json"
PURE = "0.5.9"  # patched, in the queue's index
LACKING = "0.5.11"  # on the other index alone
PATCHED = f"{PURE}+{fakes.LABEL}"


class Files(SimpleHTTPRequestHandler):
    """A folder's files; the index in JSON, where the server has it and the client asks for it."""

    server: Site

    def send_head(self):
        self.server.asked.append(self.path)
        wanted = Path(self.translate_path(self.path)) / "index.json"
        if self.server.json and JSON in self.headers.get("Accept", "") and wanted.is_file():
            self.send_response(200)
            self.send_header("Content-Type", JSON)
            self.send_header("Content-Length", str(wanted.stat().st_size))
            self.end_headers()
            return wanted.open("rb")
        return super().send_head()

    def log_message(self, *words: object) -> None:
        pass


class Site(ThreadingHTTPServer):
    """A server of a folder. asked: the paths that clients asked for."""

    def __init__(self, folder: Path, json: bool):
        self.json, self.asked = json, []
        super().__init__(("127.0.0.1", 0), lambda *words: Files(*words, directory=str(folder)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@dataclass
class Served:
    """The two indexes, and a folder for what is installed."""

    site: Site
    space: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def pypi(self) -> str:
        return f"{self.site.url}/pypi/simple/"

    @property
    def queue(self) -> str:
        return f"{self.site.url}/queue/simple/"

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


@pytest.fixture(scope="module")
def folders(tmp_path_factory, quilt_home) -> Path:
    """pypi/ has upstream's wheels, queue/ what `release` made; each with its index."""
    home = tmp_path_factory.mktemp("index")
    with pytest.MonkeyPatch.context() as patch:
        (home / "cache").mkdir()
        if quilt_home:
            (home / "cache/quilt").symlink_to(quilt_home)
        patch.setenv("PATCHQUEUE_CACHE", str(home / "cache"))
        project = test_pages.make(home).project
        chosen = assets.Choice([pins.load(project.root).find(PURE)])
        made = assets.make(project.root, chosen, "changes\n")
    made.folder.rename(home / "queue")
    for version in (PURE, LACKING):
        name = f"sglang-{version}-py3-none-any.whl"
        fakes.write_wheel(home / "pypi" / name, fakes.release_of(version))
    for name in ("pypi", "queue"):
        index.write(index.of_folder(home / name), home / name)
    return home


@pytest.fixture
def served(request, folders, tmp_path) -> Iterator[Served]:
    """In HTML, unless a test says otherwise."""
    site = Site(folders, json=getattr(request, "param", "html") == "json")
    thread = Thread(target=site.serve_forever, daemon=True)
    thread.start()
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PIP_", "UV_", "PYTHON", "VIRTUAL_ENV"))
        and "proxy" not in name.lower()
    }
    yield Served(site, tmp_path, kept)
    site.shutdown()
    thread.join()
    site.server_close()


def pip(served: Served, request: str) -> str:
    command = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--no-input", request]
    return served.installed(
        *command, "--isolated", "--index-url", served.pypi, "--extra-index-url", served.queue
    )


def uv(served: Served, request: str, *more: str) -> str:
    command = [find_uv(), "--no-config", "pip", "install", "--no-cache", "--python", sys.executable]
    return served.installed(
        *command, "--default-index", served.pypi, "--index", served.queue, *more, request
    )


def any_index(served: Served, request: str) -> str:
    return uv(served, request, "--index-strategy", "unsafe-best-match")


def project_of(served: Served, version: str) -> str:
    """What a uv project locks whose index is explicit, and for sglang alone."""
    (served.space / "pyproject.toml").write_text(
        f"""\
[project]
name = "mine"
version = "1"
requires-python = ">=3.10"
dependencies = ["sglang{version}"]

[tool.uv.sources]
sglang = {{ index = "queue" }}

[[tool.uv.index]]
name = "queue"
url = "{served.queue}"
explicit = true
"""
    )
    lock = [find_uv(), "lock", "--no-cache", "--default-index", served.pypi]
    code, said = served.run(*lock, "--python", sys.executable)
    if code:
        assert "No solution found" in said, said
        return "error"
    packages = msgspec.toml.decode((served.space / "uv.lock").read_bytes())["package"]
    (found,) = [package for package in packages if package["name"] == "sglang"]
    assert found["source"]["registry"].rstrip("/") == served.queue.rstrip("/")
    return found["version"]


WORDS = {PATCHED: "patched", PURE: "upstream's", LACKING: "upstream's", "error": "error"}
SITUATIONS = {  # what a user asks for -> what each client gives
    f"sglang=={PATCHED}": ("patched", "patched", "patched"),
    f"sglang=={PURE}": ("patched", "patched", "patched"),
    "sglang>=0.5.8,<0.5.10": ("patched", "patched", "patched"),
    f"sglang==={PURE}": ("upstream's", "error", "upstream's"),
    f"sglang=={LACKING}": ("upstream's", "error", "upstream's"),
}


PROJECTS = {PURE: "patched", LACKING: "error"}  # of uv, with an index for sglang alone

in_json = pytest.mark.parametrize("served", ["json"], indirect=True)
in_both = pytest.mark.parametrize("served", ["html", "json"], indirect=True)


@pytest.mark.parametrize("request_", SITUATIONS)
def test_what_a_request_gives(served, request_):
    found = tuple(WORDS[client(served, request_)] for client in (pip, uv, any_index))
    assert found == SITUATIONS[request_]


@in_json
def test_json_gives_the_same(served):
    assert [WORDS[client(served, f"sglang=={PURE}")] for client in (pip, uv)] == ["patched"] * 2


@in_both
def test_a_uv_project_names_the_index_for_sglang_alone(served):
    found = {version: WORDS[project_of(served, f"=={version}")] for version in PROJECTS}
    assert found == PROJECTS


def test_the_page_says_so():
    """docs/install.md has the table of all this."""
    text = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    table = re.search(r"(?s)<!-- index -->\n(.*?)<!-- /index -->", text)[1]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]
    projects = [[f"uv project, explicit, `=={v}`", "", said, ""] for v, said in PROJECTS.items()]
    assert rows == [*([f"`{request}`", *said] for request, said in SITUATIONS.items()), *projects]


def test_uv_leaves_out_what_has_no_date(served):
    dated = ("--exclude-newer", "2026-02-26")
    assert uv(served, f"sglang=={PATCHED}", *dated) == "error"
    kept = (*dated, "--exclude-newer-package", "sglang=false")
    assert uv(served, f"sglang=={PATCHED}", *kept) == PATCHED


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
def test_a_wheel_that_is_not_the_indexs_is_refused(served, folders, client):
    (wheel,) = (folders / "queue").glob("*.whl")
    right = wheel.read_bytes()
    wheel.write_bytes(right + b"more")
    try:
        assert client(served, f"sglang=={PATCHED}") == "error"
    finally:
        wheel.write_bytes(right)


@in_both
def test_resolving_fetches_no_wheel(served):
    """The METADATA beside the wheel is enough, and its hash is looked at."""
    python = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--isolated"]
    code, said = served.run(
        *python, "--dry-run", "--target", "x", "--index-url", served.queue, f"sglang=={PURE}"
    )
    assert code == 0 and f"Would install sglang-{PATCHED}" in said
    asked = [path for path in served.site.asked if ".whl" in path]
    assert asked == [f"/queue/sglang-{PATCHED.replace('+', '%2B')}-py3-none-any.whl.metadata"]
