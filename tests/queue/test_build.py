"""Patched wheels: what is in them, and the queue's name in upstream's list of plugins. The files of
a release of the queue: the same bytes twice; and pip and uv take a wheel from its page of links."""

import base64
import csv
import email
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import fakes
import pytest
from fakes import QUEUE, ROOT, contents
from served import Site

from patchqueue import wheels
from patchqueue.files import tree as trees
from patchqueue.files.run import find_uv
from patchqueue.handover import backport
from patchqueue.upstream import pins, source

ANY = wheels.Target("3.12", "x86_64")
LOCAL = f"9.9.1+{fakes.LABEL}"
NAME = f"sglang-{LOCAL}-py3-none-any.whl"
INFO = f"sglang-{LOCAL}.dist-info/"


def make(project, pin=None, target=ANY, origin=None):
    return wheels.build(project.root, pin or project.pin, target, origin, project.root / "dist")


def members(path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as wheel:
        assert wheel.testzip() is None
        dates = {member.date_time for member in wheel.infolist()}
        assert dates == {(2030, 1, 2, 0, 0, 0)}, "the release's day, whenever it is built"
        return {name: wheel.read(name) for name in wheel.namelist()}


def test_the_wheel_holds_the_patched_tree_and_upstreams_rest(project):
    made, _ = make(project), project.apply()
    assert (made.path.name, made.version) == (NAME, LOCAL)
    assert made.origin == "sglang-9.9.1-py3-none-any.whl"
    found = members(made.path)
    for name in ("sglang/srt/runner.py", "sglang/srt/cut.py", "sglang/srt/steps/__init__.py"):
        assert found[name] == (project.tree / "python" / name).read_bytes()
    assert b"added_step = 20" in found["sglang/srt/runner.py"]
    assert found["sglang/srt/kernels.so"] == fakes.RELEASE["sglang/srt/kernels.so"].encode()
    assert found["sglang/_version.py"].decode().splitlines() == [
        f"__version__ = version = '{LOCAL}'",
        f"__version_tuple__ = version_tuple = (9, 9, 1, '{fakes.LABEL}')",
    ]
    assert f"\nVersion: {LOCAL}\n" in found[f"{INFO}METADATA"].decode()
    assert not any(name.startswith("sglang-9.9.1.dist-info/") for name in found)
    rows = {row[0]: row for row in csv.reader(found[f"{INFO}RECORD"].decode().splitlines())}
    assert rows.keys() == found.keys() and rows.pop(f"{INFO}RECORD")[1:] == ["", ""]
    for name, row in rows.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(found[name]).digest()).rstrip(b"=")
        assert row == [name, f"sha256={digest.decode()}", str(len(found[name]))]
    assert json.loads(found[f"{INFO}{wheels.PROVENANCE}"])["tree"] == made.record["tree"]


def test_the_record_names_the_wheel_that_was_repacked(project):
    """Not the one that apply takes on this host, where a release has several."""
    (plain,) = project.pin.wheels
    entries = []
    for python in ("cp311", "cp399"):
        tags = f"{python}-{python}-manylinux_2_34_x86_64"
        file = project.wheels / plain.file.replace("py3-none-any", tags)
        shutil.copy(project.wheels / plain.file, file)
        with zipfile.ZipFile(file, "a") as wheel:
            wheel.comment = python.encode()
        entries.append(f'{{file = "{file.name}", sha256 = "{source.file_sha256(file)}"}}')
    file = project.root / pins.FILE
    listed = f"wheels = [{', '.join(entries)}]"
    file.write_text(re.sub(r"(?s)wheels = \[.*?\]", listed, file.read_text()))
    pin = project.pins.default
    for wheel in pin.wheels:
        source.fetch(pin, project.wheels / wheel.file)
    made = make(project, pin, wheels.Target("3.99", "x86_64"))
    named = json.loads(members(made.path)[f"{INFO}{wheels.PROVENANCE}"])["source"]
    assert (named["name"], named["sha256"]) == (made.origin, pin.wheels[1].sha256)
    assert "cp399" in made.origin


