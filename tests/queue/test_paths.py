"""Paths that a user types behind `--`: meant from the folder that they stand in, whatever folder
the tool runs in."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import fakes
import pytest
from test_cli import parsers

from patchqueue.commands import terminal


@pytest.mark.parametrize(("text", "meant"), [("mails", "mails"), ("~/mine", "{home}/mine")])
def test_a_path_is_as_it_is_typed(tmp_path, text, meant):
    meant = meant.format(home=tmp_path / "home")
    assert (terminal.path(text), terminal.place(text)) == (Path(meant), meant)


@pytest.mark.parametrize(
    "address", ["https://example.org/sglang.git", "git@example.org:sglang.git", "host:sglang", ""]
)
def test_an_address_is_no_path(address):
    assert terminal.place(address) == address


def test_a_program_is_a_path_where_it_is_written_as_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert terminal.program("python3") == "python3"
    assert terminal.program("venv/bin/python") == str(tmp_path / "venv/bin/python")


def test_what_was_written_is_shown_as_the_user_can_type_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert terminal.shown(tmp_path / "dist/a.whl") == "dist/a.whl"
    assert terminal.shown(tmp_path.parent / "a.whl") == str(tmp_path.parent / "a.whl")


def test_every_option_that_takes_a_path_asks_where_the_user_stands():
    """--root alone is the process's own: it says where the queue is, and nox runs in it."""
    paths_of = [
        action
        for parser in parsers().values()
        for action in parser._actions
        if action.type is Path or re.fullmatch(r"PATH.*|DIR|FILE|FOLDER|REPO", str(action.metavar))
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
    assert ".: release/graphs made" in said
    assert "release/graphs" in fakes.git(checkout, "branch")
