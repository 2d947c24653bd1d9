"""The queue's name in upstream's list of plugins: in a wheel, in place, and gone again."""

from __future__ import annotations

import csv
import importlib.metadata
import zipfile
from pathlib import Path

import fakes
import pytest
from fakes import ROOT

from patchqueue.files import tree as trees
from patchqueue.wheels import build, notice

BOTH = {notice.PLUGINS, notice.MODULE}
SCRIPTS = "[console_scripts]\nsglang = sglang.cli.main:main\n"
LINE = f"{notice.NAME} = {notice.CALLED}\n"
INFO = f"sglang-9.9.1+{fakes.LABEL}.dist-info/"


def named(folder: Path) -> list[str]:
    """What Python's own reader finds, as upstream asks it: those of the group."""
    return [
        f"{one.name} -> {one.value}"
        for distribution in importlib.metadata.distributions(name="sglang", path=[str(folder)])
        for one in distribution.entry_points.select(group=notice.GROUP)
    ]


@pytest.mark.parametrize(
    "before",
    [
        None,
        SCRIPTS,
        SCRIPTS.rstrip("\n"),
        SCRIPTS + "\n",
        f"{SCRIPTS}\n[{notice.GROUP}]\nother = other:main\n",
        f"[{notice.GROUP}]\nother = other:main\n\n{SCRIPTS}",
    ],
)
def test_the_line_is_added_and_the_rest_stays(before: str | None, tmp_path: Path) -> None:
    made = notice.entry_points(None if before is None else before.encode(), BOTH)
    assert made is not None
    info = tmp_path / "sglang-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: sglang\nVersion: 1\n")
    (info / "entry_points.txt").write_bytes(made)
    assert f"{notice.NAME} -> {notice.CALLED}" in named(tmp_path)
    for line in (before or "").splitlines():
        assert line in made.decode().splitlines()
    assert made.decode().count(f"[{notice.GROUP}]") == 1
    assert notice.entry_points(made, BOTH) is None  # it is there


@pytest.mark.parametrize("files", [set(), {notice.PLUGINS}, {notice.MODULE}])
def test_without_a_list_or_what_it_is_to_call_nothing_is_named(files: set[str]) -> None:
    """Up to 0.5.10 a release has no such list."""
    assert notice.entry_points(SCRIPTS.encode(), files) is None


def test_what_is_named_is_there() -> None:
    module, _, function = notice.CALLED.partition(":")
    file = ROOT / "overlay/python" / f"{module.replace('.', '/')}.py"
    assert file == ROOT / "overlay/python" / notice.MODULE
    assert f"\ndef {function}() -> None:\n" in file.read_text(encoding="utf-8")


def wheel(project: fakes.Project, extra: dict[str, bytes]) -> dict[str, bytes]:
    """The members of the fake release's wheel, with these files of the package more."""
    report = project.apply()
    files = build.patched_files(report.path) | extra
    listing = {f"python/{name}": trees.sha256(content) for name, content in files.items()}
    tree = report.record["tree"] | {"after": trees.hash_python(listing)}
    upstream = {name: content.encode() for name, content in fakes.RELEASE.items()}
    upstream["sglang-9.9.1.dist-info/entry_points.txt"] = SCRIPTS.encode()
    return build.repack(upstream, files, project.pin, report.record | {"tree": tree})


def test_a_wheel_names_it_and_its_record_is_right(project: fakes.Project, tmp_path: Path) -> None:
    made = wheel(project, dict.fromkeys(BOTH, b""))
    found = made[f"{INFO}entry_points.txt"]
    assert found == f"{SCRIPTS}\n[{notice.GROUP}]\n{LINE}".encode()
    rows = {row[0]: row for row in csv.reader(made[f"{INFO}RECORD"].decode().splitlines())}
    name = f"{INFO}entry_points.txt"
    assert rows[name] == build.record_row(name, found)
    path = tmp_path / "made.whl"
    fakes.write_wheel(path, {name: content.decode() for name, content in made.items()})
    zipfile.ZipFile(path).extractall(tmp_path / "site")
    assert named(tmp_path / "site") == [f"{notice.NAME} -> {notice.CALLED}"]


def test_a_wheel_of_a_release_without_a_list_keeps_its_entry_points(
    project: fakes.Project,
) -> None:
    assert wheel(project, {notice.MODULE: b""})[f"{INFO}entry_points.txt"] == SCRIPTS.encode()
