"""The real queue on real releases: carried from 0.5.16 to 0.5.18 once more, it must come out as it
was written by hand. Skipped where the machine's cache lacks a release."""

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

OLD, NEW = Version("0.5.16"), Version("0.5.18")
# these begin with 0.5.17 and 0.5.18: nothing to carry
LATER = ("breakable/activate-kda-beta.patch", "breakable/return-result-when-no-size-fits.patch")

# Its older text stands there too, with a hunk that 0.5.18 does not need: a person left that out.
NARROWED = "mamba2/offset-rows-in-64-bits.patch"


def cut(folder: Path) -> Path:
    """The project as it was before anything newer than 0.5.16."""
    root = folder / "project"
    for name in ("patches", "overlay", "upstream"):
        shutil.copytree(ROOT / name, root / name)
    (root / "tests").symlink_to(ROOT / "tests")
    text = (ROOT / pins.FILE).read_text()
    head, *revisions = text.split("[[revision]]")
    number = re.compile(r'version = "(.+)"')
    kept = [part for part in revisions if Version(number.search(part)[1]) <= OLD]
    head = re.sub(r"(?m)^tested.*$", "tested = []", head)
    (root / pins.FILE).write_text("[[revision]]".join([head, *kept]))
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
        merged = r"(?m)^(Upstream-Status: )Merged 0\.5\.(1[78]|2\d)$"
        file.write_text(re.sub(merged, r"\1Pending", file.read_text()))
    for path in series.read(root)[0].unnamed_overlay():
        (root / "overlay" / path).unlink()
    return root


def carry(root: Path) -> Iterator[rebase.Progress]:
    """Rebase onto 0.5.18, each conflict solved as the real variant has it."""
    known, every = pins.load(root), pins.load(ROOT)
    stages = Stages(load_queue(ROOT), every.find(str(NEW)))
    release = find(every, NEW, None)
    progress = rebase.begin(root, known, release, lambda found: None)
    while progress.folder:
        yield progress
        row = progress.found.conflict
        _, solved = stages.of[load_queue(root).base(row.patch)]
        merged = fakes.git(progress.folder, "diff", "--name-only", "HEAD").split()
        for path in set(merged) - solved.keys():  # the real variant leaves it alone
            fakes.git(progress.folder, "checkout", "HEAD", "--", path)
        for path, content in solved.items():
            (progress.folder / path).write_bytes(content)
        progress = rebase.proceed(root, known, NEW)
    yield progress


def test_the_queue_comes_to_0_5_18_as_it_was_carried_by_hand(tmp_path, real_release):
    pristine = {pin.version: real_release(pin) for pin in pins.load(ROOT).all}[NEW]
    root = cut(tmp_path)
    before = {path.name for path in (root / "patches").rglob("*.patch")}
    steps = list(carry(root))
    assert len(steps) > 1, "there is a conflict to solve"
    added = {path.name for path in (root / "patches").rglob("*.patch")} - before
    assert all("@0.5.18" in name for name in added), "variants are for what is other code"
    assert Outcome.MERGED_UPSTREAM in [row.outcome for row in steps[-1].found.rows]
    queue, real = load_queue(root), load_queue(ROOT)
    real = replace(real, entries=tuple(one for one in real.entries if one.base not in LATER))
    made, wanted = queue.select(NEW), real.select(NEW)
    assert [queue.base(patch.name) for patch in made] == [real.base(patch.name) for patch in wanted]
    pairs = [pair for pair in zip(made, wanted) if real.base(pair[1].name) != NARROWED]
    assert len(pairs) == len(wanted) - 1
    assert [edits(mine) for mine, _ in pairs] == [edits(hand) for _, hand in pairs]
    replayed, hand = (Selection(each, pristine.pin).replay(pristine.read) for each in (queue, real))
    assert replayed.problems == () == hand.problems
    changed = {file.path for _, patch in pairs for file in patch.files}
    assert all(replayed.files[path] == hand.files[path] for path in changed)
    assert not (root / "work/rebase-0.5.18").exists()


def planned(tree: Path, pristine: source.Source) -> Selection:
    """A release with the queue's patches beside it, to be pushed."""
    pristine.unpack(tree)
    selection = select(load_queue(ROOT), pristine.pin)
    write_patches(tree, selection.plan(pristine.read, pristine.origin).texts())
    return selection


def test_a_diff_has_the_bytes_that_quilt_refresh_writes(tmp_path, real_release):
    """On 0.5.23, whose queue has files with many equal lines."""
    pin = pins.load(ROOT).all[-1]
    selection = planned(tmp_path, real_release(pin))
    queue, stages = load_queue(ROOT), Stages(load_queue(ROOT), pin)
    while (done := fakes.quilt(tmp_path, "push", "--fuzz=0")).returncode == 0:
        said = done.stdout
        assert b"(offset" not in said and b"fuzz" not in said, "it has the release's own lines"
        fakes.quilt(tmp_path, "refresh", *fakes.QUILT_FORM)
    assert len(selection.patches) > 3
    for patch in selection.patches:
        _, written = split((tmp_path / "patches" / patch.name).read_text())
        assert unified(*stages.of[queue.base(patch.name)]) == written


@pytest.mark.parametrize("pin", pins.load(ROOT).all, ids=lambda pin: pin.tag)
def test_quilt_makes_the_pinned_tree(pin, tmp_path, real_release):
    planned(tmp_path, real_release(pin))
    fakes.quilt(tmp_path, "push", "-a", "--fuzz=0")
    assert hash_python(list_folder(tmp_path)) == pin.patched
