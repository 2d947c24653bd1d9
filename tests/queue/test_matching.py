"""The queue applied in memory: exact text at one place, every misfit named, the same bytes as quilt
makes; and the text that releases share."""

import re
import tempfile
from pathlib import Path

import fakes
import pytest
from fakes import COUNT, CUT, RUNNER, added, diff, numbered, unchanged
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from patchqueue.applying import matching
from patchqueue.applying.matching import replay
from patchqueue.applying.worktree import write_patches
from patchqueue.outcome import Outcome
from patchqueue.queue import patchfile
from patchqueue.queue.header import Header

BASE = numbered(40)
EDITED = added(BASE)


def patch(text: str, name: str = "a/b.patch") -> patchfile.Patch:
    return patchfile.Patch(name, text.encode(), Header(()), patchfile.parse_diff(text))


def run(upstream: str | bytes | None, *diffs: str, overlay: dict[str, bytes] | None = None):
    content = upstream.encode() if isinstance(upstream, str) else upstream
    read = {RUNNER: content} if content is not None else {}
    patches = [patch(text, f"a/{n}.patch") for n, text in enumerate(diffs)]
    return replay(patches, overlay or {}, read.get, "v9.9.1")


def one(upstream: str | bytes | None, text: str):
    """outcome, problem names, first problem."""
    result = run(upstream, text)
    (step,) = result.steps
    assert step.outcome is Outcome.APPLIED or not result.files
    return step.outcome, [problem.name for problem in step.problems], (*step.problems, None)[0]


@pytest.mark.parametrize(("above", "lines"), [("", "1, 7"), ("x\n", "2, 8")])
def test_text_at_several_places_is_a_conflict_that_names_them(above, lines):
    same = "a\nb\nc\nd\ne\nf\n"
    text = diff(RUNNER, same, same.replace("c\nd\n", "c\nnew\nd\n"))
    outcome, names, problem = one(above + same + same, text)
    assert (outcome, names) == (Outcome.CONFLICT, ["conflict"]) and problem.where.endswith("hunk 1")
    assert problem.what == f"its text is at 2 places: lines {lines}"


def test_a_place_before_the_last_hunk_does_not_count():
    same = "a\nb\nc\nd\ne\nf\ng\n"
    upstream = same + numbered(9) + same
    after = same.replace("a\n", "A\n") + numbered(9) + same.replace("d\n", "D\n")
    text = diff(RUNNER, upstream, after)
    assert one(upstream, text)[0] is Outcome.CONFLICT, "the first hunk has two places"
    marked = upstream.replace("a\n", "a one\n", 1)
    assert run(marked, diff(RUNNER, marked, after)).files == {RUNNER: after.encode()}


def test_a_patch_is_called_by_its_worst_hunk():
    """One hunk is there already, the other nowhere."""
    after = BASE.replace("step_5 = 5\n", "step_5 = 0\n").replace("step_35 = 35\n", "step_35 = 0\n")
    upstream = after.replace("step_35 = 0\n", "step_35 = None\n")
    outcome, names, _ = one(upstream, diff(RUNNER, BASE, after))
    assert (outcome, names) == (Outcome.CONFLICT, ["merged upstream", "conflict"])


@pytest.mark.parametrize(
    "upstream, after",
    [("a\nb", "a\nc"), ("a\nb", "a\nb\n"), ("a\nb\n", "a\nb"), ("a\nb", "a\nb\nc"), ("b", "a\nb")],
)
def test_no_line_end_at_the_end_of_the_file(upstream, after):
    text = diff(RUNNER, upstream, after)
    assert run(upstream, text).files == {RUNNER: after.encode()}
    other = upstream + "\n" if not upstream.endswith("\n") else upstream[:-1]
    assert one(other, text)[0] is (Outcome.MERGED_UPSTREAM if other == after else Outcome.CONFLICT)


LINE = st.sampled_from([*"abcde", "", "    x = 1", "\f", "-- x", "++ y", "\\ z", "é"])
LINES = st.lists(LINE, max_size=30)


@st.composite
def edits(draw) -> tuple[str, str]:
    """A file before and after some edits; either may lack its last line end."""
    before = draw(LINES)
    after = list(before)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(after)))
        new = st.lists(st.sampled_from(["new", "x", "a", ""]), max_size=3)
        after[at : at + draw(st.integers(0, 3))] = draw(new)
    ends = draw(st.sampled_from(["\n", ""])), draw(st.sampled_from(["\n", ""]))
    return "\n".join(before) + ends[0], "\n".join(after) + ends[1]


