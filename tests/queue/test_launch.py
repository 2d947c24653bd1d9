"""tests/gpu/launch.py: the order of engines, and where those are that take too long."""

import json
import subprocess
import sys
import time
from pathlib import Path

import gpumodules
from gpumodules import GPU

STUCK = """
import json, subprocess, sys, time

def waits_for_a_kernel():
    open("stuck", "w").close()
    time.sleep(60)

other = subprocess.Popen(["sleep", "60"])  # as a compiler that an engine has started
waits_for_a_kernel()
"""
# one that is ready after a while, and then answers
ENGINE = """
import json, sys, time
from pathlib import Path

plan = json.loads(Path(sys.argv[1]).read_text())
began = time.time()
time.sleep(0.5)
Path(plan["out"] + ".ready").touch()
time.sleep(1)
told = {"began": began, "ready": began + 0.5, "ended": time.time()}
Path(plan["out"]).write_text(json.dumps(told))
"""


launch = gpumodules.fixture("launch")


def test_an_engine_over_its_limit_leaves_its_stacks_in_its_log(launch, tmp_path):
    script = tmp_path / "engine.py"
    script.write_text(STUCK)
    plan = {"out": str(tmp_path / "out.json"), "watch": str(tmp_path / "watch")}
    job = launch.Job("engine", script, plan, 2)
    place = launch.Place((GPU / "watch",), tmp_path)
    launch.run_all(place, [job], 1, time.time() + 30, print)
    assert (tmp_path / "stuck").exists()
    assert job.why.endswith("without an answer")
    said = (tmp_path / "engine.log").read_text()
    assert "in waits_for_a_kernel" in said and f'File "{script}", line 6' in said
    assert not launch.members(job.process.pid)


def test_each_copy_of_flashinfer_has_compiled_kernels_of_its_own(launch, tmp_path, monkeypatch):
    """Two bundles share none; two folders of one copy do, if built with the same things."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv(launch.COMPILED, raising=False)
    for name in ("one", "other"):
        (tmp_path / name / "flashinfer").mkdir(parents=True)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/flashinfer").symlink_to(tmp_path / "one/flashinfer")

    def cache(*folders: str) -> str | None:
        place = launch.Place(tuple(tmp_path / name for name in folders), tmp_path)
        return place.environment().get(launch.COMPILED)

    assert cache("one") == cache("linked") != cache("other")
    for name in ("two", "three"):
        (tmp_path / name / "tvm_ffi").mkdir(parents=True)
    assert len({cache("linked"), cache("linked", "two"), cache("linked", "three")}) == 3
    assert Path(cache("one")).is_relative_to(tmp_path / "home")
    assert cache("missing") is None
    assert cache("other", "one") == cache("other")  # the first on the path is imported
    monkeypatch.setenv(launch.COMPILED, "/chosen")
    assert cache("one") == "/chosen"


def test_the_first_of_each_kind_goes_ahead(launch, tmp_path):
    """Others of its kind reuse what it compiles; those of another kind have nothing to wait for."""
    kinds = {"first": "a", "second": "a", "other": "b", "another": "b"}
    told = _told(launch, tmp_path / "four", kinds, width=4)
    assert told["other"]["began"] < told["first"]["ready"]
    for follower, leader in (("second", "first"), ("another", "other")):
        assert told[leader]["ready"] < told[follower]["began"] < told[leader]["ended"]
    three = {"first": "a", "second": "a", "other": "b"}
    told = _told(launch, tmp_path / "three", three, width=2)
    began = [told[name]["began"] for name in ("other", "second")]
    assert began[0] < told["first"]["ready"] < began[1], "a follower that waits takes no room"
    alike = {"first": "a", "second": "a"}
    told = _told(launch, tmp_path / "alike", alike, width=2, lead=False)
    assert told["second"]["began"] < told["first"]["ready"]


def _told(launch, folder, kinds, **words) -> dict[str, dict[str, float]]:
    """When each job began, was ready and ended, by its name."""
    folder.mkdir()
    script = folder / "engine.py"
    script.write_text(ENGINE)
    plans = {name: {"out": str(folder / f"{name}.json")} for name in kinds}
    jobs = [launch.Job(name, script, plans[name], 20, kind=kinds[name]) for name in kinds]
    place = launch.Place((GPU / "watch",), folder)
    launch.run_all(place, jobs, deadline=time.time() + 30, say=print, **words)
    return {job.name: json.loads(Path(job.plan["out"]).read_text()) for job in jobs}


def test_a_process_that_does_not_listen_is_left_alone(launch):
    """It would end by the signal: a compiler, or an engine that is not watched."""
    words = [sys.executable, "-c", "input()"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
    try:
        launch.show_stacks(process.pid)
        assert process.poll() is None
    finally:
        launch.kill(process)
