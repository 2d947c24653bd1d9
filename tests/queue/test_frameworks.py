"""Releases with edits where the patches of RL frameworks change them, as in test_slime.py: the
queue applies, but for the patches that docs/frameworks.md leaves out."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
import tomlkit
from fakes import ROOT
from test_install import exactly
from test_slime import CACHE, edit

from patchqueue.install import inplace
from patchqueue.outcome import Outcome, Refused
from patchqueue.upstream import pins, source

HUNKS = tomlkit.parse(Path(__file__).with_name("framework_hunks.toml").read_text()).unwrap()
PAGE = (ROOT / "docs/frameworks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", HUNKS)
def test_a_framework_s_edits_stay(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PATCHQUEUE_CACHE", str(CACHE))
    pin = pins.load(ROOT).find(name.partition(" ")[2])
    if not source.is_cached(pin):
        pytest.skip(f"{CACHE} does not hold {pin.tag}; `scripts/nox check` fetches it")
    with zipfile.ZipFile(source.fetch(pin, None).archive) as wheel:
        wheel.extractall(tmp_path)
    left_out = tuple(HUNKS[name].get("left_out", "").split())
    hunks = {file: text for file, text in HUNKS[name].items() if file != "left_out"}
    for file, text in hunks.items():
        edit(tmp_path, file, text)
    before = exactly(tmp_path)
    if left_out:
        with pytest.raises(Refused) as caught:
            inplace.install(ROOT, tmp_path)
        patches = {
            re.sub(r"@[\d.]+", "", each.where.split(".patch ")[0]) for each in caught.value.problems
        }
        assert patches == {f"patches/{each}" for each in left_out}
        assert all(f"`scripts/nox install --without {each}`" in PAGE for each in left_out)
    report = inplace.install(ROOT, tmp_path, without=left_out)
    edited = {f"sglang/srt/{file}" for file in hunks}
    assert report.outcome is Outcome.APPLIED and set(report.before) == edited
    assert inplace.verify(ROOT, tmp_path).outcome is Outcome.APPLIED
    inplace.uninstall(ROOT, tmp_path)
    assert exactly(tmp_path) == before
