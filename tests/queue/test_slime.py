"""Releases with edits where slime's patches change them: all patches of the queue apply but the two
that docs/your-own-edits.md leaves out, and every edit comes back. So do those of other frameworks.

slime_hunks.toml and framework_hunks.toml have the places. Takes the releases from the machine's own
cache (`scripts/nox check` fills it), and is skipped where that has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import fakes
import pytest
import tomlkit
from fakes import ROOT
from test_install import exactly

from patchqueue.install import inplace
from patchqueue.outcome import Outcome, Refused

HUNKS = tomlkit.parse(Path(__file__).with_name("slime_hunks.toml").read_text()).unwrap()
OTHERS = tomlkit.parse(Path(__file__).with_name("framework_hunks.toml").read_text()).unwrap()
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


@pytest.fixture
def release_with(unpacked_release) -> Callable[[str, dict[str, str]], Path]:
    """A release with these edits: the folder that has it."""

    def make(version: str, hunks: dict[str, str]) -> Path:
        _, site = unpacked_release(version)
        for name, text in hunks.items():
            edit(site, name, text)
        return site

    return make


@pytest.fixture(params=HUNKS)
def slime(request, release_with) -> tuple[str, Path]:
    return request.param, release_with(request.param, HUNKS[request.param])


def conflicts(site: Path) -> set[str]:
    """The patches that an installation names, without their variants."""
    with pytest.raises(Refused) as caught:
        inplace.install(ROOT, site)
    assert "--without PATCH" in caught.value.problems[0].hint
    where = (each.where.split()[0] for each in caught.value.problems)
    return {re.sub(r"patches/|(@[\d.]+)?\.patch", "", patch) for patch in where}


def test_all_but_two_patches_apply_and_every_edit_comes_back(slime, tool):
    version, site = slime
    before = exactly(site)
    files, hunks = len(HUNKS[version]), len(" ".join(HUNKS[version].values()).split())
    assert f"\n| {version} | {files} | {hunks} | " in PAGE
    assert conflicts(site) == {*LEFT_OUT} and exactly(site) == before
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


@pytest.mark.parametrize("name", OTHERS)
def test_the_edits_of_other_frameworks_stay(name, release_with):
    """docs/frameworks.md leaves out the patches that a framework has itself."""
    hunks = dict(OTHERS[name])
    left_out = tuple(hunks.pop("left_out", "").split())
    site = release_with(name.partition(" ")[2], hunks)
    before, page = exactly(site), (ROOT / "docs/frameworks.md").read_text(encoding="utf-8")
    if left_out:
        assert conflicts(site) == {*left_out}
        assert f"`scripts/nox install --without {' --without '.join(left_out)}`" in page
    report = inplace.install(ROOT, site, without=left_out)
    assert set(report.before) == {f"sglang/srt/{file}" for file in hunks}
    assert inplace.verify(ROOT, site).outcome is Outcome.APPLIED
    inplace.uninstall(ROOT, site)
    assert exactly(site) == before