@given(edits())
def test_replay_gives_the_edited_file(edit):
    before, after = edit
    # a patch that fills or empties a file is refused by its form
    assume(before and after and before != after)
    result = run(before, diff(RUNNER, before, after))
    if at_one_place(before, after):
        assert result.problems == () and result.files == {RUNNER: after.encode()}
    else:
        assert "conflict" in [problem.name for problem in result.problems] and result.files == {}


def at_one_place(before: str, after: str) -> bool:
    """Whether each hunk's lines are there once, behind the hunk before: looked for line by line."""
    lines, done = before.split("\n"), 0
    for hunk in patchfile.parse_diff(diff(RUNNER, before, after))[0].hunks:
        wanted = "".join(hunk.old).split("\n")
        whole, end = (wanted[:-1], len(lines) - 1) if wanted[-1] == "" else (wanted, len(lines))
        count = len(whole)
        starts = [n for n in range(done, end - count + 1) if lines[n : n + count] == whole]
        if wanted[-1] != "":  # no line end: the file's last lines
            starts = [n for n in starts if n + count == len(lines)]
        if len(starts) != 1:
            return False
        done = starts[0] + count
    return True


# An empty file is none for quilt; such patches are refused by their form.
REAL_EDITS = edits().filter(lambda edit: all(edit) and edit[0] != edit[1] and at_one_place(*edit))


@settings(max_examples=6)
@given(st.lists(REAL_EDITS, min_size=1, max_size=9))
def test_quilt_makes_the_same_bytes(real_cache, several):
    """Many files in one push: dozens of edits in the time of six."""
    before = {f"python/sglang/f{n}.py": old for n, (old, _) in enumerate(several)}
    after = {f"python/sglang/f{n}.py": new.encode() for n, (_, new) in enumerate(several)}
    text = "".join(diff(path, old, after[path].decode()) for path, old in before.items())
    replayed = replay([patch(text)], {}, lambda path: before[path].encode(), "v9.9.1")
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patches:
        patches.setenv("PATCHQUEUE_CACHE", str(real_cache))
        tree = Path(name)
        (tree / "python/sglang").mkdir(parents=True)
        for path, old in before.items():
            (tree / path).write_bytes(old.encode())
        write_patches(tree, {"a/b.patch": text.encode()})
        fakes.quilt(tree, "push", "-a", "--fuzz=0")
        assert {path: (tree / path).read_bytes() for path in before} == after == replayed.files
        fakes.quilt(tree, "pop", "-a")
        assert {path: (tree / path).read_bytes().decode() for path in before} == before


def test_bytes_that_are_no_text_are_kept():
    upstream = b"\xff\r\n" + BASE.encode()
    after = f"x\n{BASE}", f"x\n{EDITED}"
    assert run(upstream, diff(RUNNER, *after)).files == {RUNNER: b"\xff\r\n" + EDITED.encode()}


SHORT = "9.9.3"  # lacks the first ten lines, and has another 18th


def change(before: str, after: str) -> patchfile.Patch:
    return patch(diff(RUNNER, before, after))


def test_text_that_overlaps_itself_stands_at_every_line_and_a_line_ends_at_a_line_feed_alone():
    lines = ["a\r b\n", "\f\n", "c\x0bd\x1ce\u2028f\n", "end\r"]
    assert matching.split_lines("".join(lines)) == lines
    text, wanted = "x\nx\nx\n", "x\nx\n"
    assert [*matching.find(text, wanted, 0)] == [0, 2]
    row = matching.apply_patch(change(wanted, "x\nnew\nx\n"), {RUNNER: text.encode()}.get)
    assert (row.outcome, row.ambiguous) == (Outcome.CONFLICT, True)


@st.composite
def releases(draw) -> tuple[list[str], list[str]]:
    """One change as several releases have it, before and after, among other lines."""
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
            kept = "" if n in spots and removes[spots.index(n)] else old
            after.append(kept + (f"new {n}\n" if n in spots else ""))
        befores.append("".join(before))
        afters.append("".join(after))
    return befores, afters


