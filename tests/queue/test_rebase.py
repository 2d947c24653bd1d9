"""What the queue does on another release, and how it is carried there, conflict by conflict."""

import itertools
import re
import shutil
import zipfile
from pathlib import Path

import fakes
import pytest
from fakes import COUNT, CUT, unchanged
from packaging.version import Version

from patchqueue import commands as cli
from patchqueue.applying.apply import load_queue
from patchqueue.handover.forecast import Forecast, forecast
from patchqueue.handover.repository import Repository
from patchqueue.outcome import Outcome
from patchqueue.upstream import pins
from patchqueue.upstream.release import find

NEXT = "9.9.2"
REBASED = f"work/rebase-{NEXT}"


def foresee(project: fakes.Project, name: str, origin: Path | None = None) -> Forecast:
    known = project.pins
    release = find(known, pins.version(name), origin)
    return forecast(load_queue(project.root), known, release)


def rows(project: fakes.Project) -> dict[str, tuple[Outcome, str]]:
    found = foresee(project, NEXT, project.wheels)
    assert found.nearest.tag == fakes.TAG
    return {row.patch: (row.outcome, row.why) for row in found.rows}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (
            fakes.numbered(40, "other"),
            ": hunk 1: line 18 reads 'other_18 = 18'; the queue's patch",
        ),
        ("# new\n" + 2 * fakes.numbered(40), ": hunk 1: its text is at 2 places"),
        (None, ": upstream has no such file there"),
    ],
    ids=["rewritten", "twice", "gone"],
)
def test_what_cannot_be_laid_is_a_conflict_that_says_where(project, content, why):
    project.newer(runner=content)
    outcome, said = rows(project)[COUNT]
    assert outcome is Outcome.CONFLICT and said.startswith(fakes.RUNNER + why)
    assert rows(project)[CUT][0] is Outcome.APPLIED, "the others are tried all the same"


@pytest.mark.parametrize(
    ("name", "origin", "code"),
    [
        ("next", None, "unknown-release"),
        ("9.9.1", None, "too-old"),
        ("9.9.3", None, "not-fetched"),
        ("9.9.3", Path("bad.whl"), "bad-archive"),
        ("9.9.3", Path("gone.whl"), "not-fetched"),
    ],
)
def test_what_is_refused(project, monkeypatch, tmp_path, name, origin, code):
    monkeypatch.chdir(tmp_path)
    Path("bad.whl").write_text("no archive")
    assert fakes.refused(foresee, project, name, origin)[0] == code


def test_each_new_release_is_reported(project, tool):
    """No prerelease is."""
    code, out, _ = tool(project, "rebase", "--newer")
    assert (code, out) == (0, f"no release is newer than {fakes.TAG}, the newest pin\n")
    project.newer(NEXT, runner=fakes.numbered(40, "_other_"))
    for version in ("9.9.0", "9.9.3rc1", "10.0"):
        project.newer(version)
    code, out, _ = tool(project, "rebase", "--newer")
    assert code == 0
    named = [line.split()[1] for line in out.splitlines() if line.startswith("sglang ")]
    assert named == [f"{NEXT},", "10.0,"]
    counts = "1 as they are, 0 to refresh, 0 merged upstream, 1 in conflict"
    assert f"sglang {NEXT}, with the patches of {fakes.TAG}: {counts}\n" in out
    assert "steps/count-once-more: python/sglang/srt/runner.py: hunk 1: line " in out
    assert out.splitlines()[-1].startswith(f"next: `scripts/nox rebase {NEXT}`")


# Carrying the queue there. RIVAL conflicts with count-once-more: the line that the patch stands
# beside is another one.

RIVAL = fakes.numbered(40).replace("step_20 = 20\n", "step_20 = 200\n")
SOLVED = RIVAL.replace("step_20 = 200\n", "step_20 = 200\nadded_step = 200\n")
VARIANT = "patches/steps/count-once-more@9.9.2.patch"


def run(project: fakes.Project, *words: str) -> int:
    """Run `rebase`. A rebase begins with the test's wheel, without the second that pip takes."""
    origin = ["--from", str(project.wheels)] if words == (NEXT,) else []
    return cli.main(["--root", str(project.root), "rebase", *words, *origin])


