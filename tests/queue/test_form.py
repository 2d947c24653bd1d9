"""The form of a patch file and of its header: what is accepted; each problem by its line."""

import re

import pytest
from fakes import RELEASE, RUNNER, diff, header, numbered, patch_text
from fakes import header as text
from hypothesis import given
from hypothesis import strategies as st

from patchqueue.queue import header as headers
from patchqueue.queue import patchfile

EXAMPLES = {  # field -> (accepted, refused)
    "Subject": (["Count once more", "A" * 72], ["count once more", "Short", "A" * 73, ""]),
    "Description": (
        ["Why: a user saw too few steps.", "Short first line\n .\n and a second paragraph"],
        ["too short"],
    ),
    "Origin": (
        ["own", "upstream, sglang#123", "upstream, sglang#1, sglang#2"],
        ["mine", "upstream", "upstream, #12", "sglang#12"],
    ),
    "Upstream-Status": (
        [
            "Merged 0.5.10",
            "Merged 0.5.10.post1, sglang#1, sglang#23",
            "Merged 0.5.10rc1",
            "Pending",
            "Submitted #12",
            "Inappropriate: too special",
        ],
        ["Merged", "Merged now", "Merged 1.0.0, #1", "pending", "Submitted 1", "Inappropriate", ""],
    ),
    "Profile": (["fixes", "fixes, rl", None], ["fix", "fixes rl", ""]),
    "Probe": (
        [
            "python/sglang/a.py :: def f",
            "test/a.py :: /x+/",
            ["python/sglang/a.py :: x", "python/sglang/b.py :: y"],
        ],
        [
            "def f",
            "python/sglang/a.py",
            "python/sglang/a.py ::",
            "/etc/passwd :: x",
            "python/torch/a.py :: x",
            "python/sglang/a.py :: /(/",
        ],
    ),
    "Gap": (
        [None, "<9.9: there is no runner", ["<9.8: too old for it", ">10: does it otherwise"]],
        ["too old for it", "<9.9: short", "soon: the runner does not exist"],
    ),
    "Overlay": (["none", None, "python/sglang/a.py", "python/sglang/a/, test/b/"], ["a b", "a,b"]),
    "Needs": (
        ["a/b.patch", "a/b.patch, c/d.patch", None],
        ["a/b", "a/b@0.5.9.patch", "a/b.patch c/d.patch"],
    ),
    "Test": (
        ["tests/revision/test_a.py", "tests/a.py, tests/b.py"],
        ["none", "test_a.py", "tests/a", "tests/a.py tests/b.py"],
    ),
}
VARIANT_EXAMPLES = {
    "Variant-Of": (["steps/count.patch"], ["steps/count@9.patch", "steps/count", "a b.patch"]),
    "Description": ([None, "How it differs: the runner was renamed."], ["renamed"]),
}


def problems(source: str) -> list[str]:
    header, complaints = headers.parse(source)
    found = [problem.name for problem in headers.problems("here", header)]
    return ["bad-header"] * len(complaints) + found


def variant(**changes: str | None) -> str:
    own = {name.replace("_", "-"): value for name, value in changes.items()}
    fields = {"Variant-Of": "steps/count.patch"} | own
    return "".join(f"{name}: {value}\n" for name, value in fields.items() if value is not None)


CASES = [  # of a patch's own fields and of a variant's: those that are accepted, and those refused
    pytest.param(make, field, value, found, id=f"{make.__name__}-{field}={str(value)[:24]}")
    for make, examples in ((text, EXAMPLES), (variant, VARIANT_EXAMPLES))
    for field, pair in examples.items()
    for values, found in zip(pair, ([], ["bad-field"]))
    for value in values
]


def test_every_rule_has_examples():
    for examples, rules in ((EXAMPLES, headers.RULES), (VARIANT_EXAMPLES, headers.VARIANT_RULES)):
        assert list(examples) == [rule.field for rule in rules]
        assert all(accepted and refused for accepted, refused in examples.values())


