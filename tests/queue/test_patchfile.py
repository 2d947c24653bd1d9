"""The form of a patch file: every kind of problem by name and line, and what must not be mistaken
for one."""

from __future__ import annotations

import re

import pytest
from fakes import RELEASE, RUNNER, diff, header, numbered, patch_text
from hypothesis import given
from hypothesis import strategies as st

from patchqueue.queue import patchfile

GOOD = patch_text()
FIRST = GOOD.count("\n", 0, GOOD.index("--- a/")) + 1  # the line of the patch file that holds ---
MARK = "\\ No newline at end of file\n"
TWO = diff(RUNNER, numbered(40), numbered(40).replace("step_20 ", "step_zwanzig ")) + diff(
    "python/sglang/version.py", "a\n", "b\n"
)


def read(text: str | bytes) -> tuple[patchfile.Patch | None, list]:
    return patchfile.read("steps/count.patch", text.encode() if isinstance(text, str) else text)


def replaced(old: str, new: str, text: str = GOOD) -> str:
    assert old in text
    return text.replace(old, new, 1)


def refuse(name: str, text: str | bytes, line: int | None = None, what: str = ""):
    return pytest.param(name, text, line, what, id=f"{name}-{what or line}".replace(" ", "_"))


PROBLEMS = [
    refuse("not-utf-8", GOOD.encode() + b"\xff", None, "byte"),
    refuse("crlf", GOOD.replace("\n", "\r\n"), 1),
    refuse("crlf", replaced("+added_step = 20\n", "+added_step = 20\r\n"), FIRST + 6),
    refuse("bad-header", "words\n" + GOOD),
    refuse("missing-field", GOOD.replace("Origin: own\n", "")),
    refuse("empty-patch", header()),
    refuse("bad-form", replaced("-18,6 +18,7", "-18,6 +18,8"), None, "shorter"),
    refuse("bad-form", replaced("-18,6 +18,7", "-18,6 +18,6"), FIRST + 9, "longer"),
    refuse("bad-form", replaced(" step_19 = 19\n", "step_19 = 19\n"), FIRST + 4, "expected"),
    refuse("bad-form", replaced(" step_19 = 19\n", "\n"), FIRST + 4, "has ' ' there"),
    refuse("empty-patch", GOOD[: GOOD.index("@@")], None, "no hunk"),
    refuse("bad-form", GOOD[:-1], FIRST + 9, "No newline"),
    refuse("byte-order-mark", "\ufeff" + GOOD, 1),
    refuse(
        "no-newline",
        replaced("+added_step = 20\n", f"+added_step = 20\n{MARK}"),
        FIRST + 2,
        "not the file's last line",
    ),
    refuse(
        "no-newline",
        GOOD
        + MARK
        + diff(RUNNER, numbered(60), numbered(60).replace("step_50 ", "step_fifty ")).split(
            "\n", 2
        )[2],
        FIRST + 2,
        "has no newline, and",
    ),
    refuse("bad-form", replaced("@@ -18,6 +18,7 @@", "@@ -18,6 @@"), FIRST + 2),
    refuse("bad-form", GOOD + "-- \n2.39.5\n", FIRST + 10, "belongs to no hunk"),
    refuse(
        "rename", replaced("--- a/", "rename from a\nrename to b\n--- a/"), FIRST, "rename from"
    ),
    refuse(
        "bad-form",
        replaced("+++ b/python/sglang/srt/runner.py", "+++ b/python/sglang/srt/walker.py"),
        FIRST,
        "'--- a/python/sglang/srt/walker.py' there",
    ),
    refuse(
        "mode-change",
        replaced("--- a/", "old mode 100644\nnew mode 100755\n--- a/"),
        FIRST,
        "old mode",
    ),
    refuse("binary", f"{header()}\nBinary files a/x and b/x differ\n", FIRST, "Binary"),
    refuse(
        "new-or-deleted-file",
        f"{header()}\n--- /dev/null\n+++ b/python/sglang/new.py\n@@ -0,0 +1 @@\n+x\n",
        FIRST,
    ),
    refuse(
        "new-or-deleted-file",
        f"{header()}\n--- a/python/sglang/new.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n",
        FIRST + 1,
    ),
    refuse("new-or-deleted-file", header() + "\n" + diff(RUNNER, "", "a\nb\n"), FIRST + 2, "fills"),
    refuse("file-twice", header() + "\n" + diff(RUNNER, "a\n", "b\n") * 2, FIRST + 5),
    refuse(
        "unsorted-files",
        header()
        + "\n"
        + diff("python/sglang/b.py", "a\n", "b\n")
        + diff("python/sglang/a.py", "a\n", "b\n"),
        FIRST + 5,
    ),
    refuse(
        "empty-hunk",
        header() + f"\n--- a/{RUNNER}\n+++ b/{RUNNER}\n@@ -1,2 +1,2 @@\n a\n b\n",
        FIRST + 2,
    ),
    refuse(
        "unequal-context",
        header()
        + f"\n--- a/{RUNNER}\n+++ b/{RUNNER}\n@@ -18,7 +18,8 @@\n a\n b\n c\n d\n+x\n e\n f\n g\n",
        FIRST + 2,
        "4 lines",
    ),
    refuse(
        "unequal-context",
        header() + f"\n--- a/{RUNNER}\n+++ b/{RUNNER}\n@@ -18,0 +19 @@\n+x\n",
        FIRST + 2,
        "0 lines",
    ),
    *(
        refuse("bad-path", GOOD.replace(RUNNER, path), FIRST, reason)
        for path, reason in [
            ("python/sglang/../../../evil.py", ".."),
            ("python/sglang/./runner.py", "."),
            ("python/sglang//runner.py", "empty part"),
            ("../evil.py", ".."),
            ("python\\sglang\\runner.py", "backslash"),
            ("python/sglang/a\x07b.py", "control"),
            ("python/sglang/a b.py", "space"),
            ("python/torch/a.py", "outside"),
            ("setup.py", "outside"),
        ]
    ),
    *(
        refuse("bad-form", replaced(f"a/{RUNNER}", path), FIRST, "there")
        for path in (f"/{RUNNER}", '"a/python/sglang/\\303.py"', RUNNER, f"a/{RUNNER}\t2030-01-02")
    ),
]