def refused(project: fakes.Project, capsys, *words: str) -> str:
    """What a command says that is refused, and writes nothing to the queue."""
    before = queue_of(project)
    capsys.readouterr()
    assert run(project, *words) == 1
    assert queue_of(project) == before
    return capsys.readouterr().err


def queue_of(project: fakes.Project) -> dict[str, bytes]:
    places = [project.root / name for name in ("patches", "series", "overlay", "upstream")]
    files = [path for place in places for path in [place, *place.rglob("*")] if path.is_file()]
    return {path.relative_to(project.root).as_posix(): path.read_bytes() for path in files}


def guards_of(project: fakes.Project) -> dict[str, str]:
    return {entry.name: entry.text for entry in load_queue(project.root).entries}


def begun(project: fakes.Project, **changes: str | None) -> Path:
    """The throw-away repository of a rebase onto a release with these changes."""
    project.newer(**changes)
    assert run(project, NEXT) == 0
    return project.root / REBASED


@pytest.fixture
def conflict(project) -> Path:
    """The throw-away repository with count-once-more in conflict."""
    return begun(project, runner=RIVAL)


def applies(project: fakes.Project, **changes: str) -> None:
    """Pinned, the release takes the queue, by quilt too, and refresh writes no other patch."""
    project.release(NEXT, **changes)
    project.warm()
    assert project.apply(tag=NEXT).outcome in (Outcome.APPLIED, Outcome.EMPTY)
    written, _ = project.refresh(NEXT)
    assert {change.path for change in written} <= {"upstream/pins.toml"}, "its tree alone"
    assert project.apply().outcome is Outcome.APPLIED, "the old pin has what it had"


def test_a_conflict_is_laid_out_in_a_repository_of_its_own(project):
    fakes.git(project.root, "init", "-q")  # the project is a checkout itself, as it always is
    before = queue_of(project)
    folder = begun(project, runner=RIVAL)
    theirs = r"<<<<<<< .*\nstep_20 = 200\n\|{7} .*\nstep_20 = 20\n"
    ours = r"=======\nstep_20 = 20\nadded_step = 20\n>>>>>>> "
    assert re.search(theirs + ours, (folder / fakes.RUNNER).read_text())
    assert fakes.git(folder, "tag").split() == ["v9.9.1", "v9.9.2"]
    assert "+step_20 = 200" in fakes.git(folder, "diff", "v9.9.1", "v9.9.2", "--", fakes.RUNNER)
    subjects = fakes.git(folder, "log", "--format=%s", "v9.9.1..queue-on-v9.9.1").splitlines()
    assert subjects[:2] == 2 * ["Count the steps once more"]
    assert fakes.git(folder, "diff", "--name-only", "--diff-filter=U") == f"{fakes.RUNNER}\n"
    overlay = folder / "python/sglang/srt/steps/__init__.py"
    assert overlay.is_file(), "the overlay is there to be read"
    assert fakes.git(project.root, "ls-files") == "" and queue_of(project) == before


@pytest.mark.parametrize("how", ["edited", "added", "committed"])
def test_what_is_solved_becomes_a_variant_with_its_guard(project, conflict, capsys, how):
    (conflict / fakes.RUNNER).write_text(SOLVED)
    for left in (f"{fakes.RUNNER}.orig", fakes.RUNNER.replace(".py", "_BASE_12.py"), "notes.txt"):
        (conflict / left).write_text("left by a merge tool")
    if how != "edited":
        fakes.git(conflict, "add", "-A")
    if how == "committed":
        fakes.git(conflict, "commit", "-q", "-m", "solved")
    assert run(project, NEXT, "--continue") == 0
    change = fakes.diff(fakes.RUNNER, RIVAL, SOLVED)
    assert (project.root / VARIANT).read_text() == f"Variant-Of: {COUNT}\n\n{change}"
    assert guards_of(project) == {
        COUNT: ">=9.9,<9.9.2",
        "steps/count-once-more@9.9.2.patch": ">=9.9.2,<10",
        CUT: ">=9.9.1,<9.9.3",
    }
    assert "Next: `scripts/nox pin 9.9.2`" in capsys.readouterr().out
    assert not conflict.exists()
    applies(project, runner=RIVAL)


