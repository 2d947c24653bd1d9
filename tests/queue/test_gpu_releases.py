"""Several releases proved on one host, on engines that need no GPU."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from test_gpu_compare import FAKE, GPU, MODEL, alive

QUICK = ["--pass=--model", f"--pass={MODEL}", "--pass=--mode", "--pass=breakable"]


@pytest.fixture
def sites(tmp_path: Path, engine_bytecode: Path) -> Path:
    """Two unpacked bundles, each with its own scripts; results to be have weights and byte code."""
    ignored = shutil.ignore_patterns("__pycache__")
    for tag in ("v0.5.9", "v0.5.12.post1"):
        bundle, scratch = tmp_path / "sites" / tag, tmp_path / "out" / tag / "scratch"
        shutil.copytree(GPU, bundle / "tests/gpu", ignore=ignored)
        shutil.copytree(FAKE / "tree", bundle / "tree")
        shutil.copytree(FAKE / "site", bundle / "site")
        (bundle / "manifest.json").write_text("{}")
        (scratch / "models" / MODEL).mkdir(parents=True)
        (scratch / "models" / MODEL / "model.safetensors").touch()
        (scratch / "bytecode").symlink_to(engine_bytecode)
    return tmp_path / "sites"


def command(sites: Path, *words: str) -> list[str]:
    script = sites / "v0.5.9/tests/gpu/releases.py"
    return [sys.executable, str(script), "--out", str(sites.parent / "out"), *words, *QUICK]


def environment(**more: str) -> dict[str, str]:
    path = f"{FAKE / 'bin'}{os.pathsep}{os.environ['PATH']}"
    known = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return known | {"PATH": path} | more


def prove(sites: Path, *words: str, **more: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(sites, *words),
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_each_release_is_proved_in_turn_and_packed(sites):
    done = prove(sites, str(sites / "v0.5.9"), str(sites / "v0.5.12.post1"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.split("release         ")[1].splitlines()]
    assert [row[0] for row in rows[1:3]] == ["v0.5.9", "v0.5.12.post1"]  # as they were named
    assert all(row[1] == "passed" and row[3:] == ["2", "passed"] for row in rows[1:3])
    with tarfile.open(sites.parent / "out/results.tar.gz") as archive:
        names = archive.getnames()
        kept = json.load(archive.extractfile("v0.5.12.post1/evidence.json"))
    assert kept["passed"] and not [name for name in names if "scratch" in name]
    assert {f"v0.5.9/{MODEL}.breakable.log", "v0.5.9/run.log", "v0.5.9/evidence.json"} <= {*names}


def test_one_that_fails_keeps_none_back(sites):
    (sites / "v0.5.12.post1/tests/gpu/engine.py").write_text("raise SystemExit('planted')")
    done = prove(sites, str(sites))
    assert done.returncode == 1 and "v0.5.12.post1: failed after" in done.stdout
    assert "v0.5.9: passed after" in done.stdout and "1 failed, 1 not run" in done.stdout


def test_one_without_a_verdict_has_ended(sites):
    (sites / "v0.5.12.post1/tests/gpu/models.py").write_text("raise SystemExit('planted')")
    done = prove(sites, str(sites / "v0.5.12.post1"))
    assert done.returncode == 1 and "v0.5.12.post1: ended after" in done.stdout
    assert "a release takes" not in done.stdout


def test_weights_that_cannot_be_made_name_their_model(sites):
    file, mark = sites / "v0.5.12.post1/tests/gpu/models.py", 'if __name__ == "__main__":'
    text = file.read_text()
    assert text.count(mark) == 1
    file.write_text(text.replace(mark, f"{mark}\n    raise SystemExit('planted')"))
    done = prove(sites, str(sites / "v0.5.12.post1"))
    assert done.returncode == 1 and "failed after" in done.stdout and "2 not run" in done.stdout
    said = (sites.parent / "out/v0.5.12.post1/run.log").read_text()
    assert f"no weights of {MODEL} (exit code 1)" in said


def test_the_table_says_what_a_night_takes(monkeypatch):
    monkeypatch.syspath_prepend(str(GPU))
    releases = importlib.import_module("releases")
    found = [
        releases.Proof("v0.5.12.post1", "failed", 330.0, {"passed": 31, "failed": 1}),
        releases.Proof("v0.5.13.post1", "passed", 150.0, {"passed": 20}),
        releases.Proof("v0.5.16", "not started", 0.0, {}),
    ]
    assert releases.table(found, 480.0) == (
        "release         verdict       minutes  engines\n"
        "v0.5.12.post1   failed            5.5  31 passed, 1 failed\n"
        "v0.5.13.post1   passed            2.5  20 passed\n"
        "v0.5.16         not started       0.0  \n"
        "\na release takes 4.0 min, a night of 8 hours 120"
    )


def test_several_run_side_by_side_on_ports_of_their_own(sites):
    done = prove(sites, str(sites), "--at-once", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout.splitlines()
    first = next(at for at, line in enumerate(told) if "passed after" in line)
    assert sum(": starting," in line for line in told[:first]) == 2
    out = sites.parent / "out"
    plans = [out / tag / f"{MODEL}.breakable.plan.json" for tag in ("v0.5.9", "v0.5.12.post1")]
    ports = [json.loads(plan.read_text())["port"] for plan in plans]
    assert abs(ports[0] - ports[1]) == 1000
    rows = [line.split()[:2] for line in done.stdout.split("release         ")[1].splitlines()]
    assert rows[1:3] == [["v0.5.12.post1", "passed"], ["v0.5.9", "passed"]]  # by their names


def test_nothing_starts_that_would_not_end_in_time(sites):
    done = prove(sites, str(sites), "--limit", "299")
    assert done.returncode == 1 and not (sites.parent / "out/v0.5.9/run.log").exists()
    assert done.stdout.count("not started") == 2


def test_a_run_that_is_ended_ends_its_engines_and_packs_what_it_has(sites):
    words = command(sites, str(sites / "v0.5.9"))
    out = sites.parent / "out"
    with subprocess.Popen(words, env=environment(FAKE_FAULT="stuck", FAKE_FAULT_IN="eager")) as one:
        until = time.time() + 60
        while not list(out.glob("v0.5.9/*.ready")) and time.time() < until:
            time.sleep(0.05)
        one.send_signal(signal.SIGTERM)
        assert one.wait(30) == 1
    with tarfile.open(out / "results.tar.gz") as archive:
        assert "v0.5.9/evidence.json" in archive.getnames()
    assert alive(out / "v0.5.9") == []


def test_a_folder_without_a_bundle_is_refused(sites, monkeypatch):
    monkeypatch.syspath_prepend(str(GPU))
    releases = importlib.import_module("releases")
    empty = sites.parent / "empty"
    with pytest.raises(SystemExit) as refused:
        releases.main([str(empty), "--out", str(sites.parent / "out")])
    assert str(refused.value) == (
        f"{empty}: no unpacked bundle is or lies there: `./unpack {empty}/TAG` makes one"
    )


def test_releases_that_speak_together_have_a_line_each():
    """Two lines had stood in one, and this module's run side by side failed now and then."""
    code = (
        "import threading, commandline\n"
        "def say(number): commandline.say(f'{number}: starting')\n"
        "threads = [threading.Thread(target=say, args=(number,)) for number in range(16)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
    )
    for _ in range(5):
        told = subprocess.check_output([sys.executable, "-c", code], cwd=GPU, text=True)
        assert [line.count("starting") for line in told.splitlines()] == [1] * 16
