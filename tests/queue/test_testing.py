"""The tests themselves: what `test` runs for which words, and how they are spread over processors;
and the workflows, one of which keeps an issue of new releases."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import fakes
import pytest
from fakes import ROOT, TAG

from patchqueue import commands as cli
from patchqueue.environments import testing
from patchqueue.upstream import pins


@pytest.fixture
def ran(project, monkeypatch, tool):
    """Run `test` where tests do nothing: exit code, output, and what would have been tested."""
    project.write("upstream/locks/9.9.1.txt", "")
    done = []
    monkeypatch.setattr(testing, "build", lambda *_: None)
    monkeypatch.setattr(testing, "test_tool", lambda *_: done.append("tool") or 0)

    def test_release(_, pin, *words):
        done.append(pin.tag)
        return 0, False, ""

    monkeypatch.setattr(testing, "test_release", test_release)

    def call(*words: str) -> tuple[int, str, list[str]]:
        code, out, _ = tool(project, "test", *words)
        return code, out, sorted(done)

    return call


@pytest.mark.parametrize(
    ("words", "tested"),
    [
        ((), ["tool", TAG]),
        ((TAG,), [TAG]),
        (("-k", "steps"), [TAG]),
        (("--tool",), ["tool"]),
        (("--tool", "-k", "steps"), ["tool"]),
        (("--tool", TAG), ["tool", TAG]),
    ],
)
def test_a_named_release_is_tested_alone(ran, words, tested):
    code, said, done = ran(*words)
    assert code == 0 and done == tested
    first = said.splitlines()[0].removeprefix("to be tested: ")
    assert ("the tool" in first, TAG in first) == ("tool" in done, TAG in done)
    assert ("0 problems" in said) == ("tool" in done), "check is a part of testing the tool"


def test_a_tool_that_fails_is_told_and_on_a_queue_with_problems_nothing_is_tested(
    ran, project, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(testing, "test_tool", lambda *_: 3)
        assert ran("--tool")[0] == 1
    project.edit("patches/steps/count-once-more.patch", " step_18 = 18", " step_18 = other")
    assert ran()[::2] == (1, [])


def test_the_tool_is_tested_with_byte_code(project, tmp_path, monkeypatch):
    line = f'echo "$PYTHONDONTWRITEBYTECODE$@" >{tmp_path}/calls'
    monkeypatch.setattr(testing.sys, "executable", str(fakes.program(tmp_path / "python", line)))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert testing.test_tool(project.root, ["-k", "steps"]) == 0
    assert (tmp_path / "calls").read_text().endswith(" -k steps\n")


@pytest.fixture
def pythons(project, monkeypatch):
    """pythons(line): the Python of every release does this in place of its tests."""
    project.write("upstream/locks/9.9.1.txt", "")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)

    def make(line: str) -> fakes.Project:
        own = testing.Environment(fakes.program(project.root / "python", line), {})
        monkeypatch.setattr(testing, "build", lambda *_: own)
        return project

    return make


def test_a_release_is_tested_with_one_thread_in_each_process(pythons, capfd):
    project = pythons('echo "$@" "threads=$OMP_NUM_THREADS"; exit 3')
    assert testing.test_release(project.root, project.pin, ["-k", "steps"], 1) == (3, False, "")
    assert capfd.readouterr().out == f"-m pytest {project.root}/tests/revision -k steps threads=1\n"


def test_a_release_that_fails_is_named_and_the_next_is_tested(pythons, capfd):
    project = pythons("echo tested; [ $PATCHQUEUE_REVISION = 9.9.3 ]")
    project.release("9.9.3")
    project.place()
    project.write("upstream/locks/9.9.3.txt", "")
    assert cli.main(["--root", str(project.root), "test", TAG, "v9.9.3"]) == 1
    *_, first, one, second, other, failed, passed = capfd.readouterr().out.splitlines()
    assert (first.split()[0], one, second.split()[0], other) == (TAG, "tested", "v9.9.3", "tested")
    assert (failed, passed) == (f"{TAG}: failed (pytest exit code 1) ", "v9.9.3: passed ")


def test_releases_are_tested_beside_the_tool_and_shown_behind_it(pythons, monkeypatch, capfd):
    project, begun = pythons("echo tested; exit 1"), threading.Event()
    built = testing.build
    monkeypatch.setattr(testing, "build", lambda *_: begun.set() or built())
    monkeypatch.setattr(testing, "test_tool", lambda *_: print("the tool's") or not begun.wait(20))
    assert cli.main(["--root", str(project.root), "test", "--tool", TAG]) == 1
    *_, tools, _, own, failed = capfd.readouterr().out.splitlines()
    assert (tools, own, failed.split()[1]) == ("the tool's", "tested", "failed")


def spread_run(folder: Path, *files: str) -> str:
    """What pytest prints of tests/revision with these files in place of its own."""
    suite, beside = folder / "tests", folder / "beside"
    shutil.copytree(ROOT / "tests/revision/host", suite / "host")
    shutil.copy(ROOT / "tests/revision/conftest.py", suite)
    for number, text in enumerate(files):
        (suite / f"test_{number}.py").write_text(f"import os, pytest\n{text}")
    fakes.write(folder / "tree/python/sglang/__init__.py")
    beside.mkdir()
    words = testing.spread(beside, 2)
    variables = {
        **os.environ,
        "PYTHONPATH": f"{folder / 'tree/python'}{os.pathsep}{beside}",
        "PATCHQUEUE_TREE": str(folder / "tree"),
        "PATCHQUEUE_REVISION": "9.9.1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # a release's environment has no xdist
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", suite, *words]
    done = fakes.run(*command, env=variables, cwd=folder)
    return done.stdout + done.stderr


PIDS = "open(os.environ['PATCHQUEUE_TREE'] + '/pids', 'a')"
NOTED = f"def test_one(): {PIDS}.write(f'{{os.getpid()}}\\n')\n"


def test_files_are_spread_and_what_is_for_other_releases_is_still_listed(tmp_path):
    later = "@pytest.mark.revision('>=10')\ndef test_later(): pass\n"
    said = spread_run(tmp_path, NOTED + later, NOTED)
    assert "2 passed" in said and len(set((tmp_path / "tree/pids").read_text().split())) == 2
    assert re.search(r"SKIPPED \[1\] \S*test_0.py:\d+: for >=10, not for 9.9.1\n", said)


OF_EACH = """
@pytest.mark.patch("steps/kept")
def test_kept(): pass
@pytest.mark.patch("steps/left")
def test_left(): assert not "passed"
def test_rest(): pass
"""


@pytest.mark.parametrize(
    ("queue", "said"),
    [("", "2 passed, 2 skipped"), ("sha256:1", "2 failed, 2 passed")],
    ids=["part", "whole"],
)
def test_part_of_the_queue_is_asked_for_what_it_has(tmp_path, queue, said):
    """One file says which of its tests are of a patch that the tree lacks, the other does not."""
    fakes.write(tmp_path / "series", "steps/kept@9.patch # >=9\nsteps/left.patch # >=9\n")
    for name, tests in (("kept", "test_0.py"), ("left", "test_0.py, tests/revision/test_1.py")):
        fakes.write(tmp_path / f"patches/steps/{name}.patch", f"Test: tests/revision/{tests}\n")
    made = {"queue": queue, "patches": [{"name": "steps/kept@9.patch"}]}
    record = tmp_path / "run/tree/python/sglang/srt/prefill_graph/provenance.json"
    fakes.write(record, json.dumps(made))
    found = spread_run(tmp_path / "run", OF_EACH, 'def test_left(): assert not "passed"')
    assert said in found
    assert ("of steps/left, which this tree lacks" in found) is (not queue)


def test_the_workflow_tests_every_release_that_has_an_environment():
    if not shutil.which("jq"):
        pytest.skip("jq is not installed")
    workflow = (ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8")
    (line,) = re.findall(r"(?m)^ *matrix=\$\((.*)\)$", workflow)
    done = fakes.run("bash", "-c", line, cwd=ROOT)
    tested = [row["revision"] for row in json.loads(done.stdout or "{}").get("include", [])]
    pinned = [pin for pin in pins.load(ROOT).all if testing.has_environment(ROOT, pin)]
    assert sorted(tested) == sorted(pin.tag for pin in pinned) and len(tested) > 10, done.stderr


WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_runs_what_was_read(file):
    """An action is the commit that was looked at; and no value is pasted into a script."""
    text = file.read_text(encoding="utf-8")
    used = re.findall(r"uses: *(.*)", text)
    assert used and all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", each) for each in used)
    scripts = re.findall(r"(?m)^( *)(?:- )?run: (?:\|\n((?:\1 .*\n|\n)+)|(.*))", text)
    assert scripts and not any("${{" in part for script in scripts for part in script)


WATCH = (ROOT / ".github/workflows/watch.yml").read_text(encoding="utf-8")
TITLE = "sglang has releases that are not pinned"
GH = """#!/bin/bash
echo "$@" >> gh.log
case "$2" in
  list) [ ! -e gh.broken ] && cat gh.issues ;;
  edit) cp "$5" "issue.$3" ;;
  create) cp "$6" issue.new ;;
