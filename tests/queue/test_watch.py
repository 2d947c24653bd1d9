"""New releases told of: the report, and the workflow that keeps an issue of it."""

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
TITLE = "sglang has releases that are not pinned"
GH = """#!/bin/bash
echo "$@" >> gh.log
case "$2" in
  list) [ ! -e gh.broken ] && cat gh.issues ;;
  edit) cp "$5" "issue.$3" ;;
  create) cp "$6" issue.new ;;
esac
"""


def test_each_new_release_is_reported(project, tool):
    """No prerelease is."""
    project.newer(NEXT, runner=fakes.numbered(40, "_other_"))
    for version in ("9.9.0", "9.9.3rc1", "10.0"):
        project.newer(version)
    code, out, _ = tool(project, "rebase", "--newer")
    assert code == 0
    named = [line.split()[1] for line in out.splitlines() if line.startswith("sglang ")]
    assert named == [f"{NEXT},", "10.0,"]
    counts = "1 as they are, 0 to refresh, 0 merged upstream, 1 in conflict"
    assert f"sglang {NEXT}, with the patches of {fakes.TAG}: {counts}\n" in out
    assert "steps/count-once-more: python/sglang/srt/runner.py: hunk 1 fits nowhere;" in out
    assert out.splitlines()[-1].startswith(f"next: `scripts/nox rebase {NEXT}`")


def test_without_a_newer_release_that_is_said(project, tool):
    code, out, _ = tool(project, "rebase", "--newer")
    assert (code, out) == (0, f"no release is newer than {fakes.TAG}, the newest pin\n")


# The workflow.


def script() -> str:
    """What its last step runs, for a shell as GitHub starts it."""
    return textwrap.dedent(WORKFLOW.partition("        run: |\n")[2])


def issues(folder: Path, *known: tuple[int, str]) -> subprocess.CompletedProcess[str]:
    """Run that step where these issues are known."""
    (folder / "report.txt").write_text("the report\n")
    (folder / "gh.log").write_text("")
    listed = [{"number": number, "title": title} for number, title in known]
    (folder / "gh.issues").write_text(json.dumps(listed))
    fakes.program(folder / "bin/gh", "").write_text(GH)
    environment = {"PATH": f"{folder}/bin:/usr/bin:/bin"}
    return fakes.run("bash", "-e", "-c", script(), cwd=folder, env=environment)


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
    report, _, issue = WORKFLOW.partition("\n  issue:\n")
    assert "permissions: {}\n" in report and "contents: read" in report
    assert ": write" not in report and issue.count(": write") == 1
    assert "issues: write" in issue and "checkout" not in issue and "scripts/" not in issue
