"""What a person does in a work tree comes back to the queue whole, or is refused and kept."""

import shutil

import fakes
import pytest
from fakes import RUNNER, TAG, contents, numbered, unchanged

from patchqueue.applying import worktree
from patchqueue.files.tree import hash_python, list_folder
from patchqueue.outcome import Outcome, Refused

COUNT, CUT = f"patches/{fakes.COUNT}", f"patches/{fakes.CUT}"
TREES, VERSION = "upstream/pins.toml", "python/sglang/version.py"
STEPS, SHORT = "python/sglang/srt/steps/__init__.py", "python/sglang/srt/cut.py"


def paths(written) -> list[str]:
    return [change.path for change in written]


def test_an_edit_comes_back_in_the_patch_that_has_the_file(applied):
    """count-once-more is not the top patch; its file is edited all the same."""
    applied.edit(applied.tree / RUNNER, "added_step = 20", "added_step = 21")
    wanted = hash_python(list_folder(applied.tree))
    with pytest.raises(Refused, match="edited-tree"):
        applied.apply()
    written, report = applied.refresh()
    assert paths(written) == [COUNT, TREES] and report.outcome is Outcome.APPLIED
    assert "+added_step = 21\n" in (applied.root / COUNT).read_text()
    assert hash_python(list_folder(applied.tree)) == wanted == report.record["tree"]["after"]


def test_add_takes_it_into_the_top_patch(applied):
    applied.edit(applied.tree / VERSION, "9.9.1", "9.9.2")
    written, report = applied.refresh(add=True)
    assert paths(written) == [CUT, TREES] and report.outcome is Outcome.APPLIED
    assert '+__version__ = "9.9.2"' in (applied.root / CUT).read_text()
    assert (applied.tree / VERSION).read_text() == '__version__ = "9.9.2"\n'


def test_popped_patches_are_named_and_pushed_first(applied):
    fakes.quilt(applied.tree, "pop")
    applied.edit(applied.tree / RUNNER, "added_step = 20", "added_step = 22")
    problem = fakes.problem_of(applied.refresh)
    assert (problem.name, problem.where) == ("popped-tree", f"work/{TAG}")
    assert fakes.CUT in problem.what and f"`scripts/nox quilt {TAG} push -a`" in problem.hint
    assert "added_step = 22" in (applied.tree / RUNNER).read_text()
    fakes.quilt(applied.tree, "push")
    # as a killed `quilt new` leaves it, which quilt can neither make again nor push
    applied.edit(applied.tree / "patches/series", fakes.CUT, f"{fakes.CUT}\nsteps/begun.patch")
    assert " delete steps/begun.patch`" in fakes.problem_of(applied.refresh).hint
    fakes.quilt(applied.tree, "delete", "steps/begun.patch")
    assert COUNT in paths(applied.refresh()[0])


def without(project, name: str) -> None:
    """Drop a patch from the queue."""
    (project.root / "patches" / name).unlink()
    lines = (project.root / "series").read_text().splitlines(keepends=True)
    project.write("series", "".join(line for line in lines if not line.startswith(name)))


def left_out(project, name: str) -> None:
    """Let the patch's guard leave the release out."""
    project.guards(">=9.9,<10", "==9.9.0")
    project.edit(f"patches/{name}", "Overlay:", "Gap: >9.9: it is another cut there\nOverlay:")


@pytest.mark.parametrize("change", [without, left_out])
def test_a_patch_that_left_the_queue_is_not_written_back(applied, change):
    change(applied, fakes.CUT)
    applied.edit(applied.tree / RUNNER, "added_step = 20", "added_step = 21")
    written, report = applied.refresh()
    assert paths(written) == [COUNT, TREES] and report.outcome is Outcome.APPLIED
    assert "six" not in (applied.tree / SHORT).read_text()


def test_a_dropped_patch_takes_its_overlay_along(applied):
    without(applied, fakes.COUNT)
    (applied.root / "overlay" / STEPS).unlink()
    applied.edit(applied.tree / SHORT, "six = 6", "six = 7")
    assert paths(applied.refresh()[0]) == [CUT, TREES]
    assert not (applied.tree / STEPS).exists()


def test_a_renamed_patch_is_the_same_patch(applied):
    (applied.root / CUT).rename(applied.root / "patches/steps/name-a-cut.patch")
    applied.edit("series", fakes.CUT, "steps/name-a-cut.patch")
    assert applied.refresh()[0] == []
    assert worktree.applied(applied.tree)[-1] == "steps/name-a-cut.patch"


def test_a_header_without_a_diff_stays_in_the_tree(applied, said):
    fakes.quilt(applied.tree, "new", "steps/say-version.patch")
    fakes.write(applied.tree / "patches/steps/say-version.patch", fakes.header())
    assert applied.refresh()[0] == []
    assert "steps/say-version.patch changes nothing yet; it stays in the tree" in said


def in_tree(file: str, text: str):
    return lambda project: (project.tree / file).write_text(text)


def dropped_and_edited(project) -> None:
    without(project, fakes.CUT)
    project.edit(project.tree / SHORT, "six = 6", "six = 7")


