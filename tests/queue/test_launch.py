"""tests/gpu/launch.py and forkserver.py: engines begin with packages imported, and those that take
too long say where they are."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import gpumodules
import pytest
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
    """Two bundles of one version share none; two folders that lead to one copy do, unless what the
    kernels are built with is another one."""
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
    assert told["other"]["began"] < told["first"]["ready"] < told["second"]["began"], (
        "a follower takes no room while it waits"
    )
    alike = {"first": "a", "second": "a"}
    told = _told(launch, tmp_path / "alike", alike, width=2, lead=False)
    assert told["second"]["began"] < told["first"]["ready"]


def _told(launch, folder, kinds, **words) -> dict[str, dict[str, float]]:
    """When each job began, was ready and ended, by its name."""
    folder.mkdir()
    script = folder / "engine.py"
    script.write_text(ENGINE)
    jobs = [
        launch.Job(name, script, {"out": str(folder / f"{name}.json")}, 20, kind=kind)
        for name, kind in kinds.items()
    ]
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


# writes which process imported it
HEAVY = """
import os
with open(os.environ["IMPORTS"], "a") as out:
    out.write(f"{os.getpid()}\\n")
"""
WATCH = """
import os
def watch():
    if "WATCHED" in os.environ:
        with open(os.environ["WATCHED"], "a") as out:
            out.write(f"{os.getpid()}\\n")
"""
# an engine, which starts three children as sglang's starts its own: one more than there are spares
PARENT = """
import json, multiprocessing, os, sys, time

def work(found, number):
    import heavy
    found.put([number, os.getpid(), os.getppid(), os.environ.get("TOLD"), os.getcwd()])
    sys.exit(number)

if __name__ == "__main__":
    import sglang.srt.managers.scheduler
    multiprocessing.set_start_method("spawn", force=True)
    os.environ["TOLD"] = "by the driver"
    if len(sys.argv) > 2:
        os.environ["LD_PRELOAD"] = sys.argv[2]
    found = multiprocessing.Queue()
    children = [multiprocessing.Process(target=work, args=(found, n)) for n in range(1, 4)]
    for child in children:
        child.start()
    said = sorted(found.get() for _ in children)
    for child in children:
        child.join()
    with open(sys.argv[1], "w") as out:
        json.dump({"me": os.getpid(), "said": said, "codes": [c.exitcode for c in children]}, out)
    print("an engine's words")
    sys.exit(7)
"""


forkserver = gpumodules.fixture("forkserver")


@pytest.fixture
def site(tmp_path):
    """Packages of which engines import one, and what is asked to be run."""
    managers = tmp_path / "site/sglang/srt/managers"
    managers.mkdir(parents=True)
    (tmp_path / "site/sglang/srt/entrypoints").mkdir()
    for file in ("managers/scheduler", "managers/detokenizer_manager", "entrypoints/engine"):
        (tmp_path / f"site/sglang/srt/{file}.py").write_text("import heavy\n")
    (tmp_path / "site/heavy.py").write_text(HEAVY)
    (tmp_path / "site/sitecustomize.py").write_text(WATCH)
    (tmp_path / "engine.py").write_text(PARENT)
    return tmp_path


@pytest.fixture
def begin(forkserver, site, request):
    def made():
        server = forkserver.ForkServer(sys.executable, environment(site), site / "server.log")
        request.addfinalizer(server.close)
        return server

    return made


def test_the_watch_knows_the_same_last_modules(forkserver):
    """It cannot import from beside its folder: it runs before a script's own folder is known."""
    watched = runpy.run_path(str(GPU / "watch/sitecustomize.py"), run_name="watched")
    assert watched["LAST"] == forkserver.LAST