def test_a_release_without_a_wheel_for_the_target_is_refused(project):
    project.edit("upstream/pins.toml", "py3-none-any", "cp310-cp310-manylinux_2_34_x")
    assert fakes.refused(make, project)[0] == "no-wheel"


def test_a_tree_in_work_is_neither_read_nor_written(project):
    project.apply()
    edited = project.tree / fakes.RUNNER
    edited.write_text("edited = 1\n")
    made = members(make(project).path)["sglang/srt/runner.py"]
    assert b"added_step" in made and edited.read_text() == "edited = 1\n"


def test_a_release_without_a_generated_version_file_says_its_local_version_too(project):
    """Up to 0.5.6 the version stands in version.py, which is part of the tree."""
    files = fakes.release_of("9.9.2")
    del files["sglang/_version.py"]
    project.release("9.9.2", files)
    project.edit("series", "==9.9.1", ">=9.9")
    pin = project.pins.find("9.9.2")
    made = make(project, pin, origin=project.wheels)
    found = members(made.path)["sglang/version.py"].decode()
    assert found == f'__version__ = "9.9.2+{fakes.LABEL}"\n'


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (wheels.PLAIN_VERSION_FILE, ""),
        (wheels.PLAIN_VERSION_FILE, '__version__ = "9.9.2"\n'),
        (wheels.PLAIN_VERSION_FILE, 'version = "9.9.1"\n'),
        (wheels.VERSION_FILE, "__version__ = '9.9.1'\n"),
        ("METADATA", "Name: sglang\n\nVersion: 9.9.1\n"),
        ("METADATA", "Version: 9.9.1\nVersion: 9.9.1\n"),
        ("METADATA", "Version: 9.9.2\n"),
    ],
)
def test_a_version_file_of_another_form_is_refused(file, text):
    name = "bad-metadata" if file == "METADATA" else "bad-version-file"
    assert fakes.refused(wheels.stamp, file, text.encode(), "9.9.1", LOCAL)[0] == name


OURS = "https://example.org/queue"
HEAD = """\
Metadata-Version: 2.4
Name: sglang
Version: 9.9.1+pcg.7
Summary: Serves models.
Project-URL: Homepage, https://example.org/sglang
Project-URL: Bug Tracker, https://example.org/sglang/issues
Project-URL: Issues, https://example.org/sglang/issues
License-File: LICENSE
Requires-Dist: torch

Project-URL: Bug Tracker, of the text below
"""


def fields(head: str = HEAD) -> email.message.Message:
    return email.message_from_string(wheels.patched_metadata(head, 7))


@pytest.fixture(params=["", OURS])
def address(request, monkeypatch) -> str:
    """The queue's own repository, where it is published."""
    monkeypatch.setattr(wheels, "REPOSITORY", request.param)
    return request.param


def test_the_summary_says_that_it_is_patched_and_reports_do_not_go_to_upstream(address):
    said = "Patched by the sglang patch queue, release 7"
    assert fields()["Summary"] == f"{said}: Serves models."
    assert fields("Metadata-Version: 2.1\nName: sglang\nVersion: 9.9.1\n")["Summary"] == said
    urls = dict(url.split(", ") for url in fields().get_all("Project-URL"))
    own = {"Homepage": OURS, "Bug Tracker": f"{OURS}/issues"} if address else {}
    assert urls == {**own, "Upstream Homepage": "https://example.org/sglang"}
    assert wheels.patched_metadata(HEAD, 7).partition("\n\n")[2] == HEAD.partition("\n\n")[2]
    assert fields().get_all("Requires-Dist") == ["torch"]
    assert fields().get_all("License-File") == ["LICENSE", wheels.NOTICE]