def changed_twice(project) -> None:
    project.edit(project.tree / RUNNER, "added_step = 20", "added_step = 21")
    project.edit(project.root / COUNT, "+added_step = 20", "+added_step = 30")


def overlay_changed_twice(project) -> None:
    in_tree(STEPS, '"""Of the tree."""\n')(project)
    project.write(f"overlay/{STEPS}", '"""Of the queue."""\n')


def made_by_somebody_else(project) -> None:
    shutil.rmtree(project.tree)
    project.write(f"work/{TAG}/mine.py", "x = 1\n")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (in_tree(VERSION, "mine = 1\n"), "stray-edits"),
        (in_tree(f"{RUNNER}.rej", "of a failed push\n"), "stray-edits"),
        (in_tree(RUNNER, numbered(40)), "empty-patch"),
        (dropped_and_edited, "changed-twice"),
        (changed_twice, "changed-twice"),
        (overlay_changed_twice, "changed-twice"),
        (made_by_somebody_else, "foreign-tree"),
    ],
)
def test_what_cannot_come_back_is_refused_and_kept(applied, change, name):
    change(applied)
    with unchanged(applied.root / "patches", applied.root / "overlay", applied.tree):
        assert fakes.refused(applied.refresh)[0] == name


def test_a_new_patch_from_start_to_apply(applied, said):
    fakes.quilt(applied.tree, "new", "steps/say-version.patch")
    fakes.quilt(applied.tree, "add", VERSION)
    applied.edit(applied.tree / VERSION, "9.9.1", "9.9.1-mine")
    written, report = applied.refresh()
    assert paths(written) == ["patches/steps/say-version.patch", "series", TREES]
    # the header is a form to fill in
    assert report is None and any("[bad-field]" in line for line in said)
    entry = (applied.root / "series").read_text().splitlines()[-1].split()
    assert entry == ["steps/say-version.patch", "#", ">=9.9.1,<9.9.2"]
    path = applied.root / "patches/steps/say-version.patch"
    diff = path.read_text()[path.read_text().index("--- a/") :]
    path.write_text(f"{fakes.header(Probe=f'{VERSION} :: 9.9.1-mine')}\n{diff}")
    _, report = applied.refresh()
    assert report.outcome is Outcome.APPLIED
    assert "9.9.1-mine" in (applied.tree / VERSION).read_text()
    assert path.read_text().startswith("Subject: Count the steps once more\n")


def test_a_patch_below_popped_ones_goes_there_in_the_series(applied):
    fakes.quilt(applied.tree, "pop")
    fakes.quilt(applied.tree, "new", "steps/in-between.patch")
    fakes.quilt(applied.tree, "add", VERSION)
    applied.edit(applied.tree / VERSION, "9.9.1", "9.9.3")
    fakes.quilt(applied.tree, "push")
    applied.refresh()
    _, *entries = (applied.root / "series").read_text().splitlines()
    names = [entry.split()[0] for entry in entries]
    assert names == [fakes.COUNT, "steps/in-between.patch", fakes.CUT]


@pytest.mark.parametrize("name", ["Steps/X.patch", "alone.patch", "steps/alone", "a/b@1.2.patch"])
def test_a_bad_name_of_a_new_patch_is_refused(applied, name):
    fakes.quilt(applied.tree, "new", name)
    fakes.quilt(applied.tree, "add", VERSION)
    applied.edit(applied.tree / VERSION, "9.9.1", "9.9.3")
    with unchanged(applied.root / "patches", applied.tree):
        assert fakes.refused(applied.refresh)[0] == "bad-path"


def two_releases(project, runner: str) -> None:
    """9.9.3 as well, with this runner and its tree pinned; the cut is not for it."""
    project.release("9.9.3", runner=runner)
    project.warm()
    gap = "Gap: >9.9.2: the cut is another one there\nOverlay: none"
    project.edit(project.root / CUT, "Overlay: none", gap)
    project.refresh("v9.9.3")


def test_an_edit_near_which_another_release_differs_keeps_the_context_that_they_share(applied):
    other = "new = 1\n" + numbered(40).replace("step_29 = 29\n", "step_29 = None\n")
    two_releases(applied, other)
    applied.edit(applied.tree / RUNNER, "step_31 = 31\n", "step_31 = 31\nlate = 1\n")
    written, report = applied.refresh()
    assert paths(written) == [COUNT, TREES] and report.outcome is Outcome.APPLIED
    assert written[0].why == "refreshed, for v9.9.3 too"
    lines = "".join(f" step_{n} = {n}\n" for n in range(30, 35))
    shared = "@@ -30,5 +31,6 @@\n" + lines.replace("= 31\n", "= 31\n+late = 1\n")
    assert (applied.root / COUNT).read_text().endswith(shared)
    assert applied.check().all_problems == ()
    applied.apply(tag="v9.9.3")
    quilts = (applied.root / "work/v9.9.3" / COUNT).read_text()
    assert "@@ -30,6 +31,7 @@\n step_29 = None\n" in quilts, "three lines of the release's own"
    assert applied.refresh()[0] == [] and applied.refresh("v9.9.3")[0] == []


