"""New releases told of: the reports, and the workflow that keeps an issue for each."""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path

import fakes
import pytest
from fakes import ROOT

WORKFLOW = (ROOT / ".github/workflows/watch.yml").read_text(encoding="utf-8")
NEXT = "9.9.2"
GH = """#!/bin/bash
echo "$@" >> gh.log
case "$2" in
  list) [ ! -e gh.broken ] && cat gh.issues ;;
  edit) cp "$5" "issue.$3" ;;
  create) cp "$6" issue.new ;;
esac
"""


@pytest.fixture
def watch(project, tool):
    """Ask for reports in a folder: exit code, standard output and errors."""
    return lambda *out: tool(project, "rebase", "--newer", *out)


def test_each_new_release_gets_a_report(project, watch, tmp_path):
    """No prerelease does. It is the same one each time, so that the issue's history shows what
    changed, and no times."""
    project.newer(NEXT, runner=fakes.numbered(40, "_other_"))
    for version in ("9.9.0", "9.9.3rc1", "10.0"):
        project.newer(version)
    code, out, _ = watch(tmp_path / "reports")
    assert code == 0 and f"{tmp_path}/reports/{NEXT}.md: the report on {NEXT}" in out
    found = {path.name: path.read_text() for path in (tmp_path / "reports").iterdir()}
    assert found.keys() == {f"{NEXT}.md", "10.0.md"}
    text = found[f"{NEXT}.md"]
    assert text.startswith(
        f"sglang {NEXT}, with the patches of {fakes.TAG}: 1 as they are, 0 to refresh, 0 merged"
        " upstream, 1 in conflict.\n\n| patch | outcome | why |\n| --- | --- | --- |\n"
    )
    row = "| `steps/count-once-more` | conflict | python/sglang/srt/runner.py: hunk 1 fits nowhere;"
    assert row in text
    assert text.endswith(f"`scripts/nox pin {NEXT}`, then `scripts/nox rebase {NEXT}`.\n")
    assert watch(tmp_path / "again")[0] == 0
    assert (tmp_path / f"again/{NEXT}.md").read_text() == text


@pytest.mark.parametrize("new", [True, False])
def test_without_a_folder_or_a_release_no_report_is_written(project, watch, tmp_path, new):
    if new:
        project.newer(NEXT)
    code, out, _ = watch(*([] if new else [tmp_path / "reports"]))
    assert code == 0 and ("no release is newer" in out) is not new
    assert not (tmp_path / "reports").exists()


def test_a_release_that_cannot_be_tried_has_a_report_and_hides_no_other(project, watch, tmp_path):
    (project.wheels / f"sglang-{NEXT}-py3-none-any.whl").write_text("no archive")
    project.newer("10.0")
    code, out, err = watch(tmp_path / "reports")
    assert code == 1 and "sglang 10.0, with the patches" in out and NEXT in err
    text = (tmp_path / f"reports/{NEXT}.md").read_text()
    assert text.startswith(f"sglang {NEXT} could not be tried:\n\n- ")
    assert (tmp_path / "reports/10.0.md").exists()


# The workflow.


def script() -> str:
    """What its last step runs, for a shell as GitHub starts it."""
    return textwrap.dedent(WORKFLOW.partition("        run: |\n")[2])


def issues(folder: Path, *known: tuple[int, str]) -> subprocess.CompletedProcess[str]:
    """Run that step where these issues are known."""
    (folder / "reports").mkdir(exist_ok=True)
    (folder / "reports/9.9.2.md").write_text("the report")
    (folder / "gh.log").write_text("")
    listed = [{"number": number, "title": title} for number, title in known]
    (folder / "gh.issues").write_text(json.dumps(listed))
    fakes.program(folder / "bin/gh", "").write_text(GH)
    environment = {"PATH": f"{folder}/bin:/usr/bin:/bin"}
    return fakes.run("bash", "-e", "-c", script(), cwd=folder, env=environment)


@pytest.mark.parametrize(
    ("known", "issue"),
    [((4, "sglang 9.9.2 died"), "new"), ((7, "sglang 9.9.2 is not pinned"), "7")],
)
def test_a_release_has_one_issue_which_is_written_anew(tmp_path, known, issue):
    done = issues(tmp_path, (3, "sglang 9.9.20 is not pinned"), known)
    assert done.returncode == 0, done.stderr
    (written,) = tmp_path.glob("issue.*")
    assert (written.name, written.read_text()) == (f"issue.{issue}", "the report")
    created = "issue create --title sglang 9.9.2 is not pinned" in (tmp_path / "gh.log").read_text()
    assert created is (issue == "new")
    (tmp_path / "gh.broken").touch()
    assert issues(tmp_path).returncode != 0, "it could not be looked for"
    assert "create" not in (tmp_path / "gh.log").read_text()


def test_the_job_that_may_write_issues_runs_no_code_of_the_queue():
    report, _, issue = WORKFLOW.partition("\n  issue:\n")
    assert "permissions: {}\n" in report and "contents: read" in report
    assert ": write" not in report and issue.count(": write") == 1
    assert "issues: write" in issue and "checkout" not in issue and "scripts/" not in issue
