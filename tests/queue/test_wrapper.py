"""scripts/nox: what it hands to nox, and what it makes of a word of its own; and the paths behind
`--`, meant from the folder that the user stands in, whatever folder the tool runs in."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import fakes
import pytest
from test_cli import parsers

from patchqueue.commands import terminal

NOX = 'shift 2\nfor word in "$@"; do echo "<$word>"; done'


@pytest.fixture
def call(tmp_path):
    """Call the wrapper of a checkout whose environment is made and whose nox prints its words."""
    tools = tmp_path / "queue/.nox/tools"
    (tmp_path / "queue").mkdir()
    fakes.as_clone(tmp_path / "queue")
    fakes.program(tools / "bin/nox", NOX)
    fakes.program(tools / "bin/python", ":")

    def run(*words: str, folder: str = "queue") -> subprocess.CompletedProcess[str]:
        return fakes.run(tmp_path / folder / "scripts/nox", *words, cwd=tmp_path)

    return run


@pytest.mark.parametrize(
    ("words", "handed"),
    [
        (("apply",), ("-s", "apply", "--")),
        (("apply", "v0.5.9"), ("-s", "apply", "--", "v0.5.9")),
        (("apply", "--", "v0.5.9"), ("-s", "apply", "--", "v0.5.9")),
        (
            ("install", "--site-packages", "a folder", "--check"),
            ("-s", "install", "--", "--site-packages", "a folder", "--check"),
        ),
        (("refresh", "v0.5.9", "--add", "-e"), ("-s", "refresh", "--", "v0.5.9", "--add", "-e")),
        (("rebase", "0.5.24", "--from", ""), ("-s", "rebase", "--", "0.5.24", "--from", "")),
        (("-s", "apply", "test", "--", "v0.5.9"), ("-s", "apply", "test", "--", "v0.5.9")),
    ],
)
def test_what_nox_gets(call, words, handed):
    done = call(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"<{word}>" for word in handed]


def test_every_session_is_a_word(call):
    names = fakes.sessions() - {"linted"}
    assert len(names) > 17 and [name for name in names if call(name).returncode] == []


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        *((word, "") for word in ("v0.5.9", "nox", "", "app.y", "called_from", "*", "a b")),
        *(("aply", "apply"), ("chekc", "check"), ("instal", "install"), ("BUILD", "build")),
    ],
)
def test_a_word_that_is_no_session_is_refused_at_once(call, word, meant):
    near = f" (did you mean {meant}?)" if meant else ""
    for words in ((word,), ("-s", "apply", word)):
        done = call(*words)
        assert (done.returncode, done.stdout) == (2, "") and "`scripts/nox` lists" in done.stderr
        assert f"there is no command '{word}'{near}" in done.stderr


def test_a_clone_that_cannot_be_written_is_named(call, tmp_path):
    shutil.rmtree(tmp_path / "queue/.nox")
    (tmp_path / "queue/.nox").write_text("")
    done = call("apply")
    [said] = done.stderr.splitlines()
    assert done.returncode == 1 and said.startswith(f"{tmp_path}/queue/.nox cannot be written, ")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda queue: queue.rename(queue.with_name("moved")),
        lambda queue: fakes.program(queue / ".nox/tools/bin/python", "exit 1"),
        lambda queue: (queue / ".nox/tools/bin/python").unlink(),
    ],
    ids=["the clone lies elsewhere", "its packages are of another Python", "its Python is gone"],
)
def test_an_environment_that_does_not_run_here_is_made_anew(call, tmp_path, monkeypatch, spoil):
    """As when a container build shares the clone with its host, which has another Python."""
    spoil(tmp_path / "queue")
    (folder,) = [path for path in (tmp_path / "queue", tmp_path / "moved") if path.is_dir()]
    venv = 'mkdir -p "$4/bin"; cp "$0.venv" "$4/bin/python"; cp "$0.nox" "$4/bin/nox"'
    python = fakes.program(tmp_path / "python", f'if [ "$2" = venv ]; then {venv}; fi')
    fakes.program(tmp_path / "python.venv", ":")
    fakes.program(tmp_path / "python.nox", NOX)
    monkeypatch.setenv("PYTHON", str(python))
    for said in ("making the tools' environment", ""):
        done = fakes.run(folder / "scripts/nox", "-s", "lint")
        assert (done.returncode, done.stdout) == (0, "<-s>\n<lint>\n"), done.stderr
        assert done.stderr.startswith(said) and bool(done.stderr) == bool(said)


def test_an_environment_behind_a_link_stays(call, tmp_path):
    """As in a copy that shares its environment."""
    (tmp_path / "copy/.nox").mkdir(parents=True)
    for name in (".nox/tools", "scripts", "noxfile.py"):
        (tmp_path / "copy" / name).symlink_to(tmp_path / "queue" / name)
    done = call("-s", "lint", folder="copy")
    assert (done.returncode, done.stdout, done.stderr) == (0, "<-s>\n<lint>\n", "")


def test_without_an_index_the_wrapper_says_what_failed(call, tmp_path, monkeypatch):
    (tmp_path / "queue/.nox/tools/made-from.txt").unlink()
    fakes.program(tmp_path / "broken", "echo no network >&2; exit 1")
    venv = f'mkdir -p "$4/bin"; cp {tmp_path}/broken "$4/bin/python"'
    python = fakes.program(tmp_path / "python", f'if [ "$2" = venv ]; then {venv}; fi')
    monkeypatch.setenv("PYTHON", str(python))
    done = call("apply")
    assert (done.returncode, done.stdout) == (1, "")
    assert not (tmp_path / "queue/.nox/tools/made-from.txt").exists()
    first, *_, reason, last = done.stderr.splitlines()
    assert "about 100 MB" in first and reason == "no network"
    assert "check the network, the disk's free space and `pip config list`" in last


@pytest.mark.parametrize("words", [(), ("-l",), ("-h",), ("--help",), ("help",)])
def test_without_a_command_the_list_is_printed(call, tmp_path, words):
    """In two groups, users first, on 80 columns; no environment is made for it."""
    shutil.rmtree(tmp_path / "queue/.nox")
    done = call(*words)
    assert (done.returncode, done.stderr) == (0, "") and not (tmp_path / "queue/.nox").exists()
    lines = done.stdout.splitlines()
    assert len(lines) <= 40 and all(len(line) <= 80 for line in lines)
    listed = re.findall(r"(?m)^  ([a-z-]+) {2,}\S", done.stdout)
    assert listed[0] == "apply" and set(listed) == {*fakes.sessions(), "clean"} - {"linted"}
    places = [done.stdout.index(text) for text in ("  test ", "For maintainers", "  check ")]
    assert places == sorted(places)


def test_clean_says_what_goes_and_deletes_when_told_so(call, tmp_path, monkeypatch):
    monkeypatch.setenv("PATCHQUEUE_CACHE", str(tmp_path / "cache"))
    for name in ("queue/work", "queue/dist", "cache"):
        (tmp_path / name).mkdir()
    said = call("clean").stdout
    assert said.count(str(tmp_path)) == 4 and "scripts/nox clean --yes" in said
    assert (tmp_path / "cache").is_dir()
    assert call("clean", "--yess").returncode == 2
    assert call("clean", "--yes").returncode == 0
    left = sorted(path.name for path in (tmp_path / "queue").iterdir())
    assert left == ["lab", "noxfile.py", "scripts"] and not (tmp_path / "cache").exists()


def test_a_word_is_a_path_where_it_is_written_as_one(tmp_path, monkeypatch):
    """As the user typed it and can type it; a program's name is none."""
    monkeypatch.chdir(tmp_path)
    for text, meant in (("mails", "mails"), ("~/mine", str(tmp_path / "home/mine"))):
        assert terminal.path(text) == Path(meant)
    assert terminal.program("python3") == "python3"
    assert terminal.program("venv/bin/python") == str(tmp_path / "venv/bin/python")
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


def test_a_branch_in_the_checkout_that_the_user_stands_in(project, tmp_path):
    """By nox itself; test_pages.py has it by scripts/nox."""
    fakes.as_clone(project.root)
    fakes.author(tmp_path / "home")
    checkout = project.checkout(tmp_path / "sglang")
    nox = (sys.executable, "-m", "nox", "-f", "../project/noxfile.py")
    words = ("-s", "backport", "--", "--onto", ".", "release/graphs")
    done = fakes.run(*nox, *words, cwd=checkout)
    assert done.returncode == 0 and ".: release/graphs made" in done.stdout, done.stderr
    assert "release/graphs" in fakes.git(checkout, "branch")
