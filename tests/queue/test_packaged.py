"""The tool of a wheel, as pyproject.toml lays it: the queue's files are in the package."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fakes
import pytest
import tomlkit
from fakes import ROOT, contents

from patchqueue import RELEASE

BUILD = tomlkit.parse((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
WHEEL = BUILD["build"]["targets"]["wheel"]


@pytest.fixture
def packages(project, tmp_path) -> Path:
    """A folder with what the wheel has, the tiny project's queue in place of the real one."""
    made = tmp_path / "packages"
    for folder in WHEEL["packages"]:
        source = ROOT / folder
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, made / source.name, ignore=ignore)
    for source, target in WHEEL["force-include"].items():
        place = made / target
        place.parent.mkdir(parents=True, exist_ok=True)
        found = project.root / source
        (shutil.copytree if found.is_dir() else shutil.copyfile)(found, place)
    return made


@pytest.fixture
def patchqueue(packages, tmp_path, monkeypatch):
    """The console script's command, run where no queue is."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.delenv("UV", raising=False)
    code = "import sys; from patchqueue.__main__ import run; sys.exit(run())"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ} | {"PYTHONPATH": str(packages)}
        return fakes.run(sys.executable, "-c", code, *words, cwd=folder, env=environment)

    return run


def test_it_installs_and_takes_off(patchqueue, tmp_path):
    site = fakes.install(tmp_path / "site-packages")

    before, there = contents(site), ("--site-packages", str(site))
    done = patchqueue("install", *there)
    assert done.returncode == 0, done.stderr
    assert "2 patches, 2 files changed" in done.stdout and contents(site) != before
    again = patchqueue("install", *there)
    assert again.returncode == 0 and again.stdout.startswith("already applied"), again.stderr
    assert patchqueue("uninstall", *there).returncode == 0 and contents(site) == before


def test_uvx_leaves_no_program_so_its_call_is_shown(patchqueue, packages, tmp_path, monkeypatch):
    info, git = packages / "sglang_patch_queue-2.dist-info", {"vcs": "git"}
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-patch-queue\nVersion: 2\n")
    monkeypatch.setenv("UV", "/usr/bin/uv")
    example = "Example: uvx --from sglang-patch-queue patchqueue in"
    assert example in patchqueue("install", "-h").stdout
    origin = {"url": "https://a:secret@b.org/c.git", "vcs_info": git | {"requested_revision": "x"}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    site = fakes.install(tmp_path / "site-packages")
    done = patchqueue("install", "--check", "--site-packages", str(site))
    call = f"`uvx --from git+https://b.org/c.git@x patchqueue install --site-packages {site}"
    assert call in done.stdout, done.stderr


def test_what_needs_a_clone_is_said(patchqueue):
    said = patchqueue("--help").stdout
    assert "install" in said and "refresh" not in said
    assert "A clone of the queue has more commands" in said
    done = patchqueue("apply")
    assert done.returncode == 2 and "invalid choice: 'apply'" in done.stderr


def test_the_real_queue_has_all_that_is_packaged():
    assert all((ROOT / source).exists() for source in WHEEL["force-include"])
    pattern = BUILD["version"]["pattern"]
    text = (ROOT / BUILD["version"]["path"]).read_text(encoding="utf-8")
    assert re.search(pattern, text)["version"] == str(RELEASE)