def test_markers_that_are_left_are_named_by_file_and_line(project, conflict, capsys):
    said = refused(project, capsys, NEXT, "--continue")
    assert f"{REBASED}/{fakes.RUNNER}:20: " in said and "[markers-left]" in said
    text = (conflict / fakes.RUNNER).read_text()
    (conflict / fakes.RUNNER).write_text(re.sub(r"<<<<<<<.*?=======\n", "", text, flags=re.DOTALL))
    assert f"{fakes.RUNNER}:22: " in refused(project, capsys, NEXT, "--continue")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda file: file.write_text(RIVAL), "empty-patch"),
        (lambda file: file.unlink(), "new-or-deleted-file"),
        (lambda file: file.with_name("more.py").write_text(""), "new-or-deleted-file"),
        (lambda file: (file.unlink(), file.symlink_to("page.py")), "new-or-deleted-file"),
        (lambda file: file.write_bytes(SOLVED.replace("\n", "\r\n").encode()), "crlf"),
        (lambda file: file.write_bytes(b"\xff" + SOLVED.encode()), "not-utf-8"),
    ],
    ids=["nothing", "deleted", "new", "link", "crlf", "bytes"],
)
def test_what_no_patch_can_be_is_refused(project, conflict, capsys, change, code):
    change(conflict / fakes.RUNNER)
    assert f"[{code}]" in refused(project, capsys, NEXT, "--continue")
    assert conflict.is_dir()


def test_a_broken_repository_never_reaches_the_one_around_it(project, conflict, capsys):
    fakes.git(project.root, "init", "-q")
    fakes.git(project.root, "add", "series")
    fakes.git(project.root, "commit", "-q", "-m", "series")
    project.edit("series", "# order", "# an edit of mine")
    # so that it is to be laid out anew
    project.edit("overlay/python/sglang/srt/steps/__init__.py", "our own", "ours")
    (conflict / ".git/HEAD").unlink()
    assert "[git-failed]" in refused(project, capsys, NEXT)
    shutil.rmtree(conflict)
    assert run(project, NEXT) == 0


def test_where_nothing_conflicts_continue_writes_all_at_once(project, capsys):
    """A text that stands at another line there stays one text: the guard takes the release."""
    moved = "# new\n" + fakes.numbered(40)
    begun(project, runner=moved)
    assert "No patch conflicts: `scripts/nox rebase 9.9.2 --continue`" in capsys.readouterr().out
    with unchanged(project.root / "patches"):
        assert run(project, NEXT, "--continue") == 0
        assert "series: guards\nNo conflict is left on 9.9.2. " in capsys.readouterr().out
        assert guards_of(project)[COUNT] == ">=9.9,<10"
    applies(project, runner=moved)
    assert project.check().all_problems == ()
    assert not (project.root / REBASED).exists()
    assert run(project, NEXT) == run(project, NEXT, "--continue") == 0
    assert "nothing to write" in capsys.readouterr().out


def test_a_change_that_git_merges_is_written_and_said_so(project, capsys):
    """The line above the patch's own is another one, which exact context does not forgive."""
    near = fakes.numbered(40).replace("step_18 = 18\n", "step_18 = 180\n")
    project.newer(runner=near)
    assert rows(project)[COUNT] == (Outcome.NEEDS_REFRESH, "git merges it")
    assert run(project, NEXT) == 0
    assert "steps/count-once-more: merged without markers" in capsys.readouterr().out
    assert run(project, NEXT, "--continue") == 0
    assert f"patches/{COUNT}: for 9.9.2 too, with the context" in capsys.readouterr().out
    assert "@@ -19,5 +19,6 @@\n step_19 = 19\n" in (project.root / "patches" / COUNT).read_text()
    assert guards_of(project)[COUNT] == ">=9.9,<10"
    applies(project, runner=near)
    assert project.check().all_problems == ()