def test_a_wheel_names_what_it_is_made_of(project):
    """The notice every changed file; the bill of materials upstream's wheel and every patch."""
    made = make(project)
    found = members(made.path)
    told = found[f"{INFO}{wheels.NOTICE}"].decode()
    assert f"version {LOCAL}, not the sglang project's own 9.9.1" in told
    changed, added = told.partition("\nChanged:\n")[2].split("\nAdded:\n")
    assert changed.split() == ["sglang/_version.py", "sglang/srt/cut.py", "sglang/srt/runner.py"]
    assert added.split() == ["sglang/srt/steps/__init__.py"] and "Removed" not in told
    assert "section 4(b)" in told and "http" not in told
    bill = json.loads(found[f"{INFO}{wheels.BILL}"])
    component = bill["metadata"]["component"]
    (upstream,) = component["pedigree"]["ancestors"]
    assert component["purl"] == "pkg:pypi/sglang@9.9.1%2Bpcg.2"
    assert upstream["purl"] == "pkg:pypi/sglang@9.9.1"
    assert upstream["hashes"] == [{"alg": "SHA-256", "content": made.record["source"]["sha256"]}]
    named = [one["resolves"][0]["id"] for one in component["pedigree"]["patches"]]
    assert named == ["steps/count-once-more.patch", "steps/name-the-cut.patch"]


def test_the_notice_lies_beside_upstreams_licence(project, monkeypatch):
    """Where METADATA names it: both are read from there."""
    info = "sglang-9.9.1.dist-info"
    own = {f"{info}/licenses/LICENSE": "Apache", f"{info}/METADATA": HEAD.replace("+pcg.7", "")}
    (project.root / "upstream/pins.toml").unlink()
    project.release(files=fakes.RELEASE | own)
    monkeypatch.setattr(wheels, "REPOSITORY", OURS)
    found = members(make(project).path)
    text = found[f"{INFO}licenses/{wheels.NOTICE}"].decode()
    assert f"({OURS})" in text and f"{INFO}{wheels.NOTICE}" not in found
    metadata = email.message_from_bytes(found[f"{INFO}METADATA"])
    assert metadata.get_all("License-File") == ["LICENSE", wheels.NOTICE]
    assert f"Bug Tracker, {OURS}/issues" in metadata.get_all("Project-URL")


BOTH = {wheels.PLUGIN_LIST, wheels.PLUGIN_MODULE}
SCRIPTS = "[console_scripts]\nsglang = sglang.cli.main:main\n"
LINE = f"{wheels.PLUGIN_NAME} = {wheels.PLUGIN_CALL}\n"


def named(folder: Path) -> list[str]:
    """What Python's own reader finds, as upstream asks it: those of the group."""
    return [
        f"{one.name} -> {one.value}"
        for distribution in importlib.metadata.distributions(name="sglang", path=[str(folder)])
        for one in distribution.entry_points.select(group=wheels.PLUGIN_GROUP)
    ]


@pytest.mark.parametrize(
    "before",
    [
        None,
        SCRIPTS,
        SCRIPTS.rstrip("\n"),
        SCRIPTS + "\n",
        f"{SCRIPTS}\n[{wheels.PLUGIN_GROUP}]\nother = other:main\n",
        f"[{wheels.PLUGIN_GROUP}]\nother = other:main\n\n{SCRIPTS}",
    ],
)
def test_the_line_is_added_and_the_rest_stays(before, tmp_path):
    made = wheels.entry_points(None if before is None else before.encode(), BOTH)
    assert made is not None
    info = tmp_path / "sglang-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: sglang\nVersion: 1\n")
    (info / "entry_points.txt").write_bytes(made)
    assert f"{wheels.PLUGIN_NAME} -> {wheels.PLUGIN_CALL}" in named(tmp_path)
    for line in (before or "").splitlines():
        assert line in made.decode().splitlines()
    assert made.decode().count(f"[{wheels.PLUGIN_GROUP}]") == 1
    assert wheels.entry_points(made, BOTH) is None  # it is there


