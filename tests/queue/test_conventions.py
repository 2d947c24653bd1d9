"""Upstream's written rules on what a pull request adds, and our cases in upstream's test files."""

from __future__ import annotations

import ast

import pytest

from patchqueue.handover import cases, conventions
from patchqueue.outcome import Refused

FILE = "python/sglang/srt/layers/a.py"
TEST = "test/registered/unit/test_a.py"
PACKAGES = ("layers", "models")
REGISTERED = "register_cpu_ci(est_time=1)\n"
LONG = "x" * 90


def found(after: str, before: str = "", path: str = FILE) -> list[tuple[str, int, bool]]:
    rows = conventions.findings({path: before.encode()}, {path: after.encode()}, PACKAGES)
    return [(row.rule, int(row.where.rpartition(":")[2]), row.refused) for row in rows]


@pytest.mark.parametrize(
    ("text", "rule", "line", "refuses"),
    [
        ("import x\n\n\n@dataclass\nclass A:\n    a: int\n", "dataclass", 4, True),
        ("@dataclasses.dataclass(frozen=True)\nclass A:\n    a: int\n", "dataclass", 1, True),
        ("a = 1  # a \u2192 b\n", "ascii", 1, True),
        (f"a = 1\n# {LONG}\n", "long-line", 2, True),
        (f'def a():\n    """One.\n\n    {LONG}\n    """\n', "long-line", 4, True),
        (f'"""{LONG}"""\n', "long-line", 1, True),
        ("# TODO: later\na = 1\n", "tag", 1, True),
        ("# FIXME\na = 1\n", "tag", 1, True),
        (
            'def a(b):\n    """Do.\n\n    Args:\n        b: it\n    """\n',
            "docstring-block",
            2,
            True,
        ),
        ('def _a(b):\n    """Do.\n\n    More.\n    """\n', "long-docstring", 2, False),
        ("a = getattr(b, 'c', None)\n", "defensive-access", 1, False),
        ("a = hasattr(b, 'c')\n", "defensive-access", 1, False),
        ("# one\n# two\n# three\na = 1\n", "long-comment", 3, False),
        ("def (:\n", "no-python", 1, True),
    ],
)
def test_a_rule_names_its_line(text, rule, line, refuses):
    assert found(text) == [(rule, line, refuses)]


@pytest.mark.parametrize(
    "text",
    [
        "class A(msgspec.Struct):\n    a: int\n",
        "a = getattr(b, 'c')\n",
        f'a = "{LONG}"\n',
        "# TODO(someone): later\n# NOTE: so\na = 1\n",
        'def a(b):\n    """Do.\n\n    More.\n    """\n',
    ],
)
def test_what_the_rules_allow_is_no_finding(text):
    assert found(text) == []


def test_only_added_lines_count():
    old = "a = hasattr(b, 'c')  # \u2192\n"
    assert found(old + "d = 1\n", old) == []
    assert found(old + "d = hasattr(b, 'c')\n", old) == [("defensive-access", 2, False)]


def test_a_new_package_of_srt_is_refused():
    files = {f"python/sglang/srt/{name}/a.py": b"" for name in ("layers", "mine")}
    [one] = conventions.findings({}, files, PACKAGES)
    assert (one.rule, one.where, one.refused) == ("new-package", "python/sglang/srt/mine", True)


def test_upstreams_hooks_for_tests():
    assert found("a = 1\n", path=TEST) == [("unregistered-test", 1, True)]
    assert found(REGISTERED + "a = hasattr(b, 'c')\n", path=TEST) == []
    bare = REGISTERED + 'if __name__ == "__main__":\n    pytest.main([__file__])\n'
    assert found(bare, path=TEST) == [("bare-pytest-main", 3, True)]
    assert found(bare.replace("pytest.main([__file__])", "sys.exit(0)"), path=TEST) == []
    packed = "python/sglang/test/test_a.py"
    assert found(REGISTERED, path=packed) == [("test-in-package", 1, True)]
    assert found("a = 1\n", path=packed) == []


THEIRS = '''"""Theirs."""

import os
import unittest

from a import b

register_cpu_ci(est_time=9)

LIMIT = 3


class TestA(unittest.TestCase):
    def test_one(self):
        assert os


def helper():
    return 1


if __name__ == "__main__":
    unittest.main()
'''
OURS = '''"""Ours, alone."""

import unittest

from a import b, c

maybe_stub()

register_cpu_ci(est_time=1)

LIMIT = 3


# what ours is for
class TestA(unittest.TestCase):
    # two is more
    @mark
    def test_two(self):
        assert c


def helper():
    return 1


class TestB(unittest.TestCase):
    def test_three(self):
        assert b


if __name__ == "__main__":
    unittest.main()
'''


def test_cases_come_where_upstream_has_its_own():
    made = cases.join(TEST, THEIRS.encode(), OURS.encode()).decode()
    ast.parse(made)
    kept = [line for line in made.splitlines() if line in THEIRS.splitlines()]
    assert [line for line in kept if line] == [line for line in THEIRS.splitlines() if line]
    assert made.count("LIMIT") == made.count("def helper") == made.count("register_cpu_ci") == 1
    assert "Ours" not in made and "maybe_stub" not in made and "from a import c\n" in made
    assert "        assert os\n\n    # two is more\n    @mark\n    def test_two(self):\n" in made
    assert made.index("def test_two") < made.index("def helper") < made.index("class TestB")
    assert made.endswith('assert b\n\n\nif __name__ == "__main__":\n    unittest.main()\n')
    assert cases.names(THEIRS.encode(), made.encode()) == ("(TestA and test_two)", "TestB")


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("test_two", "test_one", "TestA.test_one"),
        ("LIMIT = 3", "LIMIT = 4", "LIMIT"),
        ("return 1", "return 2", "helper"),
    ],
)
def test_a_name_of_upstreams_is_not_taken(old, new, name):
    with pytest.raises(Refused, match=f"has {name} already, another one"):
        cases.join(TEST, THEIRS.encode(), OURS.replace(old, new).encode())


def test_a_file_that_is_no_python_is_named():
    with pytest.raises(Refused, match=f"{TEST}: is no Python"):
        cases.join(TEST, THEIRS.encode(), b"def (")
