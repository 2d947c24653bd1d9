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


def read(text: str | bytes) -> tuple[patchfile.Patch | None, list]:
    return patchfile.read("steps/count.patch", text.encode() if isinstance(text, str) else text)


def replaced(old: str, new: str, text: str = GOOD) -> str:
    assert old in text
    return text.replace(old, new, 1)


def body(text: str, names: str = f"--- a/{RUNNER}\n+++ b/{RUNNER}\n") -> str:
    """A patch with a right header, and these lines below the names of its file."""
    return f"{header()}\n{names}{text}"


def bad_path(path: str) -> tuple[str, str, int, str]:
    return "bad-path", GOOD.replace(RUNNER, path), FIRST, "is no plain path"


FILE_A, FILE_B = (diff(f"python/sglang/{name}.py", "a\n", "b\n") for name in "ab")
LAST = diff(RUNNER, numbered(60), numbered(60).replace("step_50 ", "fifty ")).split("\n", 2)[2]
PROBLEMS = [  # the problem's name, the patch, the line that is named, and a part of what is said
    ("not-utf-8", GOOD.encode() + b"\xff", None, "byte"),
    ("crlf", GOOD.replace("\n", "\r\n"), 1, ""),
    ("crlf", replaced("+added_step = 20\n", "+added_step = 20\r\n"), FIRST + 6, ""),
    ("bad-header", "words\n" + GOOD, None, ""),
    ("missing-field", GOOD.replace("Origin: own\n", ""), None, ""),
    ("empty-patch", header(), None, ""),
    ("empty-patch", GOOD[: GOOD.index("@@")], None, "no hunk"),
    ("byte-order-mark", "\ufeff" + GOOD, 1, ""),
    ("bad-form", replaced("-18,6 +18,7", "-18,6 +18,8"), None, "shorter"),
    ("bad-form", replaced("-18,6 +18,7", "-18,6 +18,6"), FIRST + 9, "longer"),
    ("bad-form", replaced(" step_19 = 19\n", "step_19 = 19\n"), FIRST + 4, "expected"),
    ("bad-form", replaced(" step_19 = 19\n", "\n"), FIRST + 4, "has ' ' there"),
    ("bad-form", GOOD[:-1], FIRST + 9, "No newline"),
    ("bad-form", replaced("@@ -18,6 +18,7 @@", "@@ -18,6 @@"), FIRST + 2, ""),
    ("bad-form", GOOD + "-- \n2.39.5\n", FIRST + 10, "belongs to no hunk"),
    ("bad-form", replaced(f"b/{RUNNER}", "b/python/a.py"), FIRST, "'--- a/python/a.py' there"),
    ("bad-form", replaced(f"a/{RUNNER}", f"/{RUNNER}"), FIRST, "there"),
    ("bad-form", replaced(f"a/{RUNNER}", '"a/python/sglang/\\303.py"'), FIRST, "there"),
    ("bad-form", replaced(f"a/{RUNNER}", RUNNER), FIRST, "there"),
    ("bad-form", replaced(f"a/{RUNNER}", f"a/{RUNNER}\t2030-01-02"), FIRST, "there"),
    ("no-newline", replaced("+added_step = 20\n", f"+added_step = 20\n{MARK}"), FIRST + 2, "last"),
    ("no-newline", GOOD + MARK + LAST, FIRST + 2, "has no newline, and"),
    ("rename", replaced("--- a/", "rename from a\nrename to b\n--- a/"), FIRST, "rename from"),
    ("mode-change", replaced("--- a/", "old mode 1\nnew mode 2\n--- a/"), FIRST, "old mode"),
    ("binary", body("", "Binary files a/x and b/x differ\n"), FIRST, "Binary"),
    ("new-or-deleted-file", body("@@ -0,0 +1 @@\n+x\n", "--- /dev/null\n+++ b/a\n"), FIRST, ""),
    ("new-or-deleted-file", body("@@ -1 +0,0 @@\n-x\n", "--- a/a\n+++ /dev/null\n"), FIRST + 1, ""),
    ("new-or-deleted-file", body(diff(RUNNER, "", "a\nb\n"), ""), FIRST + 2, "fills"),
    ("file-twice", body(FILE_A + FILE_A, ""), FIRST + 5, ""),
    ("unsorted-files", body(FILE_B + FILE_A, ""), FIRST + 5, ""),
    ("empty-hunk", body("@@ -1,2 +1,2 @@\n a\n b\n"), FIRST + 2, ""),
    ("unequal-context", body("@@ -8,4 +8,5 @@\n a\n b\n c\n d\n+x\n"), FIRST + 2, "4 lines"),
    ("unequal-context", body("@@ -18,0 +19 @@\n+x\n"), FIRST + 2, "0 lines"),
    bad_path("python/sglang/../../../evil.py"),
    bad_path("python/sglang/./runner.py"),
    bad_path("python/sglang//runner.py"),
    bad_path("../evil.py"),
    bad_path("python\\sglang\\runner.py"),
    bad_path("python/sglang/a\x07b.py"),
    bad_path("python/sglang/a b.py"),
    bad_path("python/torch/a.py"),
    bad_path("setup.py"),
]


@pytest.mark.parametrize("name, text, line, what", PROBLEMS, ids=[one[0] for one in PROBLEMS])
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
    assert names <= {name for name, *_ in PROBLEMS}


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
