"""The header rules: every rule accepts what it should and refuses what it should not."""

from __future__ import annotations

import pytest
from fakes import header as text

from patchqueue.queue import header as headers

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
            "Merged 0.5.10.post1",
            "Merged 0.5.10rc1",
            "Pending",
            "Submitted #12",
            "Inappropriate: too special",
        ],
        ["Merged", "Merged soon", "pending", "Submitted 12", "Inappropriate", ""],
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
        [
            None,
            "<9.9: the runner does not exist",
            ["<9.8: too old for it", ">10: does it otherwise"],
        ],
        ["too old for it", "<9.9: short", "soon: the runner does not exist"],
    ),
    "Overlay": (
        ["none", None, "python/sglang/a.py", "python/sglang/a/, test/b.py"],
        ["a b", "a,b"],
    ),
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


def cases(which: int) -> list:
    """Of a patch's own fields and of a variant's: those that are accepted, or those refused."""
    return [
        pytest.param(make, field, value, id=f"{make.__name__}-{field}={str(value)[:24]}")
        for make, examples in ((text, EXAMPLES), (variant, VARIANT_EXAMPLES))
        for field, pair in examples.items()
        for value in pair[which]
    ]


def test_every_rule_has_examples():
    for examples, rules in ((EXAMPLES, headers.RULES), (VARIANT_EXAMPLES, headers.VARIANT_RULES)):
        assert list(examples) == [rule.field for rule in rules]
        assert all(accepted and refused for accepted, refused in examples.values())


@pytest.mark.parametrize("make, field, value", cases(0))
def test_accepts(make, field, value):
    assert problems(make(**{field: value})) == []


@pytest.mark.parametrize("make, field, value", cases(1))
def test_refuses(make, field, value):
    assert problems(make(**{field: value})) == ["bad-field"]


@pytest.mark.parametrize("rule", headers.RULES, ids=lambda rule: rule.field)
def test_required_fields_may_not_be_left_out(rule):
    assert problems(text(**{rule.field: None})) == (["missing-field"] if rule.required else [])


@pytest.mark.parametrize("rule", headers.RULES, ids=lambda rule: rule.field)
def test_only_some_fields_may_be_repeated(rule):
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


def test_fields_are_read_as_written():
    header, _ = headers.parse(
        text(
            Description="First line of it\n second\n .\n third",
            Probe=["python/sglang/a.py :: x  =  1", "python/sglang/b.py :: /^y = [0-9]+$/"],
            Gap=["<9.9: too old\n for this", ">10: other way round"],
            Overlay="python/sglang/a/, test/b.py",
            Test="tests/a.py, tests/b.py",
        )
    )
    assert header.get("Description") == "First line of it\nsecond\n\nthird"
    assert [(probe.path, probe.text, probe.is_regex) for probe in header.probes] == [
        ("python/sglang/a.py", "x  =  1", False),
        ("python/sglang/b.py", "^y = [0-9]+$", True),
    ]
    assert [(str(gap.releases), gap.reason) for gap in header.gaps] == [
        ("<9.9", "too old for this"),
        (">10", "other way round"),
    ]
    assert header.overlay == ("python/sglang/a/", "test/b.py")
    assert header.tests == ("tests/a.py", "tests/b.py")
    assert not header.is_variant and headers.parse(variant())[0].is_variant


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
    line = headers.parse(text(Probe=f"python/sglang/a.py :: {probe}"))[0].probes[0]
    assert line.matches(content) is matches