esac
"""


def issues(folder: Path, *known: tuple[int, str]) -> subprocess.CompletedProcess[str]:
    """Run the last step where these issues are known, in a shell as GitHub starts it."""
    script = textwrap.dedent(WATCH.partition("        run: |\n")[2])
    (folder / "report.txt").write_text("the report\n")
    (folder / "gh.log").write_text("")
    listed = [{"number": number, "title": title} for number, title in known]
    (folder / "gh.issues").write_text(json.dumps(listed))
    fakes.program(folder / "bin/gh", "").write_text(GH)
    environment = {"PATH": f"{folder}/bin:/usr/bin:/bin"}
    return fakes.run("bash", "-e", "-c", script, cwd=folder, env=environment)


@pytest.mark.parametrize(("known", "issue"), [((4, "sglang has died"), "new"), ((7, TITLE), "7")])
def test_there_is_one_issue_which_is_written_anew(tmp_path, known, issue):
    done = issues(tmp_path, (3, f"{TITLE} yet"), known)
    assert done.returncode == 0, done.stderr
    (written,) = tmp_path.glob("issue.*")
    text = "```\nthe report\n```\n"
    assert (written.name, written.read_text()) == (f"issue.{issue}", text)
    created = f"issue create --title {TITLE}" in (tmp_path / "gh.log").read_text()
    assert created is (issue == "new")
    (tmp_path / "gh.broken").touch()
    assert issues(tmp_path).returncode != 0, "it could not be looked for"
    assert "create" not in (tmp_path / "gh.log").read_text()


def test_the_job_that_may_write_issues_runs_no_code_of_the_queue():
    report, _, issue = WATCH.partition("\n  issue:\n")
    assert "permissions: {}\n" in report and "contents: read" in report
    assert ": write" not in report and issue.count(": write") == 1
    assert "issues: write" in issue and "checkout" not in issue and "scripts/" not in issue
