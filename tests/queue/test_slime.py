"""Releases with edits where slime's patches change them: all patches of the queue apply but the two
that docs/your-own-edits.md leaves out, and every edit comes back.

slime_hunks.toml has the places, framework_hunks.toml those of other RL frameworks. Takes the
releases from the machine's own cache (`scripts/nox check` fills it), and is skipped where that has
none.
"""

from __future__ import annotations

import re
from pathlib import Path

import fakes
import pytest
import tomlkit
from fakes import ROOT
from test_install import exactly

from patchqueue.install import inplace
from patchqueue.outcome import Outcome, Refused

HUNKS = tomlkit.parse(Path(__file__).with_name("slime_hunks.toml").read_text()).unwrap()
FRAMEWORKS = tomlkit.parse(Path(__file__).with_name("framework_hunks.toml").read_text()).unwrap()
FRAMEWORKS_PAGE = (ROOT / "docs/frameworks.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/your-own-edits.md").read_text(encoding="utf-8")
INSTALL = ("install", "--site-packages")
LEFT_OUT = ("memory-saver/pause-index-keys", "moe/return-routed-experts-of-own-rank")


def edit(site: Path, name: str, hunks: str) -> None:
    """Replace the lines of each hunk but its context by as many comments as it adds."""
    file = site / "sglang/srt" / name
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    for hunk in reversed(hunks.split()):
        first, old, new = map(int, hunk.split(","))
        begin = max(0, first - 1) + max(0, min(3, old - 3))
        end = max(begin, first + old - 4)
        assert end <= len(lines)
        lines[begin:end] = [f"# slime {hunk} {line}\n" for line in range(new - old + end - begin)]
    file.write_text("".join(lines))


@pytest.fixture(params=HUNKS)
def slime(request, unpacked_release) -> tuple[str, Path]:
    """A release, and the folder that has it with the edits."""
    _, site = unpacked_release(request.param)
    for name, hunks in HUNKS[request.param].items():
        edit(site, name, hunks)
    return request.param, site


def test_all_but_two_patches_apply_and_every_edit_comes_back(slime, tool):
    version, site = slime
    before = exactly(site)
    files, hunks = len(HUNKS[version]), len(" ".join(HUNKS[version].values()).split())
    assert f"\n| {version} | {files} | {hunks} | " in PAGE
    with pytest.raises(Refused) as caught:
        inplace.install(ROOT, site)
    patches = {
        re.sub(r"@[\d.]+(?=\.patch)", "", each.where.split()[0]) for each in caught.value.problems
    }
    assert patches == {f"patches/{name}.patch" for name in LEFT_OUT}
    assert "--without PATCH" in caught.value.problems[0].hint and exactly(site) == before
    words = ["--without", LEFT_OUT[0], "--without", LEFT_OUT[1]]
    code, out, _ = tool(fakes.Project(ROOT, site, site), *INSTALL, site, *words, "--check")
    assert code == 0 and f"{site} {' '.join(words)}` does that" in out and exactly(site) == before
    report = inplace.install(ROOT, site, without=LEFT_OUT)
    names = {f"sglang/srt/{name}" for name in HUNKS[version]}
    assert report.outcome is Outcome.APPLIED and set(report.before) == names
    theirs = sum(content.count(b"# slime ") for (content, *_), *_ in map(before.get, names))
    kept = sum((site / name).read_bytes().count(b"# slime ") for name in names)
    assert kept == theirs > 500
    assert inplace.verify(ROOT, site).outcome is Outcome.APPLIED
    assert inplace.install(ROOT, site, without=LEFT_OUT).outcome is Outcome.ALREADY_APPLIED
    inplace.uninstall(ROOT, site)
    assert exactly(site) == before


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_s_edits_stay(name, unpacked_release):
    """The queue applies, but for the patches that docs/frameworks.md leaves out."""
    _, site = unpacked_release(name.partition(" ")[2])
    left_out = tuple(FRAMEWORKS[name].get("left_out", "").split())
    hunks = {file: text for file, text in FRAMEWORKS[name].items() if file != "left_out"}
    for file, text in hunks.items():
        edit(site, file, text)
    before = exactly(site)
    if left_out:
        with pytest.raises(Refused) as caught:
            inplace.install(ROOT, site)
        patches = {
            re.sub(r"@[\d.]+", "", each.where.split(".patch ")[0]) for each in caught.value.problems
        }
        assert patches == {f"patches/{each}" for each in left_out}
        assert all(
            f"`scripts/nox install --without {each}`" in FRAMEWORKS_PAGE for each in left_out
        )
    report = inplace.install(ROOT, site, without=left_out)
    edited = {f"sglang/srt/{file}" for file in hunks}
    assert report.outcome is Outcome.APPLIED and set(report.before) == edited
    assert inplace.verify(ROOT, site).outcome is Outcome.APPLIED
    inplace.uninstall(ROOT, site)
    assert exactly(site) == before