def test_what_would_stand_at_two_places_of_an_older_release_becomes_a_variant(project):
    """Only lines farther off tell the two places of 9.9.1 apart: others in the release."""
    blocks = [f"{name} = 1\nx = 1\ny = 1\nz = 1\n{name}_end = 1\n" for name in ("a", "b", "c")]
    twice = "".join(blocks)
    change = ("b = 1\nx = 1\ny = 1\n", "b = 1\nx = 1\nadded_step = 1\ny = 1\n")
    (project.root / "upstream/pins.toml").unlink()
    project.release(files=fakes.RELEASE | {"sglang/srt/runner.py": twice})
    after, overlay = twice.replace(*change), "python/sglang/srt/steps/"
    project.write(f"patches/{COUNT}", fakes.patch_text(before=twice, after=after, Overlay=overlay))
    project.place()
    near = twice.replace("a_end = 1\nb = 1\n", "a_end = 2\nb = 2\n")
    near = near.replace("b_end = 1\n", "b_end = 2\n")
    folder = begun(project, runner=near)
    if rows(project)[COUNT][0] is Outcome.CONFLICT:
        solved = near.replace("b = 2\nx = 1\n", "b = 2\nx = 1\nadded_step = 1\n")
        (folder / fakes.RUNNER).write_text(solved)
    assert run(project, NEXT, "--continue") == 0
    assert (project.root / VARIANT).is_file() and guards_of(project)[COUNT] == ">=9.9,<9.9.2"
    applies(project, runner=near)


@pytest.mark.parametrize(
    ("guard", "left", "status", "becomes"),
    [
        ("==9.9.1", "==9.9.1", "Pending", "Merged 9.9.2"),
        (">=9.9", ">=9.9,<9.9.2", "Merged 9.9.5, sglang#7", "Merged 9.9.2, sglang#7"),
        (">=9.9", ">=9.9,<9.9.2", "Inappropriate: for the old", "Inappropriate: for the old"),
    ],
)
def test_merged_upstream_ends_the_guard_and_says_since_when(project, guard, left, status, becomes):
    merged = fakes.RELEASE["sglang/srt/cut.py"] + "\nsix = 6"
    project.edit("series", "==9.9.1", guard)
    project.edit(f"patches/{CUT}", "Upstream-Status: Pending", f"Upstream-Status: {status}")
    project.newer(cut=merged)
    assert rows(project)[CUT] == (Outcome.MERGED_UPSTREAM, "")
    assert run(project, NEXT) == run(project, NEXT, "--continue") == 0
    assert guards_of(project)[CUT] == left
    assert load_queue(project.root).patches[CUT].header.get("Upstream-Status") == becomes
    applies(project, cut=merged)


def test_a_patch_can_be_left_out_with_a_reason(project, conflict, capsys):
    reason = "nobody counts there: the runner does"
    project.edit(f"patches/{COUNT}", "Overlay:", f"Gap: >=9.9.2: {reason}\nOverlay:")
    project.edit("series", ">=9.9,<10", ">=9.9,<9.9.2")
    assert run(project, NEXT, "--continue") == 0 and not conflict.exists()
    found = rows(project)
    assert found == {COUNT: (Outcome.NOT_SELECTED, reason), CUT: (Outcome.APPLIED, "")}
    assert run(project, NEXT) == 0
    assert "0 in conflict, 1 left out" in capsys.readouterr().out
    applies(project, runner=RIVAL)
    assert cli.main(["--root", str(project.root), "check"]) == 0


def test_code_that_has_moved_takes_its_change_along(project, capsys):
    """The file is gone, and must not come back; its code is in another one now."""
    folder = begun(project, runner=None, page=RIVAL)
    assert f"{fakes.RUNNER}:1: changed by the patch, and gone" in capsys.readouterr().out
    assert "[new-or-deleted-file]" in refused(project, capsys, NEXT, "--continue")
    (folder / "python/sglang/srt/page.py").write_text(SOLVED)
    (folder / fakes.RUNNER).unlink(missing_ok=True)
    assert run(project, NEXT, "--continue") == 0
    files = load_queue(project.root).patches["steps/count-once-more@9.9.2.patch"].files
    assert [file.path for file in files] == ["python/sglang/srt/page.py"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "which release?"),
        (["--continue"], "which release?"),
        ([NEXT, "--continue"], "no rebase is under way"),
        (["next", "--continue"], "this is not a version"),
        *(([NEXT, *more], "[foreign-tree]") for more in ([], ["--continue"])),
    ],
)
def test_nothing_to_go_on_with_is_said(project, capsys, words, what):
    project.newer(runner=RIVAL)
    if "foreign" in what:
        mine = project.write(f"{REBASED}/notes", "mine")
    assert what in refused(project, capsys, *words)
    assert "foreign" not in what or mine.read_text() == "mine"


