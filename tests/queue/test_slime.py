"""Releases with edits where slime's patches change them: the queue's hunks that apply, that move
and that conflict, as docs/your-own-edits.md counts them, and the way back.

slime_hunks.toml has the places. Takes the releases from the machine's own cache
(`scripts/nox check` fills it), and is skipped where that has none.
"""

from __future__ import annotations

import re
import zipfile
from functools import partial
from pathlib import Path

import fakes
import pytest
import tomlkit
from fakes import ROOT
from test_install import exactly

from patchqueue.install import inplace
from patchqueue.install.installed import read
from patchqueue.laying.apply import load_queue
from patchqueue.laying.selection import select
from patchqueue.outcome import Outcome, Refused
from patchqueue.upstream import pins, source

CACHE = source.cache_folder()  # read before it is redirected
HUNKS = tomlkit.parse(Path(__file__).with_name("slime_hunks.toml").read_text()).unwrap()
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
def slime(request, tmp_path, monkeypatch) -> tuple[str, Path]:
    """A release, and the folder that has it with the edits."""
    version = request.param
    monkeypatch.setenv("PATCHQUEUE_CACHE", str(CACHE))
    pin = pins.load(ROOT).find(version)
    if not source.is_cached(pin):
        pytest.skip(f"{CACHE} does not hold {pin.tag}; `scripts/nox check` fetches it")
    with zipfile.ZipFile(source.fetch(pin, None).archive) as wheel:
        wheel.extractall(tmp_path / "site")
    for name, hunks in HUNKS[version].items():
        edit(tmp_path / "site", name, hunks)
    return version, tmp_path / "site"


def counted(version: str, site: Path) -> list[int]:
    """What the page's row has: files and hunks of slime's; the queue's hunks that apply at their
    own line, at another line, and not at all."""
    pin = pins.load(ROOT).find(version)
    selection = select(load_queue(ROOT), pin)
    with_edits = selection.replay(partial(read, site)).steps
    pristine = selection.replay(source.fetch(pin, None).read).steps
    edited_rows = zip(with_edits, pristine, strict=True)
    rows = [(here.lines, there.lines) for here, there in edited_rows if here.lines is not None]
    spots = [each for here, there in rows for each in zip(here, there, strict=True)]
    hunks = sum(len(file.hunks) for patch in selection.patches for file in patch.files)
    stayed = sum(here == there for here, there in spots)
    theirs = sum(len(each.split()) for each in HUNKS[version].values())
    return [len(HUNKS[version]), theirs, stayed, len(spots) - stayed, hunks - len(spots)]


def test_the_page_counts_what_applies_and_every_edit_comes_back(slime, tool):
    version, site = slime
    before = exactly(site)
    (row,) = re.findall(rf"(?m)^\| {re.escape(version)} \| (.+) \|$", PAGE)
    assert list(map(int, row.split(" | "))) == counted(version, site)
    with pytest.raises(Refused) as caught:
        inplace.install(ROOT, site)
    patches = {
        re.sub(r"@[\d.]+(?=\.patch)", "", each.where.split()[0]) for each in caught.value.problems
    }
    assert patches == {f"patches/{name}.patch" for name in LEFT_OUT}
    assert "--without PATCH" in caught.value.problems[0].hint and exactly(site) == before
    words = ["--without", LEFT_OUT[0], "--without", LEFT_OUT[1]]
    code, out, _ = tool(fakes.Project(ROOT, CACHE, site), *INSTALL, site, *words, "--check")
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