@pytest.mark.parametrize("make, field, value, found", CASES)
def test_fields(make, field, value, found):
    assert problems(make(**{field: value})) == found


@pytest.mark.parametrize("rule", headers.RULES, ids=lambda rule: rule.field)
def test_only_some_fields_may_be_left_out_or_repeated(rule):
    assert problems(text(**{rule.field: None})) == (["missing-field"] if rule.required else [])
    value = EXAMPLES[rule.field][0][-1 if rule.field == "Gap" else 0]
    values = value if isinstance(value, list) else [value, value]
    assert problems(text(**{rule.field: values})) == ([] if rule.repeats else ["repeated-field"])


@pytest.mark.parametrize(
    "source, name",
    [
        (text(Reviewed_By="nobody"), "unknown-field"),
        (text() + "no field at all\n", "bad-header"),
        (text() + "\ntext behind the header\n", "bad-header"),
        (" begins with a continuation\n" + text(), "bad-header"),
        ("From 0123456789 Mon Sep 17 00:00:00 2001\n" + text(), "bad-header"),
        (variant(Origin="own"), "unknown-field"),
    ],
)
def test_refuses_what_is_no_field(source, name):
    assert name in problems(source)


@pytest.mark.parametrize(
    "probe, content, matches",
    [
        ("x = 1", "if y:\n    x  =\n 1\n", True),  # white space is folded on both sides
        ("x = 1", "x = 2", False),
        ("x = 1", "1 = x", False),  # the words, in their order
        # a regular expression reads the raw file, line by line, and over line ends
        ("/^x = [0-9]+$/", "a\nx = 12\nb", True),
        ("/^x = [0-9]+$/", "a\n  x = 12\n", False),
        ("/x.*y/", "x\ny", True),
        # two slashes are text, not an expression that matches all
        ("//", "nothing of the kind", False),
    ],
)
def test_probe(probe, content, matches):
    _, pattern = headers.parse(text(Probe=f"python/sglang/a.py :: {probe}"))[0].probes[0]
    assert bool(pattern.search(content)) is matches


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
    ("bad-header", "\ufeff" + GOOD, None, ""),
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
    ("bad-form", replaced("--- a/", "rename from a\nrename to b\n--- a/"), FIRST, "rename from"),
    ("bad-form", replaced("--- a/", "old mode 1\nnew mode 2\n--- a/"), FIRST, "old mode"),
    ("bad-form", body("", "Binary files a/x and b/x differ\n"), FIRST, "Binary"),
    ("bad-form", body("@@ -0,0 +1 @@\n+x\n", "--- /dev/null\n+++ b/a\n"), FIRST, ""),
    ("bad-form", body("@@ -1 +0,0 @@\n-x\n", "--- a/a\n+++ /dev/null\n"), FIRST + 1, ""),
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
    names = {*re.findall(r'Problem\("([a-z0-9-]+)"', source)}
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
        ({"Description": "No diff:\n --- a/b\n index\n .\n rename to"}, [(RUNNER, "a\n", "b\n")]),
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
    """Whatever the lines look like; a diff that fills or empties a file has no good form."""
    made = diff(RUNNER, before, after)
    patch, problems = read(f"{header()}\n{made}")
    known = "new-or-deleted-file" if not after or not before else ""
    names = {problem.name for problem in problems}
    assert names <= {known if made else "empty-patch"}, made
    assert not patch or [hunk for file in patch.files for hunk in file.hunks]


@given(cut=st.integers(0, len(GOOD) - 1))
def test_a_patch_cut_anywhere_is_refused(cut):
    assert read(GOOD[:cut])[1]


@given(at=st.integers(GOOD.index("@@"), len(GOOD) - 1), put=st.sampled_from("\n\r\0\t -+@\\x"))
def test_no_damage_to_a_hunk_raises(at, put):
    read(GOOD[:at] + put + GOOD[at + 1 :])