@pytest.mark.parametrize("name, text, line, what", PROBLEMS)
def test_refuses(name, text, line, what):
    patch, problems = read(text)
    assert name in [problem.name for problem in problems]
    problem = next(problem for problem in problems if problem.name == name)
    assert problem.where.startswith("patches/steps/count.patch")
    assert line is None or problem.where == f"patches/steps/count.patch:{line}"
    assert what in f"{problem.what} {problem.where}"
    assert patch is None or name in ("missing-field", "bad-header")


def test_all_names_are_covered():
    source = open(patchfile.__file__).read()
    names = set(re.findall(r'Problem\("([a-z0-9-]+)"', source)) | {
        name for name, _ in patchfile.FORBIDDEN
    }
    assert names <= {case.values[0] for case in PROBLEMS}


PAGE = RELEASE["sglang/srt/page.py"]


@pytest.mark.parametrize(
    ("changes", "diffs"),
    [
        ({}, [(RUNNER, numbered(40), numbered(40).replace("= 20\n", "= 20\nadded_step = 20\n"))]),
        ({}, [("python/sglang/a.py", "a\n", "b\n"), ("test/a.py", "a\n", "b\n")]),
        # less context at the file's start, and at its end
        ({}, [(RUNNER, numbered(40), "new\n" + numbered(40))]),
        ({}, [(RUNNER, numbered(40), numbered(40) + "new\n")]),
        ({}, [(RUNNER, "a\nb", "a\nb\nc")]),  # no line end before nor after
        # lines that look like --- and +++
        ({}, [(RUNNER, numbered(9), numbered(9).replace("step_5 = 5\n", "-- a/b\n++ b/c\n"))]),
        (
            {"Description": "Not a diff:\n --- a/b\n index\n .\n rename to"},
            [(RUNNER, "a\n", "b\n")],
        ),
        ({}, [(RUNNER, PAGE, PAGE.replace("second", "2nd"))]),
    ],
)
def test_accepts(changes, diffs):
    text = f"{header(**changes)}\n{''.join(diff(*each) for each in diffs)}"
    for form in (text, text.replace("@@\n", "@@ def f():\n")):
        patch, problems = read(form)
        assert problems == [] and patch is not None and patch.content == form.encode()


def test_reads_hunks():
    patch, _ = read(GOOD)
    (file,) = patch.files
    (hunk,) = file.hunks
    assert (file.path, hunk.old_start, hunk.new_start) == (RUNNER, 18, 18)
    assert hunk.at_line == FIRST + 2
    assert hunk.old == [f"step_{n} = {n}\n" for n in range(18, 24)]
    assert [line for line in hunk.new if line not in hunk.old] == ["added_step = 20\n"]
    assert (hunk.leading, hunk.trailing) == (3, 3)


def test_no_line_end_belongs_to_the_line_before_it():
    patch, _ = read(header() + "\n" + diff(RUNNER, "a\nb", "a\nc\n"))
    (hunk,) = patch.files[0].hunks
    assert hunk.old == ["a\n", "b"] and hunk.new == ["a\n", "c\n"]


TEXTS = st.lists(
    st.sampled_from(["a", "b", "", "-- x", "++ y", "@@ -1 +1 @@", "\\ x", "\f", "é", "diff "]),
    max_size=14,
).map("\n".join)


@given(before=TEXTS, after=TEXTS)
def test_every_diff_of_difflib_is_read_or_named(before, after):
    """Whatever the lines look like: what diff writes has a good form, unless it fills or empties a
    file."""
    made = diff(RUNNER, before, after)
    patch, problems = read(f"{header()}\n{made}")
    known = "new-or-deleted-file" if not after or not before else ""
    names = {problem.name for problem in problems}
    assert names <= {known if made else "empty-patch"}, made
    assert not patch or [hunk for file in patch.files for hunk in file.hunks]


@given(cut=st.integers(0, len(GOOD) - 1))
def test_a_patch_cut_anywhere_is_refused(cut):
    assert read(GOOD[:cut])[1]


@given(
    at=st.integers(GOOD.index("@@"), len(GOOD) - 1), character=st.sampled_from("\n\r\0\t -+@\\x")
)
def test_no_damage_to_a_hunk_raises(at, character):
    read(GOOD[:at] + character + GOOD[at + 1 :])
