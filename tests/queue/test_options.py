"""Options that no test of their own command tries change what it does, and options that exclude
each other are refused."""

from __future__ import annotations

import json
import shutil

import fakes
import pytest
from fakes import ROOT

from bundle import assemble, host, release
from evidence import results
from evidence.pages import bench, status
from patchqueue.environments import testing


def test_a_bundle_is_for_the_host_and_the_gpu_that_are_named(applied, tmp_path, tool, monkeypatch):
    def dependencies(contents, machine, sm, only):
        (tmp_path / "site.tar.xz").write_bytes(b"x")
        return tmp_path / "site.tar.xz", {"packages": [], "for": [machine.name, sm]}

    shutil.copytree(ROOT / "tests/gpu", applied.root / "tests/gpu")
    monkeypatch.setattr(assemble, "dependencies", dependencies)
    monkeypatch.setattr(release, "resolve", lambda *_: "")
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


def test_the_pages_and_the_picture_are_made_of_the_rows(applied, tmp_path, tool):
    fakes.harness(applied)
    applied.write(status.PAGE, status.BEGIN + status.END)
    for name in (str(results.FILE), bench.PAGE):
        applied.write(name, (ROOT / name).read_bytes())
    code, out, err = tool(applied, "status")
    assert code == 0 and "the pages said so already" in out, err
    _, out, _ = tool(applied, "status", "--plot")
    drawn = [*(applied.root / "docs/images").glob("*.svg")]
    assert len(drawn) == 2 and out.endswith("front-dark.svg rewritten\n")
    assert all(file.read_text() == (ROOT / "docs/images" / file.name).read_text() for file in drawn)
    code, _, err = tool(applied, "status", "--merge", tmp_path / "home")
    assert code == 1 and "[no-evidence]" in err


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