@pytest.mark.parametrize("files", [set(), {wheels.PLUGIN_LIST}, {wheels.PLUGIN_MODULE}])
def test_without_a_list_or_what_it_is_to_call_nothing_is_named(files):
    """Up to 0.5.10 a release has no such list."""
    assert wheels.entry_points(SCRIPTS.encode(), files) is None


def test_what_is_named_is_there():
    module, _, function = wheels.PLUGIN_CALL.partition(":")
    file = ROOT / "overlay/python" / f"{module.replace('.', '/')}.py"
    assert file == ROOT / "overlay/python" / wheels.PLUGIN_MODULE
    assert f"\ndef {function}() -> None:\n" in file.read_text(encoding="utf-8")


def wheel(project: fakes.Project, extra: dict[str, bytes]) -> dict[str, bytes]:
    """The members of the fake release's wheel, with these files of the package more."""
    report = project.apply()
    listed = trees.list_folder(report.path)
    files = {name.removeprefix("python/"): (report.path / name).read_bytes() for name in listed}
    upstream = {name: content.encode() for name, content in fakes.RELEASE.items()}
    upstream["sglang-9.9.1.dist-info/entry_points.txt"] = SCRIPTS.encode()
    return wheels.repack(upstream, files | extra, project.pin, report.record)


def test_a_wheel_names_it_and_its_record_is_right(project, tmp_path):
    made = wheel(project, dict.fromkeys(BOTH, b""))
    name, found = f"{INFO}entry_points.txt", made[f"{INFO}entry_points.txt"]
    assert found == f"{SCRIPTS}\n[{wheels.PLUGIN_GROUP}]\n{LINE}".encode()
    rows = {row[0]: row for row in csv.reader(made[f"{INFO}RECORD"].decode().splitlines())}
    assert rows[name] == wheels.record_row(name, found)
    texts = {name: content.decode() for name, content in made.items()}
    path = fakes.write_wheel(tmp_path / "made.whl", texts)
    zipfile.ZipFile(path).extractall(tmp_path / "site")
    assert named(tmp_path / "site") == [f"{wheels.PLUGIN_NAME} -> {wheels.PLUGIN_CALL}"]


# --- a release of the queue

PATCH = f"sglang-{LOCAL}.patch"
FOLDER = f"dist/release-{QUEUE}"


def test_the_folder_has_all_that_is_published(project, tool):
    code, said, _ = tool(project, "build", "--release")
    assert code == 0 and f"{FOLDER}: 1 wheel, 1 patch file" in said
    assert f"--find-links {project.root / FOLDER} sglang=={LOCAL}" in said
    folder = project.root / FOLDER
    made = contents(folder)
    assert sorted(made) == ["SHA256SUMS", "index.html", NAME, PATCH]
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True)
    assert len(made["SHA256SUMS"].splitlines()) == len(made) - 1
    for path in project.root.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    again = backport.make_release(project.root, project.pins.all)
    assert contents(again) == made, "the same queue gives the same bytes"


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
    folder = backport.make_release(project.root, project.pins.all)
    steering = ("PIP_", "UV_", "PYTHON", "VIRTUAL_ENV", "HTTP", "NO_PROXY", "ALL_PROXY")
    kept = {name: os.environ[name] for name in os.environ if not name.upper().startswith(steering)}
    words = ("--no-index", "--target", tmp_path / "target", f"sglang=={LOCAL}")

    def install() -> int:
        command = [*client, "--find-links", f"{site.url}/index.html", *words]
        return fakes.run(*command, cwd=tmp_path, env=kept).returncode

    with Site.started(folder) as site:
        assert install() == 0
        assert "added_step" in (tmp_path / "target/sglang/srt/runner.py").read_text()
        shutil.rmtree(tmp_path / "target")
        with (folder / NAME).open("ab") as wheel:
            wheel.write(b"more")
        assert install() != 0 and not (tmp_path / "target/sglang").exists()
