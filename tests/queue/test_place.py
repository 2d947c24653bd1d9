"""Where a text stands: one place or none; the text that releases share, and what each of them makes
of it; quilt agrees.
"""

from __future__ import annotations

import fakes
import pytest
from fakes import COUNT, CUT, RUNNER, diff, numbered
from hypothesis import assume, given
from hypothesis import strategies as st

from patchqueue.applying import context, matching, quilt
from patchqueue.applying.apply import apply
from patchqueue.applying.check import check
from patchqueue.applying.refresh import refresh
from patchqueue.outcome import Outcome
from patchqueue.queue import patchfile
from patchqueue.queue.header import Header
from patchqueue.upstream import pins, source

BASE = numbered(40)
SHORT = "9.9.3"  # lacks the first ten lines, and has another 18th


def patch(before: str, after: str) -> patchfile.Patch:
    text = diff(RUNNER, before, after)
    return patchfile.Patch("a/b.patch", text.encode(), Header(()), patchfile.parse_diff(text))


def added(text: str, at: int = 20) -> str:
    return text.replace(f"step_{at} = {at}\n", f"step_{at} = {at}\nadded_step = {at}\n")


def test_text_that_overlaps_itself_stands_at_every_line_where_it_begins():
    text, wanted = "x\nx\nx\n", "x\nx\n"
    assert matching.places(text, wanted) == [1, 2]
    row = matching.apply_patch(patch(wanted, "x\nnew\nx\n"), {RUNNER: text.encode()}.get)
    assert (row.outcome, row.ambiguous) == (Outcome.CONFLICT, True)


def test_a_line_ends_at_a_line_feed_alone():
    lines = ["a\r b\n", "\f\n", "c\x0bd\x1ce\u2028f\n", "end\r"]
    assert matching.split_lines("".join(lines)) == lines


@st.composite
def releases(draw) -> tuple[list[str], list[str]]:
    """One change as several releases have it: what they are before and after. Other lines are other
    in each.
    """
    count = draw(st.integers(2, 4))
    lines = [f"line {n}\n" for n in range(draw(st.integers(10, 25)))]
    spots = sorted(draw(st.sets(st.integers(0, len(lines) - 1), min_size=1, max_size=3)))
    removes = [draw(st.booleans()) for _ in spots]
    befores, afters = [], []
    for number in range(count):
        own = {
            n: f"other {number} {n}\n" * draw(st.integers(0, 2))
            for n in draw(st.sets(st.integers(0, len(lines) - 1), max_size=4))
            if n not in spots
        }
        before = ["".join(f"top {number} {n}\n" for n in range(draw(st.integers(0, 4))))]
        after = list(before)
        for n, line in enumerate(lines):
            old = own.get(n, line)
            before.append(old)
            after.append(
                old
                if n not in spots
                else (f"new {n}\n" if removes[spots.index(n)] else f"{old}new {n}\n")
            )
        befores.append("".join(before))
        afters.append("".join(after))
    return befores, afters


@given(releases())
def test_what_releases_share_makes_of_each_what_its_own_text_makes(versions):
    """The shared text stands at one place of each, and widened there it is that release's own text
    again, byte for byte.
    """
    owns = [patch(before, after) for before, after in zip(*versions)]
    text = context.shared(owns)
    assume(text is not None)  # two changes side by side in one release are one change there
    assert text.diff == context.shared([*owns, owns[0]]).diff
    for own, before, after in zip(owns, *versions):
        below = {RUNNER: before.encode()}
        row = matching.apply_patch(text, below.get)
        assert row.after == {RUNNER: after.encode()}
        assert context.rendered(text, row).diff == own.diff and context.edits(
            text
        ) == context.edits(own)
        assert context.fitted(own, below).diff == own.diff


@pytest.mark.parametrize(
    ("old", "new", "fits"),
    [
        ("step_18 = 18\n", "step_18 = None\n", True),
        ("step_20 = 20\n", "step_20 = None\n", True),  # the line above
        ("step_20 = 20\n", "step_20 = 20\nbetween = 1\n", False),  # behind the one, or before it
        ("step_20 = 20\nstep_21 = 21\n", "a = 1\nb = 1\n", False),
    ],
)
def test_a_change_is_found_on_another_release(old, new, fits):
    other = BASE.replace(old, new)
    found = context.fitted(patch(BASE, added(BASE)), {RUNNER: other.encode()})
    after = other.replace("step_21 = 21\n", "added_step = 20\nstep_21 = 21\n")
    assert (found.diff if found else None) == (patch(other, after).diff if fits else None)


def test_other_changes_share_nothing():
    own, after = patch(BASE, added(BASE)), added(BASE)
    assert context.shared([own, patch(BASE, after.replace("added_step", "more_steps"))]) is None
    nowhere = BASE.replace("step_20 = 20\n", "a = 1\nstep_20 = 20\n")
    nowhere = nowhere.replace("step_21 = 21\n", "b = 1\n")
    other = patch(nowhere, nowhere.replace("a = 1\n", "a = 1\nadded_step = 20\n"))
    assert context.shared([own, other]) is None, "no line beside the change is the same"


