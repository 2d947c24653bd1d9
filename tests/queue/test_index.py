"""The package index as it is written: pages, JSON, metadata beside the wheels, and what is refused.

tests/queue/test_index_clients.py has pip and uv read it.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from html.parser import HTMLParser
from urllib.parse import unquote

import fakes
import pytest
from packaging.version import Version

from patchqueue.outcome import Refused
from patchqueue.publishing import index, wheelfile
from patchqueue.queue import released

NAMES = ["sglang-9.9.1+pcg.7-py3-none-any.whl", "sglang-9.9.10+pcg.7-py3-none-any.whl"]
NEEDS = "Requires-Python: >=3.10,<4\n"


@pytest.fixture
def folder(tmp_path):
    """Two wheels, of which the first says which Pythons it is for."""
    for name in NAMES:
        version = name.split("-")[1]
        files = fakes.release_of(version)
        metadata = f"sglang-{version}.dist-info/METADATA"
        files[metadata] += NEEDS if name == NAMES[0] else ""
        fakes.write_wheel(tmp_path / "all" / name, files)
    return tmp_path / "all"


class Links(HTMLParser):
    def __init__(self, page: str):
        super().__init__()
        self.found: list[dict[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "a":
            self.found.append(dict(attrs))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_the_pages_link_to_every_wheel(folder):
    made = index.write(index.of_folder(folder), folder)
    assert (made.wheels, made.versions) == (2, ("9.9.1+pcg.7", "9.9.10+pcg.7"))
    page = (folder / "simple/sglang/index.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and 'content="1.1"' in page
    links = Links(page).found
    for name, link in zip(NAMES, links):
        url, _, digest = link["href"].partition("#sha256=")
        assert "%2B" in url and "+" not in url
        assert ((folder / "simple/sglang") / unquote(url)).resolve() == folder / name
        assert digest == sha256((folder / name).read_bytes())
        beside = sha256((folder / f"{name}.metadata").read_bytes())
        assert link["data-core-metadata"] == link["data-dist-info-metadata"] == f"sha256={beside}"
    assert [link.get("data-requires-python") for link in links] == [">=3.10,<4", None]
    assert "&gt;=3.10,&lt;4" in page
    (root,) = Links((folder / "simple/index.html").read_text()).found
    assert root == {"href": "sglang/"}


def test_the_json_says_the_same(folder):
    index.write(index.of_folder(folder), folder)
    found = json.loads((folder / "simple/sglang/index.json").read_text())
    assert found["meta"] == {"api-version": "1.1"} and found["name"] == "sglang"
    assert found["versions"] == ["9.9.1+pcg.7", "9.9.10+pcg.7"]
    links = Links((folder / "simple/sglang/index.html").read_text()).found
    for link, file in zip(links, found["files"], strict=True):
        assert link["href"] == f"{file['url']}#sha256={file['hashes']['sha256']}"
        assert link.get("data-requires-python") == file.get("requires-python")
        assert link["data-core-metadata"] == f"sha256={file['core-metadata']['sha256']}"
        assert file["core-metadata"] == file["dist-info-metadata"]
        assert file["size"] == (folder / file["filename"]).stat().st_size
        assert "upload-time" not in file
    root = json.loads((folder / "simple/index.json").read_text())
    assert root["projects"] == [{"name": "sglang"}]


def test_metadata_beside_a_wheel_is_the_wheels_own(folder):
    beside = folder / f"{NAMES[0]}.metadata"
    beside.write_text("another wheel's")
    index.of_folder(folder)
    assert beside.read_bytes() == wheelfile.describe(folder / NAMES[0]).metadata
    assert NEEDS.encode() in beside.read_bytes()


def test_the_same_wheels_give_the_same_index(folder, tmp_path):
    texts = []
    for name in ("one", "two"):
        index.write(index.of_folder(folder, "https://example.org/w/"), tmp_path / name)
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        texts.append([(path.name, path.read_bytes()) for path in files])
    assert texts[0] == texts[1] and len(texts[0]) == 4
    (first, _) = Links((tmp_path / "one/simple/sglang/index.html").read_text()).found
    assert first["href"].startswith("https://example.org/w/sglang-9.9.1%2Bpcg.7-py3-none-any.whl#")


def test_an_index_elsewhere_links_to_the_folder(folder, tmp_path):
    made = index.write(index.of_folder(folder, out=tmp_path / "site"), tmp_path / "site")
    (first, _) = Links((made.folder / "simple/sglang/index.html").read_text()).found
    place = made.folder / "simple/sglang" / unquote(first["href"].partition("#")[0])
    assert place.resolve() == folder / NAMES[0]


def test_all_releases_of_the_queue_are_in_one_index(folder, tmp_path):
    """Each wheel where its own release has it, with the day of the cut."""
    cut = []
    for number, name in zip((7, 8), NAMES):
        described = wheelfile.describe(folder / name)
        hashes = ["sha256:" + "0" * 64] * 2
        revision = released.Revision(Version("9.9.1"), *hashes, wheels=(described.wheel,))
        day = datetime.date(2030, 1, number)
        cut.append(released.Release(number, day, "1.3", (revision,)))
    linked = index.of_releases(cut, "https://example.org/queue/releases/download/")
    assert [each.url for each in linked] == [
        "https://example.org/queue/releases/download/pcg-7/sglang-9.9.1%2Bpcg.7-py3-none-any.whl",
        "https://example.org/queue/releases/download/pcg-8/sglang-9.9.10%2Bpcg.7-py3-none-any.whl",
    ]
    index.write(linked, tmp_path / "site")
    found = json.loads((tmp_path / "site/simple/sglang/index.json").read_text())["files"]
    assert [file["upload-time"] for file in found] == [
        "2030-01-07T00:00:00Z",
        "2030-01-08T00:00:00Z",
    ]
    assert found[0]["requires-python"] == ">=3.10,<4", "known without the wheel"


def call(capsys, *words: str) -> tuple[int, str]:
    code = fakes.main(words)
    said = capsys.readouterr()
    return code, said.out + said.err


def test_the_command_ends_with_what_a_user_types(project, folder, capsys):
    code, said = call(capsys, "--root", str(project.root), "index", str(folder))
    assert code == 0 and "links to 2 wheels: 9.9.1+pcg.7 9.9.10+pcg.7" in said
    last = said.splitlines()[-1]
    assert (
        last
        == "next: serve it, then `pip install --extra-index-url URL/simple sglang==9.9.1+pcg.7`"
    )


def test_the_command_takes_the_releases_that_were_cut(project, capsys, tmp_path):
    root = ("--root", str(project.root))
    code, said = call(capsys, *root, "index")
    assert code == 1 and "releases: names no release of the queue [not-cut]" in said
    fakes.to_release(project, tmp_path / "home")
    assert call(capsys, *root, "release", "--cut")[0] == 0
    code, said = call(capsys, *root, "index")
    assert code == 0 and "dist/index/simple: links to 1 wheel" in said
    page = (project.root / "dist/index/simple/sglang/index.html").read_text()
    assert f'"https://example.org/queue/releases/download/pcg-{fakes.QUEUE}/sglang-' in page
    project.write("releases/about.toml", "")
    code, said = call(capsys, *root, "index")
    assert code == 1 and "releases/about.toml: has no repository" in said and "--url" in said
    code, said = call(capsys, *root, "index", "--url", "https://mirror.example.org/w")
    page = (project.root / "dist/index/simple/sglang/index.html").read_text()
    assert code == 0 and f'"https://mirror.example.org/w/pcg-{fakes.QUEUE}/sglang-' in page


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x/y", b"", "is no folder"),
        ("x", b"", "holds no wheel"),
        ("x/sglang-1-py3-none-any.whl", b"no zip", "is no wheel: File is not a zip file"),
        ("x/sglang.whl", b"", "is no wheel: Invalid wheel filename"),
    ],
)
def test_what_is_no_folder_of_wheels_is_refused(tmp_path, name, content, says):
    (tmp_path / "x").mkdir()
    if content or name.endswith(".whl"):
        (tmp_path / name).write_bytes(content)
        name = "x"
    with pytest.raises(Refused, match=says):
        index.of_folder(tmp_path / name)


@pytest.mark.parametrize("left_out", ["METADATA", "RECORD"])
def test_a_wheel_without_its_record_is_refused(folder, left_out):
    files = {name: text for name, text in fakes.RELEASE.items() if not name.endswith(left_out)}
    fakes.write_wheel(folder / "sglang-9.9.3-py3-none-any.whl", files)
    with pytest.raises(Refused, match=rf"is no wheel: .*{left_out}"):
        index.of_folder(folder)
