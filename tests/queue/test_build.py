"""Patched wheels: what is in them, that the same queue gives the same bytes, that pip takes
them."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
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
        return {name: wheel.read(name) for name in wheel.namelist()}


def test_the_wheel_holds_the_patched_tree_and_upstreams_rest(project):
    made = make(project)
    assert (made.path.name, made.version, made.origin) == (
        NAME,
        LOCAL,
        "sglang-9.9.1-py3-none-any.whl",
    )
    found = members(made.path)
    for name in ("sglang/srt/runner.py", "sglang/srt/cut.py", "sglang/srt/steps/__init__.py"):
        assert found[name] == (project.tree / "python" / name).read_bytes()
    assert b"added_step = 20" in found["sglang/srt/runner.py"]
    assert found["sglang/srt/kernels.so"] == fakes.RELEASE["sglang/srt/kernels.so"].encode()
    assert (
        found["sglang/_version.py"].decode()
        == f"__version__ = version = '{LOCAL}'\n__version_tuple__ = version_tuple = (9, 9, 1,"
        f" '{fakes.LABEL}')\n"
    )
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
        expected = (
            base64.urlsafe_b64encode(hashlib.sha256(found[name]).digest()).rstrip(b"=").decode()
        )
        assert (digest, int(size)) == (f"sha256={expected}", len(found[name]))


def test_two_builds_have_the_same_bytes(project):
    """Whenever they are made, and whenever the tree was: two builds in one second would agree by
    chance."""
    first = make(project, "one")
    for path in project.tree.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    second = make(project, "two")
    assert first.path.read_bytes() == second.path.read_bytes() and first.sha256 == second.sha256
    with zipfile.ZipFile(first.path) as wheel:
        assert {member.date_time for member in wheel.infolist()} == {(2030, 1, 2, 0, 0, 0)}, (
            "the release's day"
        )


def test_the_record_names_the_wheel_that_was_repacked(project):
    """Not the one that apply takes on this host, where a release has several."""
    (plain,) = project.pin.wheels
    entries = []
    for python in ("cp311", "cp399"):
        file = project.wheels / plain.file.replace(
            "py3-none-any", f"{python}-{python}-manylinux_2_34_x86_64"
        )
        shutil.copy(project.wheels / plain.file, file)
        with zipfile.ZipFile(file, "a") as wheel:
            wheel.comment = python.encode()
        entries.append(
            f'{{file = "{file.name}", sha256 = "{hashlib.sha256(file.read_bytes()).hexdigest()}"}}'
        )
    text = (project.root / pins.FILE).read_text()
    start = text.index("wheels = [")
    (project.root / pins.FILE).write_text(
        f"{text[:start]}wheels = [{', '.join(entries)}]\n{text[text.index(']', start) + 1 :]}"
    )
    pin = pins.load(project.root).default
    for wheel in pin.wheels:
        source.fetch(pin, str(project.wheels / wheel.file))
    made = build.build(
        project.root, pin, build.Target("3.99", "x86_64"), None, project.root / "dist"
    )
    named = json.loads(members(made.path)[f"{INFO}{build.PROVENANCE}"])["source"]
    assert (named["name"], named["sha256"]) == (
        made.origin,
        pin.wheels[1].sha256,
    ) and "cp399" in made.origin


def test_a_release_without_a_wheel_for_the_target_is_refused(project):
    project.edit(
        "upstream/pins.toml",
        "sglang-9.9.1-py3-none-any.whl",
        "sglang-9.9.1-cp310-cp310-manylinux_2_34_aarch64.whl",
    )
    with pytest.raises(Refused, match="no wheel for Python 3.12 on x86_64"):
        make(project)


def test_a_release_without_patches_is_refused(project):
    project.edit(
        "upstream/pins.toml",
        f'tag = "{fakes.TAG}"',
        f'tag = "{fakes.TAG}"\nno_patches = "has all of it"',
    )
    with pytest.raises(Refused, match="no patch is for it: has all of it"):
        make(project)


def test_files_that_are_not_the_recorded_tree_are_refused(project):
    report = project.apply()
    files = build.patched_files(report.path)
    with pytest.raises(Refused, match="is not the tree that its record names"):
        build.repack(
            {}, files | {"sglang/srt/runner.py": b"edited = 1\n"}, project.pin, report.record
        )


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
    project.release(
        "9.9.2",
        {
            name: content
            for name, content in fakes.release_of("9.9.2").items()
            if name != "sglang/_version.py"
        },
    )
    project.edit("series", "==9.9.1", ">=9.9")
    pin = pins.load(project.root).find("9.9.2")
    made = build.build(project.root, pin, ANY, str(project.wheels), project.root / "dist")
    assert members(made.path)["sglang/version.py"].decode() == (
        f'__version__ = "9.9.2+{fakes.LABEL}"\n'
    )


@pytest.mark.parametrize("text", ["", '__version__ = "9.9.2"\n', 'version = "9.9.1"\n'])
def test_a_plain_version_file_of_another_form_is_refused(text):
    with pytest.raises(Refused, match="bad-version-file"):
        build.stamp_module(build.PLAIN_VERSION_FILE, text, "9.9.1", LOCAL)


def test_a_version_file_of_another_form_is_refused():
    with pytest.raises(Refused, match="bad-version-file"):
        build.stamp_module(build.VERSION_FILE, "__version__ = '9.9.1'\n", "9.9.1", LOCAL)
