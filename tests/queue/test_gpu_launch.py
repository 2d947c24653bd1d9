"""tests/gpu/launch.py: engines that take too long say where they are."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parents[2] / "tests/gpu"
STUCK = """
import json, subprocess, sys, time

def waits_for_a_kernel():
    open("stuck", "w").close()
    time.sleep(60)

other = subprocess.Popen(["sleep", "60"])  # as a compiler that an engine has started
waits_for_a_kernel()
"""


@pytest.fixture
def launch(monkeypatch):
    monkeypatch.syspath_prepend(str(GPU))
    return importlib.import_module("launch")


def test_an_engine_over_its_limit_leaves_its_stacks_in_its_log(launch, tmp_path):
    script = tmp_path / "engine.py"
    script.write_text(STUCK)
    plan = {"out": str(tmp_path / "out.json"), "watch": str(tmp_path / "watch")}
    job = launch.Job("engine", script, plan, 3)
    place = launch.Place((GPU / "watch",), tmp_path)
    launch.run_all(place, [job], 1, time.time() + 30, print)
    assert (tmp_path / "stuck").exists()
    assert job.why.endswith("without an answer")
    said = (tmp_path / "engine.log").read_text()
    assert "in waits_for_a_kernel" in said and f'File "{script}", line 6' in said
    assert not launch.members(job.process.pid)


def test_a_process_that_does_not_listen_is_left_alone(launch):
    """It would end by the signal: a compiler, or an engine that is not watched."""
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        launch.show_stacks(process.pid)
        assert process.poll() is None
    finally:
        launch.kill(process)