def environment(site: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    return kept | {"PYTHONPATH": str(site / "site"), "IMPORTS": str(site / "imports")} | more


def run(server, site: Path, *words: str, **more: str):
    command = [str(site / "engine.py"), str(site / "out.json"), *words]
    with (site / "engine.log").open("wb") as log:
        return server.start(command, environment(site, **more), site, log.fileno())


def imports(site: Path, code: str) -> None:
    """Let the first module that engines import be this."""
    (site / "site/sglang/srt/managers/scheduler.py").write_text(code)


def importers(site: Path) -> list[int]:
    return [int(line) for line in (site / "imports").read_text().split()]


def test_an_engine_and_its_children_import_what_the_server_has_not(begin, site):
    """The third child found no spare, and starts from nothing."""
    server = begin()
    assert int(server.wait().removesuffix(" modules")) > 50
    before = importers(site)  # who learned the names, and the server
    engine = run(server, site, WATCHED=str(site / "watched"))
    assert engine.wait(60) == 7 and engine.returncode == 7
    found = json.loads((site / "out.json").read_text())
    assert found["me"] == engine.pid and found["codes"] == [1, 2, 3]
    assert [said[0] for said in found["said"]] == [1, 2, 3]
    assert {tuple(said[2:]) for said in found["said"]} == {(engine.pid, "by the driver", str(site))}
    assert len(before) == 2 and importers(site)[2:] == [found["said"][2][1]]
    watched = [int(line) for line in (site / "watched").read_text().split()]
    assert sorted(watched) == sorted([engine.pid, *(said[1] for said in found["said"][:2])])
    assert (site / "engine.log").read_text() == "an engine's words\n"
    time.sleep(0.2)
    assert not Path(f"/proc/{engine.pid}").exists()


def test_a_killed_engine_takes_its_spares_along(begin, site):
    launch = importlib.import_module("launch")
    (site / "engine.py").write_text("import time\ntime.sleep(60)\n")
    server = begin()
    server.wait()
    engine = run(server, site)
    while len(launch.members(engine.pid)) < 3:
        time.sleep(0.05)
    launch.kill(engine)
    assert engine.poll() == -9 and not launch.members(engine.pid)


@pytest.fixture
def greedy(site):
    """A module that starts CUDA: the stand-in says, as the driver does after cuInit, that it knows
    its devices."""
    code = b"int cuDeviceGetCount(int *count) { *count = 1; return 0; }"
    words = ["cc", "-shared", "-xc", "-", "-o", site / "libcuda.so.1", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(words, input=code, check=True)

    code = f"import ctypes\nctypes.CDLL('{site}/libcuda.so.1')"
    (site / "site/greedy.py").write_text(code)


TORCH = """
import types
def asks(*_):
    raise RuntimeError("CUDA was asked")
cuda = types.SimpleNamespace(
    current_device=asks, get_device_properties=asks, get_device_capability=asks)
"""
NAMED = "9.0"


@pytest.fixture
def asking(site, monkeypatch):
    """Makes a module that asks torch's CUDA, and a server that is told this of the GPU."""

    def make(code: str, told: str) -> None:
        (site / "site/torch.py").write_text(TORCH)
        (site / "site/asks.py").write_text(f"import torch\n{code}")
        monkeypatch.setenv("PREFILL_GPU", told)

    return make


@pytest.mark.parametrize(
    ("code", "named"),
    [
        # a process that has begun with CUDA must not be forked
        ("import heavy, greedy\n", "^greedy asks for CUDA"),
        ("import missing\n", "scheduler, .* cannot be imported"),
        # a package that asks for more than is known may take no answer for a no, without a word
        ("import heavy, asks\n", "^asks asks for name"),
    ],
)
def test_modules_that_cannot_be_had_before_the_fork_are_named(
    begin, forkserver, site, greedy, asking, code, named
):
    asking(
        "try:\n    fast = torch.cuda.get_device_properties(0).name == 'H200'\n"
        "except Exception:\n    fast = False\n",
        NAMED,
    )
    imports(site, code)
    with pytest.raises(forkserver.Unready, match=named):
        begin().wait()
    missing = "No module named 'missing'" in (site / "server.log").read_text()
    assert missing is ("missing" in code)


def test_engines_of_a_lost_server_have_ended(begin, forkserver, site):
    server = begin()
    server.wait()
    (site / "engine.py").write_text("import time\ntime.sleep(60)\n")
    engine = run(server, site)
    os.killpg(server._process.pid, 9)
    server._process.wait()
    assert engine.wait(5) == 1
    with pytest.raises(forkserver.Unready, match="ended"):
        run(server, site)
    os.killpg(engine.pid, 9)


def test_a_fork_that_nobody_waits_for_runs_nothing(begin, forkserver, site, monkeypatch):
    """It would share the plan and the port of the engine that was started in its place."""
    server = begin()
    server.wait()
    os.killpg(server._process.pid, signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr(forkserver, "BEGIN_S", 0.5)
        with pytest.raises(forkserver.Unready, match="said nothing"):
            run(server, site, RAN=str(site / "late"))
    os.killpg(server._process.pid, signal.SIGCONT)
    (site / "engine.py").write_text(
        "import os\nopen(os.environ['RAN'], 'w').write(str(os.getpid()))\n"
    )
    engine = run(server, site, RAN=str(site / "ran"))
    assert engine.wait(30) == 0
    assert (site / "ran").read_text() == str(engine.pid) and not (site / "late").exists()


@pytest.mark.parametrize("found", [NAMED, "", "[N/A]"])
def test_a_package_is_told_which_gpu_there_is(begin, site, asking, found):
    """torchao asks while it is imported. An engine asks CUDA again. Without an answer such a
    package is left to the engines."""
    asking("assert torch.cuda.get_device_properties(0).major == 9\n", found)
    imports(
        site,
        "import heavy, sys\n"
        "try:\n    import asks\n"
        "except RuntimeError:\n    sys.modules['asks'] = sys  # as an engine, which may ask\n",
    )
    server = begin()
    server.wait()
    (site / "engine.py").write_text(
        "import sys, torch\nprint('asks' in sys.modules)\n"
        "try:\n    torch.cuda.get_device_properties(0)\n"
        "except RuntimeError as reason:\n    print(reason)\n"
    )
    run(server, site).wait(60)
    said = (site / "engine.log").read_text()
    assert said == f"{found == NAMED}\nCUDA was asked\n"
