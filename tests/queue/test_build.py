"""Patched wheels: what is in them, that the same queue gives the same bytes, that pip takes
them."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import shutil
import zipfile

import fakes
import pytest

from patchqueue.outcome import Refused
from patchqueue.upstream import pins, source
from patchqueue.wheels import build

ANY = build.Target("3.12", "x86_64")
LOCAL = f"9.9.1+{fakes.LABEL}"
NAME = f"sglang-{LOCAL}-py3-none-any.whl"
INFO = f"sglang-{LOCAL}.dist-info/"


def make(project, out="dist", target=ANY, origin=None):
    return build.build(project.root, project.pin, target, origin, project.root / out)


def members(path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as wheel:
        assert wheel.testzip() is None
        dates = {member.date_time for member in wheel.infolist()}
        assert dates == {(2030, 1, 2, 0, 0, 0)}, "the release's day, whenever it is built"
        return {name: wheel.read(name) for name in wheel.namelist()}


def test_the_wheel_holds_the_patched_tree_and_upstreams_rest(project):
    made = make(project)
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
    assert json.loads(found[f"{INFO}{build.PROVENANCE}"])["tree"] == made.record["tree"]


def test_record_names_every_member_with_its_hash_and_size(project):
    found = members(make(project).path)
    rows = list(csv.reader(found[f"{INFO}RECORD"].decode().splitlines()))
    assert sorted(row[0] for row in rows) == sorted(found)
    for name, digest, size in rows:
        if name == f"{INFO}RECORD":
            assert digest == size == ""
            continue
        expected = base64.urlsafe_b64encode(hashlib.sha256(found[name]).digest()).rstrip(b"=")
        assert (digest, int(size)) == (f"sha256={expected.decode()}", len(found[name]))


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
    pin = pins.load(project.root).default
    for wheel in pin.wheels:
        source.fetch(pin, str(project.wheels / wheel.file))
    target = build.Target("3.99", "x86_64")
    made = build.build(project.root, pin, target, None, project.root / "dist")
    named = json.loads(members(made.path)[f"{INFO}{build.PROVENANCE}"])["source"]
    assert (named["name"], named["sha256"]) == (made.origin, pin.wheels[1].sha256)
    assert "cp399" in made.origin


def test_a_release_without_a_wheel_for_the_target_is_refused(project):
    project.edit("upstream/pins.toml", "py3-none-any", "cp310-cp310-manylinux_2_34_x")
    assert fakes.refused(make, project)[0] == "no-wheel"


def test_files_that_are_not_the_recorded_tree_are_refused(project):
    report = project.apply()
    files = build.patched_files(report.path) | {"sglang/srt/runner.py": b"edited = 1\n"}
    with pytest.raises(Refused, match="is not the tree that its record names"):
        build.repack({}, files, project.pin, report.record)


@pytest.mark.parametrize(
    ("file", "target", "fits"),
    [
        ("sglang-0.5.9-py3-none-any.whl", ("3.12", "x86_64"), True),
        ("sglang-0.5.11-cp312-cp312-manylinux_2_34_x86_64.whl", ("3.12", "x86_64"), True),
        ("sglang-0.5.11-cp312-cp312-manylinux_2_34_x86_64.whl", ("3.11", "x86_64"), False),
        ("sglang-0.5.11-cp312-cp312-manylinux_2_34_aarch64.whl", ("3.12", "x86_64"), False),
    ],
)
def test_which_wheels_a_target_takes(file, target, fits):
    assert build.Target(*target).takes(pins.Wheel(file, "0" * 64)) is fits


@pytest.mark.parametrize(
    "text",
    ["Name: sglang\n\nVersion: 9.9.1\n", "Version: 9.9.1\nVersion: 9.9.1\n", "Version: 9.9.2\n"],
)
def test_metadata_without_one_right_version_is_refused(text):
    with pytest.raises(Refused, match="bad-metadata"):
        build.stamp_metadata(text, "9.9.1", LOCAL)


def test_a_release_without_a_generated_version_file_says_its_local_version_too(project):
    """Up to 0.5.6 the version stands in version.py, which is part of the tree."""
    files = fakes.release_of("9.9.2")
    del files["sglang/_version.py"]
    project.release("9.9.2", files)
    project.edit("series", "==9.9.1", ">=9.9")
    pin = pins.load(project.root).find("9.9.2")
    made = build.build(project.root, pin, ANY, str(project.wheels), project.root / "dist")
    found = members(made.path)["sglang/version.py"].decode()
    assert found == f'__version__ = "9.9.2+{fakes.LABEL}"\n'


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (build.PLAIN_VERSION_FILE, ""),
        (build.PLAIN_VERSION_FILE, '__version__ = "9.9.2"\n'),
        (build.PLAIN_VERSION_FILE, 'version = "9.9.1"\n'),
        (build.VERSION_FILE, "__version__ = '9.9.1'\n"),
    ],
)
def test_a_version_file_of_another_form_is_refused(file, text):
    assert fakes.refused(build.stamp_module, file, text, "9.9.1", LOCAL)[0] == "bad-version-file"