def test_an_overlay_edit_needs_no_release_that_is_not_at_hand(applied, said):
    two_releases(applied, numbered(40))
    shutil.rmtree(applied.cache / "archives" / applied.pins.find("v9.9.3").wheels[0].sha256)
    (applied.tree / STEPS).write_text('"""Steps of our own, more of them."""\n')
    assert paths(applied.refresh()[0]) == [f"overlay/{STEPS}", TREES]
    assert "v9.9.3 is not in the cache, and its tree stays as it was pinned" in said[-1]
    problems = applied.check().all_problems
    assert [problem.name for problem in problems] == ["tree mismatch"]


def test_killed_while_it_writes_it_ends_old_or_new(applied, tmp_path):
    """The renames: the journal (from here on it is new), the variant, the series, the trees, the
    journal away; then work/. 9.9.3, which is pinned too, cannot take the edit."""
    two_releases(applied, numbered(40).replace("step_31 = 31\n", "step_31 = None\n"))
    applied.edit(applied.tree / RUNNER, "step_31 = 31\n", "")
    folders = [applied.root / name for name in ("patches", "upstream", "overlay")]

    def texts() -> dict[str, bytes]:
        return {name: held for folder in folders for name, held in contents(folder).items()}

    before = texts()
    kept = shutil.copytree(applied.root, tmp_path / "kept", symlinks=True)
    for number in range(1, 7):
        shutil.rmtree(applied.root)
        shutil.copytree(kept, applied.root, symlinks=True)
        fakes.kill_at(number, applied.refresh)
        problems, after = applied.check().all_problems, texts()
        assert problems == () and (after == before) is (number == 1), f"rename {number}"
        assert not [name for name in after if name.endswith(".new")], "nothing is left over"
        applied.refresh()
        variant = "steps/count-once-more@9.9.1.patch"
        assert (applied.root / "patches" / variant).is_file()
        entries = f"{fakes.COUNT}  # >=9.9,<10,!=9.9.1.*\n{variant} # ==9.9.1.*\n"
        assert entries in (applied.root / "series").read_text()
        assert applied.check().all_problems == ()


def test_an_edit_that_breaks_another_release_is_refused_and_nothing_is_written(applied):
    """A second patch of 9.9.3 alone stands on the line that the edit takes away."""
    two_releases(applied, numbered(40))
    before = fakes.added(numbered(40))
    after = before.replace("added_step = 20\n", "added_step = 20\ntwice = 1\n")
    fields = {"Probe": f"{RUNNER} :: twice", "Gap": "<9.9.2: not needed: there"}
    text = fakes.patch_text(before=before, after=after, **fields)
    applied.write("patches/steps/count-twice.patch", text)
    with open(applied.root / "series", "a") as file:
        file.write("steps/count-twice.patch  # >=9.9.2,<10\n")
    applied.refresh("v9.9.3")
    applied.edit(applied.tree / RUNNER, "added_step = 20", "added_step = 21")
    folders = [applied.root / name for name in ("patches", "upstream", "series")]
    with unchanged(*folders):
        assert fakes.refused(applied.refresh)[0] == "conflict"
    assert "added_step = 21" in (applied.tree / RUNNER).read_text()


@pytest.mark.parametrize("first", [17, 18])
def test_an_insertion_that_can_begin_at_two_places_stays_where_it_is(project, first):
    """Diff programs choose differently between two equal lines; neither choice is an edit."""
    lines = [f" step_{number} = {number}\n" for number in range(first, first + 6)]
    added = ["+step_20 = 20\n", "+added_step = 20\n"]
    hunk = "".join([*lines[:3], *(added if first == 17 else reversed(added)), *lines[3:]])
    head = fakes.header(Overlay="python/sglang/srt/steps/")
    start = f"--- a/{RUNNER}\n+++ b/{RUNNER}\n@@ -{first},6 +{first},8 @@\n"
    text = f"{head}\n{start}{hunk}"
    project.write(COUNT, text)
    project.place()
    project.apply()
    assert project.refresh()[0] == [] and (project.root / COUNT).read_text() == text
    project.edit(project.tree / RUNNER, "added_step = 20", "added_step = 21")
    assert paths(project.refresh()[0]) == [COUNT, TREES]
    assert "added_step = 21" in (project.root / COUNT).read_text()


def test_a_queue_that_moved_on_is_no_edit(applied):
    """The queue's other patch changed meanwhile: the tree is only older there, and gets it."""
    (applied.tree / STEPS).write_text('"""Mine."""\n')
    applied.edit(applied.root / CUT, "+six = 6", "+six = 66")
    written, report = applied.refresh()
    assert paths(written) == [f"overlay/{STEPS}", TREES] and report.outcome is Outcome.APPLIED
    assert (applied.tree / "python/sglang/srt/cut.py").read_text().endswith("six = 66")


def test_a_tree_that_is_made_anew_is_named(applied, tool):
    shutil.rmtree(applied.tree)
    assert f"; work/{TAG} was made from it\n" in tool(applied, "refresh", TAG)[1]
