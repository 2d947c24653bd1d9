"""Paths that a user types behind `--`: meant from the folder that they stand in, whatever folder
the tool runs in."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fakes
import pytest

from evidence import commands as proving
from patchqueue.commands import cli, terminal


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tool runs in the queue's folder, and was called from a checkout beside it."""
    for name in ("queue", "sglang/packages"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "queue")
    monkeypatch.setenv(terminal.CALLED_FROM, str(tmp_path / "sglang"))
    return tmp_path / "sglang"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (".", "sglang"),
        ("mails", "sglang/mails"),
        ("../queue/a.json", "queue/a.json"),
        ("~/mine", "home/mine"),
        ("packages/", "sglang/packages"),
    ],
)
def test_a_path_is_meant_from_where_the_user_stands(elsewhere, tmp_path, text, meant):
    assert terminal.path(text) == tmp_path / meant
    assert terminal.place(text) == str(tmp_path / meant)


def test_what_lies_behind_a_link_is_not_taken_for_its_neighbour(elsewhere, tmp_path):
    (tmp_path / "far/away").mkdir(parents=True)
    (elsewhere / "link").symlink_to(tmp_path / "far/away")
    (tmp_path / "far/wheel.whl").write_text("")
    assert terminal.path("link/../wheel.whl").is_file()


@pytest.mark.parametrize("told", [True, False])
def test_who_stands_in_the_tools_folder_sees_what_they_typed(
    elsewhere, tmp_path, monkeypatch, told
):
    if told:
        monkeypatch.setenv(terminal.CALLED_FROM, str(tmp_path / "queue"))
    else:
        monkeypatch.delenv(terminal.CALLED_FROM)
    assert (
        str(terminal.path("../sglang")),
        terminal.place("../sglang"),
        terminal.shown(Path("dist/a.whl")),
    ) == ("../sglang", "../sglang", "dist/a.whl")


@pytest.mark.parametrize(
    "address", ["https://example.org/sglang.git", "git@example.org:sglang.git", "host:sglang", ""]
)
def test_an_address_is_no_path(elsewhere, address):
    assert terminal.place(address) == address
    if address:
        (elsewhere / address).mkdir(parents=True)
        assert terminal.place(address) == str(elsewhere / address), "as git sees it"


def test_a_release_may_be_a_path_and_a_version_is_none(elsewhere):
    assert terminal.release("0.5.24") == "0.5.24"
    assert terminal.release("packages") == str(elsewhere / "packages")
    assert terminal.release("sglang-0.5.24.whl") == str(elsewhere / "sglang-0.5.24.whl")
    assert terminal.release("../nowhere") == str(elsewhere.parent / "nowhere")


def test_a_program_is_a_path_only_where_it_is_written_as_one(elsewhere):
    assert terminal.program("python3") == "python3"
    assert terminal.program("../venv/bin/python") == str(elsewhere.parent / "venv/bin/python")


def test_what_the_tool_wrote_is_shown_where_the_user_finds_it(elsewhere, tmp_path):
    assert terminal.shown(Path("dist/a.whl")) == str(tmp_path / "queue/dist/a.whl")
    assert terminal.shown(tmp_path / "a.whl") == str(tmp_path / "a.whl")


def options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        for command in (
            action.choices.values() if isinstance(action, argparse._SubParsersAction) else ()
        ):
            yield from options(command)


def test_every_option_that_takes_a_path_asks_where_the_user_stands():
    """Only --root is the process's own: it says where the queue is, and nox runs in it."""
    paths_of = [
        action
        for line in (cli, proving)
        for action in options(line._parser())
        if action.type is Path
        or re.fullmatch(r"PATH.*|DIR|FILE|FOLDER|REPO|RELEASE", str(action.metavar))
    ]
    own = [
        action.option_strings
        for action in paths_of
        if getattr(action.type, "__module__", "") != terminal.__name__
    ]
    assert len(paths_of) > 10 and own == [["--root"]] * 2


# The whole way: nox, or scripts/nox, called in another folder.


@pytest.fixture(params=["nox -f", "scripts/nox"])
def nox(request, project: fakes.Project):
    """Run one session from another folder; its standard output."""
    fakes.as_clone(project.root)
    command = (
        [sys.executable, "-m", "nox", "-f", "../project/noxfile.py"]
        if request.param == "nox -f"
        else ["../project/scripts/nox"]
    )

    def call(folder: Path, session: str, *words: str) -> str:
        done = subprocess.run(
            [*command, "-s", session, "--", *words], cwd=folder, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return call


def test_a_branch_in_the_checkout_that_the_user_stands_in(nox, project, tmp_path):
    (tmp_path / "home/.gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    checkout = project.checkout(tmp_path / "sglang")
    said = nox(checkout, "backport", "--onto", ".", "release/graphs")
    assert f"{checkout}: release/graphs made" in said
    assert "release/graphs" in fakes.git(checkout, "branch")


def test_the_packages_beside_the_user_are_patched(nox, project, tmp_path):
    site = fakes.install(tmp_path / "packages")
    nox(tmp_path / "home", "install", "--site-packages", "../packages")
    assert (site / "sglang.patch-queue").is_dir()
    nox(site, "uninstall", "--site-packages", ".")
    assert not (site / "sglang.patch-queue").exists()


def test_a_wheel_is_taken_from_beside_the_user_and_named_where_it_lies(nox, project, tmp_path):
    said = nox(tmp_path / "wheels", "build", "--from", ".")
    assert (
        f"pip install --force-reinstall --no-deps {project.root}/dist/sglang-9.9.1+{fakes.LABEL}"
        in said
    )