def test_edits_are_kept_where_the_queue_moved_on_below_them(project, conflict, capsys):
    (conflict / fakes.RUNNER).write_text(SOLVED)
    project.edit("overlay/python/sglang/srt/steps/__init__.py", "our own", "ours")
    for words in ([NEXT, "--continue"], [NEXT]):
        assert "[stale-rebase]" in refused(project, capsys, *words)
    assert (conflict / fakes.RUNNER).read_text() == SOLVED
    shutil.rmtree(conflict)
    assert run(project, NEXT) == 0
    assert "ours" in (conflict / "python/sglang/srt/steps/__init__.py").read_text()


@pytest.mark.parametrize("number", range(1, 7))
def test_killed_while_it_writes_the_queue_ends_old_or_new(project, conflict, number, monkeypatch):
    """The renames: the journal (from here on it is new), the variant, the series, journal and
    repository away. Any other command finishes what a killed one had made good."""
    (conflict / fakes.RUNNER).write_text(SOLVED)
    before = queue_of(project)
    with monkeypatch.context() as patch:
        fakes.killed_at(number, patch)
        assert run(project, NEXT, "--continue") == (0 if number == 6 else 130)
    if number == 1:
        assert queue_of(project) == before
    code = run(project, NEXT, "--continue")
    assert code == (1 if number == 6 else 0), "after the last, all is done"
    assert load_queue(project.root)
    change = fakes.diff(fakes.RUNNER, RIVAL, SOLVED)
    assert (project.root / VARIANT).read_text().endswith(change) and not conflict.exists()
    assert guards_of(project)["steps/count-once-more@9.9.2.patch"] == ">=9.9.2,<10"
    assert len(queue_of(project)) == len(before) + 1, "nothing is left over"


@pytest.mark.parametrize("number", [0, 1, 3, 6, 9, 12])
def test_killed_while_a_conflict_is_laid_out_starts_again(project, number, monkeypatch):
    """At the rename that says what the repository is about, and at some of git's commands."""
    project.newer(runner=RIVAL)
    with monkeypatch.context() as patch:
        if number:
            git, calls = Repository.git, itertools.count(1)

            def dying(*words, **options):
                return fakes.interrupt() if next(calls) == number else git(*words, **options)

            patch.setattr(Repository, "git", dying)
        else:
            fakes.killed_at(1, patch)
        assert run(project, NEXT) == 130
    assert run(project, NEXT) == 0
    file = project.root / REBASED / fakes.RUNNER
    assert "|||||||" in file.read_text()
    file.write_text(SOLVED)
    assert run(project, NEXT, "--continue") == 0


@pytest.mark.parametrize("number", [0, 5])
def test_conflicts_come_one_at_a_time_each_on_the_solution_of_the_last(
    project, capsys, monkeypatch, number
):
    """count-twice changes the line that count-once-more adds. Killed at the fifth rename, which
    says what the repository is about, the next conflict is laid out again."""
    before = fakes.added(fakes.numbered(40))
    after = before.replace("added_step = 20", "added_step = 2")
    text = fakes.patch_text(before=before, after=after, Probe=f"{fakes.RUNNER} :: added_step = 2 #")
    project.write("patches/steps/count-twice.patch", text)
    project.edit("series", CUT, f"steps/count-twice.patch  # >=9.9\n{CUT}")
    folder = begun(project, runner=RIVAL)
    (folder / fakes.RUNNER).write_text(SOLVED)
    with monkeypatch.context() as patch:
        fakes.killed_at(number, patch)
        assert run(project, NEXT, "--continue") == (130 if number else 0)
    assert list(guards_of(project).items())[:3] == [
        (COUNT, ">=9.9,<9.9.2"),
        ("steps/count-once-more@9.9.2.patch", ">=9.9.2,<10"),
        ("steps/count-twice.patch", ">=9.9"),
    ]
    assert run(project, NEXT) == 0
    assert fakes.git(folder, "show", f"HEAD:{fakes.RUNNER}") == SOLVED
    assert "added_step = 200\n|||||||" in (folder / fakes.RUNNER).read_text()
    (folder / fakes.RUNNER).write_text(SOLVED.replace("added_step = 200", "added_step = 2"))
    assert run(project, NEXT, "--continue") == 0
    guards, twice = guards_of(project), "steps/count-twice"
    found = (guards[f"{twice}.patch"], guards[f"{twice}@9.9.2.patch"])
    assert found == (">=9.9,<9.9.2", ">=9.9.2")
    applies(project, runner=RIVAL)


