"""Options that no test of their own command tries change what it does, and options that exclude
each other are refused."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import fakes
import pytest
from fakes import ROOT

from bundle import host
from bundle import release as bundle
from evidence import gpurun, results
from evidence.pages import status
from patchqueue.environments import testing

GPU_SCRIPT = """import json, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(parents=True, exist_ok=True)
(out / "words.json").write_text(json.dumps(sys.argv))
(out / "RESULT").write_text("{}")
"""


@pytest.mark.parametrize(
    ("words", "script"), [(("gpu",), "run"), (("sweep", "--experts"), "sweep_experts")]
)
def test_what_a_script_of_a_gpu_host_is_told(applied, tmp_path, tool, monkeypatch, words, script):
    fakes.harness(applied)
    text = GPU_SCRIPT.replace("RESULT", gpurun.RESULTS[script])
    applied.write(f"tests/gpu/{script}.py", text)
    fakes.program(tmp_path / "driver/nvidia-smi", "echo 'GPU 0: NVIDIA Fake (UUID: GPU-1)'")
    monkeypatch.setenv("PATH", str(tmp_path / "driver"), prepend=os.pathsep)
    line = f'echo ran >> {tmp_path}/used; exec {sys.executable} "$@"'
    more = ("--python", fakes.program(tmp_path / "other-python", line), "--out", tmp_path / "out")
    code, _, err = tool(applied, *words, "--here", "--site", tmp_path, "--pass=--limit", *more)
    assert code == 0, err
    told = json.loads((tmp_path / "out/words.json").read_text())
    assert told[told.index("--site") + 1] == str(tmp_path) and "--limit" in told
    assert (tmp_path / "used").is_file() and Path(told[0]).stem == script


def test_a_bundle_is_for_the_host_and_the_gpu_that_are_named(applied, tmp_path, tool, monkeypatch):
    def dependencies(pin, machine, sm, **_):
        (tmp_path / "site.tar.xz").write_bytes(b"x")
        about = {"packages": [], "resolved_as_of": "2030-01-02"}
        return tmp_path / "site.tar.xz", about | {"for": [machine.name, sm]}

    shutil.copytree(ROOT / "tests/gpu", applied.root / "tests/gpu")
    monkeypatch.setattr(bundle, "dependencies", dependencies)
    shutil.copy(ROOT / host.DEFAULT, tmp_path / "other-host.toml")
    words = ("--host", tmp_path / "other-host.toml", "--sm", "80")
    code, _, err = tool(applied, "bundle", *words)
    assert code == 0, err
    manifest = json.loads((applied.root / "dist/bundle/v9.9.1/manifest.json").read_text())
    assert manifest["for"] == ["other-host", 80]


@pytest.fixture
def profiled(applied, tmp_path):
    """A project with the second patch in another profile, and what its commands are run on."""
    applied.edit(f"patches/{fakes.CUT}", "Probe: ", "Profile: speed\nProbe: ")
    applied.edit(f"patches/{fakes.CUT}", "Count the steps once more", "Name the cut")
    fakes.author(tmp_path / "home")
    applied.checkout(tmp_path / "sglang")
    fakes.install(tmp_path / "site")
    return applied


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("backport --onto {}/sglang b", "Count the steps once more"),
        ("build", f"version 9.9.1+{fakes.LABEL}.fixes"),
        ("patches --out {}/all.patch", "1 patch for"),
        ("install --site-packages {}/site", "1 patch, 1 file changed"),
    ],
)
def test_one_profile_is_handed_on(profiled, tmp_path, tool, words, said):
    code, out, err = tool(profiled, *words.format(tmp_path).split(), "--only", "fixes")
    assert code == 0 and said in out and "Name the cut" not in out, out + err


def test_the_picture_is_drawn_of_the_rows(applied, tool):
    pytest.importorskip("matplotlib")
    fakes.harness(applied)
    applied.write(status.PAGE, status.BEGIN + status.END)
    applied.write(str(results.FILE), (ROOT / results.FILE).read_bytes())
    (applied.root / "docs/images").mkdir(parents=True)
    assert tool(applied, "status", "--plot")[0] == 0
    assert [*(applied.root / "docs/images").glob("*.svg")]


def test_coverage_is_measured_in_place_of_a_test(applied, tool, monkeypatch):
    applied.write("upstream/locks/9.9.1.txt", "")
    measured = []
    monkeypatch.setattr(testing, "measure_coverage", lambda root: measured.append(root) or 0)
    assert tool(applied, "test", "--coverage")[0] == 0 and measured == [applied.root]


@pytest.mark.parametrize(
    "words",
    [
        "gpu --agree --bench",
        "test --upstream x --tool",
        "test --coverage --tool",
        "build --release --only rl",
        "backport --onto x --report --pull-requests",
        "install --site-packages x --discard --verify",
        "install --site-packages x --verify --check",
        "pin 9.9.2 --from x --lock",
        "rebase 9.9.2 --continue --abort",
    ],
)
def test_options_that_exclude_each_other_are_refused(applied, tool, words):
    before = fakes.snapshot(applied.root)
    code, _, said = tool(applied, *words.split())
    assert code == 2 and "not allowed with argument" in said
    assert fakes.snapshot(applied.root) == before
