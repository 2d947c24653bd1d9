"""The queue applied in memory: exact text at one place, every misfit named; and the same bytes as
quilt makes."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakes import RUNNER, diff, numbered
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from patchqueue.applying import quilt
from patchqueue.applying.matching import replay
from patchqueue.applying.worktree import write_patches
from patchqueue.outcome import Outcome
from patchqueue.queue import patchfile
from patchqueue.queue.header import Header
from patchqueue.upstream import source

BASE = numbered(40)
EDITED = BASE.replace("step_20 = 20\n", "step_20 = 20\nadded = 1\n")


def patch(text: str, name: str = "a/b.patch") -> patchfile.Patch:
    return patchfile.Patch(name, text.encode(), Header(()), patchfile.parse_diff(text))


def run(upstream: str | bytes | None, *diffs: str, overlay: dict[str, bytes] | None = None):
    content = upstream.encode() if isinstance(upstream, str) else upstream
    read = {RUNNER: content} if content is not None else {}
    return replay(
        [patch(text, f"a/{n}.patch") for n, text in enumerate(diffs)],
        overlay or {},
        read.get,
        "v9.9.1",
    )


def one(upstream: str | bytes | None, text: str):
    """outcome, problem names, first problem."""
    result = run(upstream, text)
    (step,) = result.steps
    assert step.outcome is Outcome.APPLIED or not result.files
    return step.outcome, [problem.name for problem in step.problems], (*step.problems, None)[0]


@pytest.mark.parametrize(
    ("above", "lines"), [("", "1, 7"), ("x\n", "2, 8")], ids=["at its line too", "moved"]
)
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


LINES = st.lists(
    st.sampled_from([*"abcde", "", "    x = 1", "\f", "-- x", "++ y", "\\ z", "é"]), max_size=30
)


@st.composite
def edits(draw) -> tuple[str, str]:
    """A file and the same file after some lines were replaced, removed or put in; either may lack
    its last line end."""
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
    """Whether every hunk's lines are in the file once, behind those of the hunk before: looked for
    line by line."""
    lines, done = before.split("\n"), 0
    for hunk in patchfile.parse_diff(diff(RUNNER, before, after))[0].hunks:
        wanted = "".join(hunk.old).split("\n")
        whole, end = (wanted[:-1], len(lines) - 1) if wanted[-1] == "" else (wanted, len(lines))
        starts = [
            n for n in range(done, end - len(whole) + 1) if lines[n : n + len(whole)] == whole
        ]
        if wanted[-1] != "":  # no line end: the file's last lines
            starts = [n for n in starts if n + len(whole) == len(lines)]
        if len(starts) != 1:
            return False
        done = starts[0] + len(whole)
    return True


@pytest.fixture(scope="module")
def engine(quilt_home):
    return quilt.find(quilt_home.parent if quilt_home else source.cache_folder())


@contextmanager
def laid(
    engine: quilt.Quilt, files: dict[str, str], text: str
) -> Iterator[tuple[Path, subprocess.CompletedProcess]]:
    """A tree of these files after `quilt push` of one patch, and what quilt said."""
    with tempfile.TemporaryDirectory() as name:
        for path, content in files.items():
            (Path(name) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(name) / path).write_bytes(content.encode())
        write_patches(Path(name), {"a/b.patch": text.encode()})
        yield Path(name), engine.run(Path(name), "push", "-a", "--fuzz=0", check=False)


# An empty file is none for quilt; such patches are refused by their form.
REAL_EDITS = edits().filter(
    lambda edit: edit[0] and edit[1] and edit[0] != edit[1] and at_one_place(*edit)
)


@settings(max_examples=6)
@given(st.lists(REAL_EDITS, min_size=1, max_size=9))
def test_quilt_makes_the_same_bytes(engine, several):
    """Many files in one push: dozens of edits in the time of six."""
    before = {f"python/sglang/f{n}.py": old for n, (old, _) in enumerate(several)}
    after = {f"python/sglang/f{n}.py": new.encode() for n, (_, new) in enumerate(several)}
    text = "".join(diff(path, old, after[path].decode()) for path, old in before.items())
    replayed = replay([patch(text)], {}, lambda path: before[path].encode(), "v9.9.1")
    with laid(engine, before, text) as (tree, done):
        assert done.returncode == 0, done.stdout
        assert {path: (tree / path).read_bytes() for path in before} == after == replayed.files
        engine.run(tree, "pop", "-a")
        assert {path: (tree / path).read_bytes() for path in before} == {
            path: old.encode() for path, old in before.items()
        }


@settings(max_examples=5)
@given(at=st.integers(8, 33), wrong=st.integers(-2, 3))
def test_quilt_refuses_what_replay_calls_a_conflict(engine, at, wrong):
    assume(wrong != 0)
    text = diff(RUNNER, BASE, BASE.replace(f"step_{at} = {at}\n", f"step_{at} = {at}\nadded = 1\n"))
    upstream = BASE.replace(f"step_{at + wrong} = ", "other = ")
    with laid(engine, {RUNNER: upstream}, text) as (tree, done):
        assert done.returncode == 1 and (tree / RUNNER).read_text() == upstream
    assert one(upstream, text)[0] is Outcome.CONFLICT


def test_bytes_that_are_no_text_are_kept():
    upstream = b"\xff\r\n" + BASE.encode()
    after = f"x\n{BASE}", f"x\n{EDITED}"
    assert run(upstream, diff(RUNNER, *after)).files == {RUNNER: b"\xff\r\n" + EDITED.encode()}