@given(releases())
def test_what_releases_share_makes_of_each_what_its_own_text_makes(versions):
    """The shared text is at one place of each, and makes the same change there."""
    owns = [change(before, after) for before, after in zip(*versions)]
    # two changes side by side in one release are one change there
    assume(len({matching.edits(own) for own in owns}) == 1)
    trees = [{RUNNER: before.encode()} for before in versions[0]]
    text = matching.shared(owns[0], trees)
    assume(text is not None)
    assert text.diff == matching.shared(owns[0], [*trees, trees[0]]).diff
    for own, below, after in zip(owns, trees, versions[1]):
        row = matching.apply_patch(text, below.get)
        assert row.after == {RUNNER: after.encode()}
        assert matching.edits(text) == matching.edits(own)


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
    trees = [{RUNNER: text.encode()} for text in (BASE, other)]
    text = matching.shared(change(BASE, added(BASE)), trees)
    assert matching.shared(change(BASE, added(BASE)), [trees[0], {}]) is None, "it lacks the file"
    after = other.replace("step_21 = 21\n", "added_step = 20\nstep_21 = 21\n")
    assert (text is not None) is fits
    if fits:
        assert matching.apply_patch(text, trees[1].get).after == {RUNNER: after.encode()}


@pytest.fixture
def two(project: fakes.Project) -> fakes.Project:
    """A second release that the first patch is for as well, among other lines."""
    runner = "".join(BASE.splitlines(True)[10:]).replace("step_18 = 18\n", "step_18 = None\n")
    project.release(SHORT, runner=runner)
    project.warm()
    gap = "Gap: >9.9.2: the cut is another one there\nOverlay: none"
    project.edit(f"patches/{CUT}", "Overlay: none", gap)
    project.edit(f"patches/{COUNT}", "@@ -18,6 +18,7 @@\n step_18 = 18\n", "@@ -19,5 +19,6 @@\n")
    project.place()
    return project


def test_one_text_serves_two_releases(two):
    assert two.check().all_problems == ()
    for tag, line, lead in (("v9.9.1", 18, "step_18 = 18"), (f"v{SHORT}", 8, "step_18 = None")):
        # which holds quilt's tree against the replay's, byte for byte
        two.apply(tag=tag)
        file = two.root / "work" / tag / "patches" / COUNT
        before = file.read_text()
        assert f"@@ -{line},6 +{line},7 @@\n {lead}\n step_19 = 19\n" in before
        fakes.quilt(two.root / "work" / tag, "pop", "-a")
        assert b"offset" not in fakes.quilt(two.root / "work" / tag, "push", COUNT).stdout
        fakes.quilt(two.root / "work" / tag, "refresh", *fakes.QUILT_FORM, check=False)
        assert file.read_text() == before, "it is in the form that quilt writes"


@pytest.mark.parametrize("tag", ["v9.9.1", f"v{SHORT}"])
def test_refresh_with_nothing_edited_changes_no_file(two, tag):
    with unchanged(*(two.root / name for name in ("patches", "overlay", "upstream", "series"))):
        for _ in range(2):  # without a tree, then with one
            written, report = two.refresh(tag)
            assert written == [] and report.outcome in (Outcome.APPLIED, Outcome.ALREADY_APPLIED)
        fakes.quilt(two.root / "work" / tag, "pop", "-a")
        assert two.refresh(tag)[0] == []


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
    problems = two.check().all_problems
    wanted = [("tree mismatch", f"upstream/pins.toml: {tag}") for tag in tags]
    assert [(problem.name, problem.where) for problem in problems] == wanted
    two.place()
    assert two.check().all_problems == ()


@pytest.mark.parametrize("shift", [-3, 5], ids=["earlier", "later"])
def test_the_lines_that_a_patch_file_names_are_not_read(two, shift):
    """A text with the lines of no release applies as before, and nothing is to be written anew."""
    line = next(each for each in (two.root / "patches" / COUNT).open() if each.startswith("@@"))
    start = int(line.split()[1].split(",")[0][1:])
    other = line.replace(f"{start},", f"{start + shift},")
    two.edit(f"patches/{COUNT}", line, other)
    assert two.check().all_problems == ()
    assert two.refresh()[0] == []
    assert "@@ -18,6 +18,7 @@" in (two.tree / "patches" / COUNT).read_text(), "quilt has its lines"


def test_two_hunks_never_share_a_line_of_context():
    """Four lines between two changes could be three below the one and three above the other."""
    middles = ["".join(f"c{n}\n" for n in between) for between in ("1234", "123234")]
    befores = [numbered(5) + middle + numbered(9, "more") for middle in middles]
    afters = [re.sub("(step_5 = 5|more_1 = 1)$", "changed", one, flags=re.M) for one in befores]
    trees = [{RUNNER: before.encode()} for before in befores]
    text = matching.shared(change(befores[0], afters[0]), trees)
    assert [(hunk.leading, hunk.trailing) for hunk in text.files[0].hunks] == [(3, 3), (1, 3)]
    for before, after in zip(befores, afters):
        row = matching.apply_patch(text, lambda path, content=before: content.encode())
        assert row.after == {RUNNER: after.encode()}
