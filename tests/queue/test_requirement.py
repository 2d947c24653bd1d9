"""`python -m sglang.srt.prefill_graph --require TREE`, of the overlay, with the standard library
alone: what runs here, and what each of it said that it runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import fakes
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "overlay/python/sglang/srt/prefill_graph"
TREE, OTHER = "sha256:" + "0123456789ab" + "c" * 52, "sha256:" + "f" * 64
SLEEP = "/bin/sleep"


@pytest.fixture
def start(tmp_path: Path):
    """start(title, tree): the pid of a process of that name, with a record of that tree or none."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(title: str, tree: str | None = None, started: int | None = None) -> int:
        running.append(subprocess.Popen([title, "600"], executable=SLEEP))
        pid = running[-1].pid
        if tree is not None:
            place = tmp_path / f"sglang-prefill-graph-{os.getuid()}"
            place.mkdir(mode=0o700, exist_ok=True)
            values = {"pid": pid, "started": started or started_at(pid), "tree": tree}
            (place / f"{pid}.json").write_text(json.dumps(values), encoding="utf-8")
        return pid

    yield begin
    for process in running:
        process.kill()
        process.wait()


def started_at(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return int(stat.rpartition(")")[2].split()[19])


@pytest.fixture
def ask(tmp_path: Path):
    """ask(*words): the command's answer about the processes that this test started."""

    def run(
        *words: str, below: int | None = None, **known: str
    ) -> subprocess.CompletedProcess[str]:
        # -I and -S leave an interpreter with the standard library alone
        command = [sys.executable, "-I", "-S", str(FOLDER), "--require", *words]
        only = ["--pid", str(below or os.getpid())]
        known = {"XDG_RUNTIME_DIR": str(tmp_path)} | known
        return fakes.run(*command, *only, env=known)

    return run


def answer(done: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    assert not done.stderr, done.stderr
    [sentence] = done.stdout.splitlines()
    return done.returncode, sentence


@pytest.mark.parametrize("word", [TREE, TREE[7:], TREE[:19], TREE[:19] + "…", TREE[7:19].upper()])
def test_every_scheduler_runs_it(start, ask, word):
    """In each form in which a log or --verify prints a tree."""
    start("sglang::scheduler_TP0", TREE)
    start("sglang::scheduler_TP1", TREE)
    start("sglang::detokenizer")
    assert answer(ask(word)) == (0, f"All 2 schedulers run {TREE}.")


FAKE_START = 1  # of an earlier process of the same pid
FIRST, SECOND = "sglang::scheduler_TP0", "sglang::scheduler_TP1"


@pytest.mark.parametrize(
    ("running", "code", "said"),
    [
        ([(FIRST, TREE), (SECOND, OTHER), (SECOND,)], 1, f"runs {OTHER}, not {TREE[:19]}."),
        # an unpatched release writes no record
        ([(FIRST, TREE), (SECOND,)], 3, "left no record: it runs an unpatched sglang, or its"),
        ([(FIRST, TREE, FAKE_START)], 3, "left no record: "),
        ([("sglang::detokenizer",)], 4, "No scheduler of an sglang server runs here."),
    ],
)
def test_what_a_server_without_the_tree_is_told(start, ask, running, code, said):
    for process in running:
        start(*process)
    found, sentence = answer(ask(TREE[:19]))
    assert found == code and said in sentence


def test_only_what_descends_from_a_process_is_asked(start, ask):
    good, bad = start("sglang::scheduler", TREE), start("sglang::scheduler", OTHER)
    assert answer(ask(TREE, below=good))[0] == 0
    assert answer(ask(TREE, below=bad))[0] == 1


def test_two_trees_of_one_beginning_are_told_apart(start, ask):
    start("sglang::scheduler_TP0", TREE)
    start("sglang::scheduler_TP1", TREE[:19] + "d" * 52)
    said = f"Two trees begin with {TREE[:19]}: give more of its digits."
    assert answer(ask(TREE[:19])) == (1, said)


@pytest.mark.parametrize("word", ["abc", "sha256:0123", "v0.5.9", TREE + "0", ""])
def test_a_word_that_is_no_tree_is_refused(ask, word):
    done = ask(word)
    assert done.returncode == 2
    assert f"argument --require: {word!r} is not a tree" in done.stderr, done.stderr


def test_without_a_folder_of_records_nobody_answers(start, ask, tmp_path):
    """Others may write to a shared folder: what lies in one is no answer."""
    start("sglang::scheduler", TREE)
    (tmp_path / f"sglang-prefill-graph-{os.getuid()}").chmod(0o777)
    assert answer(ask(TREE))[0] == 3


def test_the_record_is_found_without_the_servers_variables(start, ask, tmp_path):
    """A probe's TMPDIR is looked at too, where it has no XDG_RUNTIME_DIR."""
    start("sglang::scheduler", TREE)
    done = ask(TREE, XDG_RUNTIME_DIR="", TMPDIR=str(tmp_path))
    assert answer(done)[0] == 0
