"""Paths that a user types behind `--`: meant from the folder that they stand in, whatever folder
the tool runs in."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import fakes
import pytest
from test_help import parsers

from patchqueue.commands import terminal


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
    assert str(terminal.path("../sglang")) == terminal.place("../sglang") == "../sglang"
    assert terminal.shown(Path("dist/a.whl")) == "dist/a.whl"


@pytest.mark.parametrize(
    "address", ["https://example.org/sglang.git", "git@example.org:sglang.git", "host:sglang", ""]
)
def test_an_address_is_no_path(elsewhere, address):
    assert terminal.place(address) == address
    if address:
        (elsewhere / address).mkdir(parents=True)
        assert terminal.place(address) == str(elsewhere / address), "as git sees it"


@pytest.mark.parametrize(
    ("kind", "text", "meant"),
    [
        (terminal.release, "0.5.24", None),
        (terminal.release, "packages", "sglang/packages"),
        (terminal.release, "sglang-0.5.24.whl", "sglang/sglang-0.5.24.whl"),
        (terminal.release, "../nowhere", "nowhere"),
        (terminal.program, "python3", None),
        (terminal.program, "../venv/bin/python", "venv/bin/python"),
        (lambda text: terminal.shown(Path(text)), "dist/a.whl", "queue/dist/a.whl"),
    ],
)
def test_words_that_may_be_paths(elsewhere, tmp_path, kind, text, meant):
    """A release may be one, a program where it is written as one, and what the tool wrote is shown
    where the user finds it."""
    assert kind(text) == (str(tmp_path / meant) if meant else text)
    assert terminal.shown(tmp_path / "a.whl") == str(tmp_path / "a.whl")


def test_every_option_that_takes_a_path_asks_where_the_user_stands():
    """--root alone is the process's own: it says where the queue is, and nox runs in it."""
    paths_of = [
        action
        for parser in parsers().values()
        for action in parser._actions
        if action.type is Path
        or re.fullmatch(r"PATH.*|DIR|FILE|FOLDER|REPO|RELEASE\|PATH", str(action.metavar))
    ]
    own = {getattr(action.type, "__module__", "") for action in paths_of}
    assert len(paths_of) > 10 and own == {terminal.__name__}


# The whole way: nox, or scripts/nox, called in another folder.


NOX = (sys.executable, "-m", "nox", "-f", "../project/noxfile.py")
SCRIPT = ("../project/scripts/nox",)


@pytest.fixture
def nox(request, project: fakes.Project):
    """Run one session from another folder; its standard output."""
    fakes.as_clone(project.root)
    command = getattr(request, "param", SCRIPT)

    def call(folder: Path, session: str, *words: str) -> str:
        done = fakes.run(*command, "-s", session, "--", *words, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return call


@pytest.mark.parametrize("nox", [NOX, SCRIPT], indirect=True, ids=["nox -f", "scripts/nox"])
def test_a_branch_in_the_checkout_that_the_user_stands_in(nox, project, tmp_path):
    fakes.author(tmp_path / "home")
    checkout = project.checkout(tmp_path / "sglang")
    said = nox(checkout, "backport", "--onto", ".", "release/graphs")
    assert f"{checkout}: release/graphs made" in said
    assert "release/graphs" in fakes.git(checkout, "branch")
