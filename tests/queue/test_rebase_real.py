"""The real queue on real releases: carried from 0.5.16 to 0.5.18 once more, it must come out as it
was written by hand.

Takes the releases from the machine's own cache (`scripts/nox check` fills it), and is skipped where
that has none.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fakes
import pytest
from fakes import ROOT
from packaging.version import Version

from patchqueue.applying.apply import load_queue
from patchqueue.applying.matching import edits, unified
from patchqueue.applying.selection import Selection, select
from patchqueue.applying.worktree import write_patches
from patchqueue.files.tree import hash_python, list_folder
from patchqueue.handover import rebase
from patchqueue.handover.forecast import Stages
from patchqueue.outcome import Outcome
from patchqueue.queue import series
from patchqueue.queue.patchfile import split
from patchqueue.upstream import pins, source
from patchqueue.upstream.release import find

CACHE = source.cache_folder()  # read before it is redirected
OLD, NEW = Version("0.5.16"), Version("0.5.18")
# these begin with 0.5.17 and 0.5.18: nothing to carry
LATER = ("breakable/activate-kda-beta.patch", "breakable/return-result-when-no-size-fits.patch")

# Its older text stands there too, with a hunk that 0.5.18 does not need: a person left that out.
NARROWED = "mamba2/offset-rows-in-64-bits.patch"


@pytest.fixture(scope="module")
def filled() -> None:
    wanted = [wheel.sha256 for pin in pins.load(ROOT).all for wheel in pin.wheels]
    if sum((CACHE / "archives" / digest).is_dir() for digest in wanted) < len(pins.load(ROOT).all):
        pytest.skip(f"{CACHE} does not hold every pinned release; `scripts/nox check` fetches them")


@pytest.fixture(autouse=True)
def real_cache(filled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHQUEUE_CACHE", str(CACHE))


def cut(folder: Path) -> Path:
    """The project as it was before anything newer than 0.5.16: its pins, its variants, and no word
    of what later releases merged."""
    root = folder / "project"
    for name in ("patches", "overlay", "upstream"):
        shutil.copytree(ROOT / name, root / name)
    (root / "tests").symlink_to(ROOT / "tests")
    text = (ROOT / pins.FILE).read_text()
    head, *revisions = text.split("[[revision]]")
    kept = [
        part for part in revisions if Version(re.search(r'version = "(.+)"', part).group(1)) <= OLD
    ]
    (root / pins.FILE).write_text(
        "[[revision]]".join([re.sub(r"(?m)^tested.*$", "tested = []", head), *kept])
    )
    known = [pin.version for pin in pins.load(root).all]
    lines = []
    for line in (ROOT / series.FILE).read_text().splitlines():
        entry = series.parse(line)[0]
        if entry and not any(entry[0].is_for(version) for version in known):
            (root / "patches" / entry[0].name).unlink()
        else:
            lines.append(re.sub(r"<0\.5\.(1[89]|2\d)\b(,!=0\.5\.17\.\*)?", "<0.5.17", line))
    (root / series.FILE).write_text("\n".join(lines) + "\n")
    for file in (root / "patches").rglob("*.patch"):
        file.write_text(
            re.sub(
                r"(?m)^Upstream-Status: Merged 0\.5\.(1[78]|2\d)$",
                "Upstream-Status: Pending",
                file.read_text(),
            )
        )
    for path in series.read(root)[0].unnamed_overlay():
        (root / "overlay" / path).unlink()
    return root


def real_files() -> dict[str, dict[str, bytes]]:
    """What each patch of the real queue leaves on 0.5.18, by the name its variants share."""
    every = pins.load(ROOT)
    return {
        base: after
        for base, (_, after) in Stages(load_queue(ROOT), every.find(str(NEW))).of.items()
    }


def carry(root: Path) -> Iterator[rebase.Progress]:
    """Rebase onto 0.5.18, each conflict solved as the real variant has it."""
    known, solutions = pins.load(root), real_files()
    release = find(pins.load(ROOT), NEW, None)
    progress = rebase.begin(root, known, release, lambda found: None)
    while progress.folder:
        yield progress
        row = progress.found.conflict
        solved = solutions[load_queue(root).base(row.patch)]
        merged = fakes.git(progress.folder, "diff", "--name-only", "HEAD").split()
        for path in set(merged) - solved.keys():  # the real variant leaves it alone
            fakes.git(progress.folder, "checkout", "HEAD", "--", path)
        for path, content in solved.items():
            (progress.folder / path).write_bytes(content)
        progress = rebase.proceed(root, known, NEW, None)
    yield progress


def test_the_queue_comes_to_0_5_18_as_it_was_carried_by_hand(tmp_path):
    root = cut(tmp_path)
    before = {path.name for path in (root / "patches").rglob("*.patch")}
    steps = list(carry(root))
    assert len(steps) > 1, "there is a conflict to solve"
    added = {path.name for path in (root / "patches").rglob("*.patch")} - before
    assert all("@0.5.18" in name for name in added), "variants are for what is other code"
    assert steps[-1].found.count(Outcome.MERGED_UPSTREAM) >= 1
    queue, real = load_queue(root), load_queue(ROOT)
    pristine = source.fetch(pins.load(ROOT).find(str(NEW)), None)
    earlier = tuple(entry for entry in real.entries if entry.base not in LATER)
    real = replace(real, entries=earlier)
    made, wanted = queue.select(NEW), real.select(NEW)
    assert [queue.base(patch.name) for patch in made] == [real.base(patch.name) for patch in wanted]
    pairs = [pair for pair in zip(made, wanted) if real.base(pair[1].name) != NARROWED]
    assert len(pairs) == len(wanted) - 1
    assert [edits(mine) for mine, _ in pairs] == [edits(hand) for _, hand in pairs]
    replayed, hand = (Selection(each, pristine.pin).replay(pristine.read) for each in (queue, real))
    assert replayed.problems == () == hand.problems
    changed = {file.path for _, patch in pairs for file in patch.files}
    assert {path: replayed.files[path] for path in changed} == {
        path: hand.files[path] for path in changed
    }
    assert not (root / "work/rebase-0.5.18").exists()


def test_a_diff_has_the_bytes_that_quilt_refresh_writes(tmp_path):
    """On 0.5.23, whose queue has files with many equal lines."""
    queue, pin = load_queue(ROOT), pins.load(ROOT).all[-1]
    stages = Stages(queue, pin)
    stages.pristine.unpack(tmp_path)
    selection = select(queue, pin)
    patches = selection.patches
    planned = selection.plan(stages.pristine.read, stages.pristine.origin)
    write_patches(tmp_path, planned.texts())
    while (done := fakes.quilt(tmp_path, "push", "--fuzz=0")).returncode == 0:
        assert b"(offset" not in done.stdout and b"fuzz" not in done.stdout, (
            "it has the release's own lines"
        )
        fakes.quilt(tmp_path, "refresh", *fakes.QUILT_FORM)
    written = {
        patch.name: split((tmp_path / "patches" / patch.name).read_text())[1] for patch in patches
    }
    assert (
        len(written) > 3
        and {patch.name: unified(*stages.of[queue.base(patch.name)]) for patch in patches}
        == written
    )


@pytest.mark.parametrize("pin", pins.load(ROOT).all, ids=lambda pin: pin.tag)
def test_quilt_makes_the_pinned_tree(pin, tmp_path):
    pristine = source.fetch(pin, None)
    pristine.unpack(tmp_path)
    planned = select(load_queue(ROOT), pin).plan(pristine.read, pristine.origin)
    write_patches(tmp_path, planned.texts())
    fakes.quilt(tmp_path, "push", "-a", "--fuzz=0")
    assert hash_python(list_folder(tmp_path)) == pin.patched
