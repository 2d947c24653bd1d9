"""What the queue would do on a release that is not pinned."""

from __future__ import annotations

from pathlib import Path

import fakes
import pytest
from patchqueue import cli, pins
from patchqueue.apply import load_queue
from patchqueue.forecast import forecast, newer
from patchqueue.outcome import Outcome, Refused

NEXT = "9.9.2"
COUNT, CUT = "steps/count-once-more.patch", "steps/name-the-cut.patch"


def next_release(project: fakes.Project, **changes: str | None) -> Path:
    """A wheel of the next release, where pip finds it; changes: files of sglang/srt/ by their stem, None where one is gone."""
    files = fakes.release_of(NEXT)
    for stem, content in changes.items():
        files[f"sglang/srt/{stem}.py"] = content
    return fakes.write_wheel(project.wheels / f"sglang-{NEXT}-py3-none-any.whl", {name: text for name, text in files.items() if text is not None})


def rows(project: fakes.Project, origin: Path | None = None) -> dict[str, tuple[Outcome, str]]:
    found = forecast(load_queue(project.root), pins.load(project.root), NEXT, str(origin) if origin else None, project.said.append)
    assert found.nearest.tag == fakes.TAG
    return {row.patch: (row.outcome, row.why) for row in found.rows}


def test_an_equal_tree_takes_every_patch(project):
    next_release(project)
    assert rows(project) == {COUNT: (Outcome.APPLIED, ""), CUT: (Outcome.APPLIED, "")}


def test_text_that_moved_is_found_at_its_one_place(project):
    next_release(project, runner="# new\n" + fakes.numbered(40))
    assert rows(project)[COUNT] == (Outcome.NEEDS_REFRESH, "1 hunk moved")


def test_what_builds_on_a_patch_that_moved_is_judged_on_top_of_it(project):
    """A second patch changes the line that the first one adds."""
    before = fakes.numbered(40)
    after = before.replace("step_20 = 20\n", "step_20 = 20\nstep_more = 1\n")
    project.write(f"patches/{COUNT}", fakes.patch_text(before=before, after=after, Overlay="python/sglang/srt/steps/"))
    project.write("patches/steps/count-twice.patch", fakes.patch_text(before=after, after=after.replace("more = 1", "more = 2"), Probe="python/sglang/srt/runner.py :: more = 2"))
    project.edit("series", CUT, f"steps/count-twice.patch  # >=9.9,<10\n{CUT}")
    next_release(project, runner="# new\n" + before)
    found = rows(project)
    assert found[COUNT][0] is found["steps/count-twice.patch"][0] is Outcome.NEEDS_REFRESH


def test_a_change_that_the_release_has_is_merged_upstream(project):
    next_release(project, cut=fakes.RELEASE["sglang/srt/cut.py"] + "\nsix = 6")
    assert rows(project)[CUT] == (Outcome.MERGED_UPSTREAM, "")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (fakes.numbered(40, "other"), "python/sglang/srt/runner.py: hunk 1 fits nowhere; it begins "),
        ("# new\n" + 2 * fakes.numbered(40), "python/sglang/srt/runner.py: hunk 1 fits at 2 places"),
        (None, "python/sglang/srt/runner.py is gone"),
    ],
    ids=["rewritten", "twice", "gone"],
)
def test_what_cannot_be_laid_is_a_conflict_that_says_where(project, content, why):
    next_release(project, runner=content)
    outcome, said = rows(project)[COUNT]
    assert outcome is Outcome.CONFLICT and said.startswith(why)
    assert rows(project)[CUT][0] is Outcome.APPLIED, "the others are tried all the same"


def test_a_wheel_and_a_checkout_can_be_named(project, tmp_path):
    wheel = next_release(project)
    elsewhere = wheel.rename(tmp_path / wheel.name)
    assert rows(project, elsewhere)[COUNT][0] is Outcome.APPLIED
    assert rows(project, project.checkout(tmp_path / "checkout"))[COUNT][0] is Outcome.APPLIED


def test_nothing_is_written(project):
    next_release(project)
    before = fakes.snapshot(project.root)
    rows(project)
    assert fakes.snapshot(project.root) == before


@pytest.mark.parametrize(
    ("name", "origin", "code"),
    [("next", None, "unknown-revision"), ("9.9.1", None, "pinned-already"), ("9.9.0", None, "too-old"), ("9.9.3", None, "not-fetched"), ("9.9.3", ".", "not-fetched"),
     ("9.9.3", "missing.whl", "not-fetched"), ("9.9.3", "bad.whl", "bad-archive")],
)  # fmt: skip
def test_what_is_refused(project, monkeypatch, tmp_path, name, origin, code):
    monkeypatch.chdir(tmp_path)
    Path("bad.whl").write_text("no archive")
    with pytest.raises(Refused) as refused:
        forecast(load_queue(project.root), pins.load(project.root), name, origin, project.said.append)
    assert [problem.name for problem in refused.value.problems] == [code]


def test_the_command_prints_a_table_and_counts(project, capsys):
    next_release(project, runner=fakes.numbered(40, "other"))
    assert cli.main(["--root", str(project.root), "rebase", NEXT]) == 0
    said = capsys.readouterr().out
    assert "steps/name-the-cut" in said and "steps/count-once-more: python/sglang/srt/runner.py: hunk 1 fits nowhere" in said
    assert f"sglang {NEXT}, with what {fakes.TAG} gets: 1 as they are, 0 at other lines, 0 merged upstream, 1 in conflict" in said
    with pytest.raises(SystemExit):
        cli.main(["--root", str(project.root), "rebase"])


def test_the_watch_tells_of_newer_releases_only(project, capsys):
    assert cli.main(["--root", str(project.root), "watch"]) == 0
    assert capsys.readouterr().out == f"no release is newer than {fakes.TAG}, the newest pin\n"
    next_release(project)
    for name in ("9.9.0", "9.9.3rc1", "10.0"):
        fakes.write_wheel(project.wheels / f"sglang-{name}-py3-none-any.whl", fakes.release_of(name))
    assert [str(version) for version in newer(pins.load(project.root))] == [NEXT, "10.0"]
    assert cli.main(["--root", str(project.root), "watch"]) == 0
    said = capsys.readouterr().out
    assert said.index(f"sglang {NEXT}, with what") < said.index("sglang 10.0, with what")


def test_an_index_that_does_not_answer_is_said(project, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(project.root / "nowhere"))
    with pytest.raises(Refused, match="the versions of sglang"):
        newer(pins.load(project.root))