@pytest.fixture
def two(project: fakes.Project) -> fakes.Project:
    """A second release that the first patch is for as well, at another line and with other lines
    round it."""
    runner = "".join(BASE.splitlines(True)[10:]).replace("step_18 = 18\n", "step_18 = None\n")
    project.release(SHORT, runner=runner)
    project.warm()
    gap = "Gap: >9.9.2: the cut is another one there\nOverlay: none"
    project.edit(f"patches/{CUT}", "Overlay: none", gap)
    project.edit(f"patches/{COUNT}", "@@ -18,6 +18,7 @@\n step_18 = 18\n", "@@ -19,5 +19,6 @@\n")
    project.place()
    return project


def every(project: fakes.Project) -> pins.Pins:
    return pins.load(project.root)


def test_one_text_serves_two_releases(two):
    assert check(two.root, every(two).all, None).all_problems == ()
    for tag, line, lead in (("v9.9.1", 18, "step_18 = 18"), (f"v{SHORT}", 8, "step_18 = None")):
        # which holds quilt's tree against the replay's, byte for byte
        apply(two.root, every(two).find(tag), None)
        file = two.root / "work" / tag / "patches" / COUNT
        before = file.read_text()
        assert f"@@ -{line},6 +{line},7 @@\n {lead}\n step_19 = 19\n" in before
        engine = quilt.find(source.cache_folder())
        engine.run(two.root / "work" / tag, "pop", "-a")
        assert b"offset" not in engine.run(two.root / "work" / tag, "push", COUNT).stdout
        engine.run(two.root / "work" / tag, "refresh", *fakes.QUILT_FORM, check=False)
        assert file.read_text() == before, "it is in the form that quilt writes"


@pytest.mark.parametrize("tag", ["v9.9.1", f"v{SHORT}"])
def test_refresh_with_nothing_edited_changes_no_file(two, tag):
    folders = [two.root / name for name in ("patches", "overlay", "upstream")]
    before = fakes.snapshot(*folders), (two.root / "series").read_bytes()
    for _ in range(2):  # without a tree, then with one
        written, report = refresh(two.root, every(two), every(two).find(tag), False)
        assert written == [] and report.outcome in (Outcome.APPLIED, Outcome.ALREADY_APPLIED)
    quilt.find(source.cache_folder()).run(two.root / "work" / tag, "pop", "-a")
    assert refresh(two.root, every(two), every(two).find(tag), False)[0] == []
    assert (fakes.snapshot(*folders), (two.root / "series").read_bytes()) == before


@pytest.mark.parametrize(
    ("edit", "tags"),
    [
        (("overlay/python/sglang/srt/steps/__init__.py", "our own", "ours"), ["9.9.1", SHORT]),
        ((f"patches/{CUT}", "+six = 6", "+six = 7"), ["9.9.1"]),
        ((f"patches/{COUNT}", "Subject: Count the steps", "Subject: Count all steps"), []),
    ],
    ids=["overlay", "patch", "header"],
)
def test_a_tree_that_changes_unseen_is_seen_at_the_next_check(two, edit, tags):
    two.edit(*edit)
    problems = check(two.root, every(two).all, None).all_problems
    wanted = [("tree mismatch", f"upstream/pins.toml: {tag}") for tag in tags]
    assert [(problem.name, problem.where) for problem in problems] == wanted
    two.place()
    assert check(two.root, every(two).all, None).all_problems == ()


@pytest.mark.parametrize("shift", [-3, 5], ids=["earlier", "later"])
def test_the_lines_that_a_patch_file_names_are_not_read(two, shift):
    """A text with the lines of no release applies as before, and nothing is to be written anew."""
    line = next(each for each in (two.root / "patches" / COUNT).open() if each.startswith("@@"))
    start = int(line.split()[1].split(",")[0][1:])
    other = line.replace(f"{start},", f"{start + shift},")
    two.edit(f"patches/{COUNT}", line, other)
    assert check(two.root, every(two).all, None).all_problems == ()
    assert refresh(two.root, every(two), two.pin, False)[0] == []
    assert "@@ -18,6 +18,7 @@" in (two.tree / "patches" / COUNT).read_text(), "quilt has its lines"


def test_two_hunks_never_share_a_line_of_context():
    """Where lines repeat, four lines between two changes could be three below the one and three
    above the other."""
    middles = ["".join(f"c{n}\n" for n in between) for between in ("1234", "123234")]
    befores = [numbered(5) + middle + numbered(9, "more") for middle in middles]
    afters = [
        before.replace("step_5 = 5", "step_5 = 0").replace("more_1 = 1", "more_1 = 0")
        for before in befores
    ]
    text = context.shared([patch(*each) for each in zip(befores, afters)])
    assert [(hunk.leading, hunk.trailing) for hunk in text.files[0].hunks] == [(3, 3), (1, 3)]
    for before, after in zip(befores, afters):
        row = matching.apply_patch(text, lambda path, content=before: content.encode())
        assert row.after == {RUNNER: after.encode()}
