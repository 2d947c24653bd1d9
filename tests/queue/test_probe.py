"""Merged upstream: the four ways in which a patch can stand to a pristine release; check says them
for every pin."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from fakes import COUNT, CUT, RELEASE, RUNNER, patch_text

from patchqueue.applying.check import check
from patchqueue.applying.selection import probe
from patchqueue.outcome import Outcome
from patchqueue.queue import series
from patchqueue.upstream import pins

FIRST = f"patches/{COUNT}"


def first(project):
    queue, _ = series.read(project.root)
    origin = {RUNNER: (project.tree.parent.parent / "release").read_bytes()}
    return probe(queue, project.pin, origin.get)[0]


@pytest.mark.parametrize(
    "guard, merged, gap, outcome, problem",
    [
        (">=9.9", False, None, Outcome.APPLIED, None),
        (">=9.9", True, None, Outcome.MERGED_UPSTREAM, "merged upstream"),
        ("<9.9", True, None, Outcome.MERGED_UPSTREAM, None),
        ("<9.9", False, None, Outcome.NOT_SELECTED, "unexplained-gap"),
        ("<9.9", False, ">=9.9: does it in another way", Outcome.NOT_SELECTED, None),
        ("<9.9", False, ">=9.10: does it in another way", Outcome.NOT_SELECTED, "unexplained-gap"),
    ],
)
def test_findings(project, guard, merged, gap, outcome, problem):
    project.guards(guard, "==9.9.1")
    project.write(FIRST, patch_text(Overlay="python/sglang/srt/steps/", Gap=gap))
    project.write("release", "if x:\n    added_step = 20\n" if merged else "nothing of the kind\n")
    found = first(project)
    assert (found.outcome, found.problem and found.problem.name) == (outcome, problem)
    if problem:
        assert found.problem.where == f"{FIRST} on v9.9.1" and found.problem.hint
    if outcome is Outcome.NOT_SELECTED and not problem:
        assert found.why == "does it in another way"


def test_any_probe_is_enough_and_a_missing_file_is_none(project):
    probes = ["python/sglang/gone.py :: x", f"{RUNNER} :: /^step_7 /"]
    project.write(FIRST, patch_text(Overlay="python/sglang/srt/steps/", Probe=probes))
    for number, outcome in ((7, Outcome.MERGED_UPSTREAM), (8, Outcome.APPLIED)):
        project.write("release", f"step_{number} = {number}\n")
        assert first(project).outcome is outcome


def check_all(project):
    return check(project.root, pins.load(project.root).all)


def test_check_applies_each_profile_alone(project):
    """A patch of another profile than the one whose line it changes, or whose change it needs."""
    before = RELEASE["sglang/srt/runner.py"].replace("= 20\n", "= 20\nadded_step = 20\n")
    after = before.replace("added_step = 20", "added_step = 21")
    fields = {"Probe": f"{RUNNER} :: added_step = 21", "Profile": "rl", "Needs": COUNT}
    project.write(f"patches/{CUT}", patch_text(RUNNER, before, after, **fields))
    project.place()
    problems = check_all(project).all_problems
    assert [problem.name for problem in problems] == ["conflict", "profile"]
    assert all("--only rl" in each.what and "profile" in each.hint for each in problems)
    project.edit(FIRST, "Probe: ", "Profile: fixes, rl\nProbe: ")
    assert check_all(project).all_problems == ()


WORKERS = """
import os, sys, time
from patchqueue.applying import check
with check._processes() as processes:
    processes.submit(os.getpid).result()
    processes.submit(time.sleep, 60)  # one works, the others wait
    print(len(processes._processes), flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_killed_check_leaves_no_worker(number):
    """All of them hold its output open: it ends when the last one has ended."""
    running = subprocess.Popen([sys.executable, "-c", WORKERS], stdout=subprocess.PIPE)
    assert int(running.stdout.readline()) > 0
    running.send_signal(number)
    running.communicate(timeout=15)
    assert running.returncode == -number


def test_check_names_what_is_wrong_on_one_pin_and_goes_on(project):
    merged = RELEASE["sglang/srt/runner.py"].replace("= 20\n", "= 20\nadded_step = 20\n")
    project.release("9.9.2", runner=merged)
    project.release("9.8.0")
    project.warm()
    report = check_all(project)
    assert {str(pin.pin.version): pin.outcome for pin in report.pins} == {
        "9.8.0": Outcome.EMPTY,
        "9.9.1": Outcome.APPLIED,
        "9.9.2": Outcome.MERGED_UPSTREAM,
    }
    names = {(pin.pin.tag, problem.name) for pin in report.pins for problem in pin.problems}
    assert names == {
        ("v9.8.0", "unexplained-gap"),
        ("v9.8.0", "empty"),
        ("v9.9.2", "not-carried"),
        ("v9.9.2", "merged upstream"),
        ("v9.9.2", "unexplained-gap"),
    }