def test_a_queue_that_would_be_wrong_is_not_written(project, conflict, capsys, monkeypatch):
    """Whatever the plan got wrong: an overlap, another pin's patches, other bytes."""
    (conflict / fakes.RUNNER).write_text(SOLVED)
    other = SOLVED.replace("added_step = 200", "added_step = 3")
    change = fakes.diff(fakes.RUNNER, RIVAL, other)
    unified = "patchqueue.handover.rebase.unified"
    for name, result, said in (
        ("patchqueue.queue.edit.split", (">=9.9,<10", ">=9.9.2,<10"), "[overlapping-variants]"),
        ("patchqueue.queue.edit.split", (">=9.9.2,<9.9.3", ">=9.9.4"), "v9.9.1 would get other"),
        (unified, change, "[not-proved]"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, lambda *_, result=result: result)
            assert said in refused(project, capsys, NEXT, "--continue")


@pytest.fixture
def checkout(project, tmp_path) -> Path:
    """A checkout of sglang in which upstream changed what the first patch changes."""
    made = project.checkout(tmp_path / "sglang", None)
    (made / fakes.RUNNER).write_text(RIVAL)
    fakes.git(made, "commit", "-qam", "more")
    return made


def test_a_checkout_is_taken_as_it_stands(project, checkout, capsys):
    assert run(project, NEXT, "--from", str(checkout)) == 0
    said = capsys.readouterr().err
    assert f"sglang {NEXT} from {checkout}: its files as they stand\n" in said
    (project.root / REBASED / fakes.RUNNER).write_text(SOLVED)
    shutil.rmtree(checkout)
    assert run(project, NEXT, "--continue") == 0, "the repository holds all that it needs"
    applies(project, runner=RIVAL)


def test_a_release_that_is_pinned_under_way_as_another_tree_is_refused(project, checkout, capsys):
    assert run(project, NEXT, "--from", str(checkout)) == 0
    (project.root / REBASED / fakes.RUNNER).write_text(SOLVED)
    project.release(NEXT)
    said = refused(project, capsys, NEXT, "--continue")
    assert "[tree mismatch]" in said and f"delete {REBASED}, then" in said


def test_an_unpacked_wheel_is_taken_like_the_wheel(project, tmp_path, capsys):
    wheel, unpacked = project.newer(runner=RIVAL), tmp_path / "unpacked"
    zipfile.ZipFile(wheel).extractall(unpacked)
    known, version = project.pins, Version(NEXT)
    taken, packed = (find(known, version, origin) for origin in (unpacked, wheel))
    assert taken.files == packed.files
    (tmp_path / "home/sglang/python/sglang").mkdir(parents=True)  # a checkout in the folder
    said = refused(project, capsys, NEXT, "--from", str(tmp_path / "home"))
    assert "holds no python/sglang and no sglang/srt" in said and "next: name a checkout" in said


def test_an_overlay_file_that_the_release_has_itself_is_refused(project, capsys):
    files = {**fakes.release_of(NEXT), "sglang/srt/steps/__init__.py": "theirs = 1\n"}
    fakes.write_wheel(project.wheels / f"sglang-{NEXT}-py3-none-any.whl", files)
    assert "[overlay-shadows-upstream]" in refused(project, capsys, NEXT)


def test_what_has_no_conflict_is_continued_without_the_release(project, tmp_path):
    """The repository holds all that it needs, here too."""
    checkout = project.checkout(tmp_path / "my sglang", f"v{NEXT}")
    assert run(project, NEXT, "--from", str(checkout)) == 0
    shutil.rmtree(checkout)
    assert run(project, NEXT, "--continue") == 0
    assert guards_of(project)[COUNT] == ">=9.9,<10"
