"""The series: its lines, guards and variants; and guards that are parted and widened."""

import doctest
from dataclasses import replace

import pytest
from fakes import COUNT, CUT, RUNNER, numbered, patch_text, variant_text
from hypothesis import assume, given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from patchqueue.queue import edit as guards
from patchqueue.queue import patchfile, series


@pytest.mark.parametrize("module, count", [(series, 1), (guards, 6)])
def test_the_examples_in_the_docstrings(module, count):
    tried = doctest.testmod(module)
    assert tried.attempted >= count and tried.failed == 0


@pytest.mark.parametrize(
    "line, name",
    [
        ("a/b.patch", "empty-guard"),
        ("a/b.patch  #", "empty-guard"),
        ("a/b.patch  # 0.5.9", "bad-guard"),
        ("a/b.patch  # >=0.5.9 <0.5.10", "bad-guard"),
        ("a/b.patch  # ===0.5.9", "bad-guard"),  # compares text: no range
        ("b.patch  # >=0.5.9", "bad-path"),
        ("a/b.diff  # >=0.5.9", "bad-path"),
        ("../b.patch  # >=0.5.9", "bad-path"),
        ("a/../b.patch  # >=0.5.9", "bad-path"),
        ("a\\b.patch  # >=0.5.9", "bad-path"),
        ("a/B.patch  # >=0.5.9", "bad-path"),
        ("a/b.patch -p0  # >=0.5.9", "bad-path"),  # quilt would take an option from here
        ("a/b.patch\t# >=0.5.9", "bad-path"),
        ("a/b.patch  # >=0.5.9\r", "crlf"),
        ("ok/ok.patch  # >=0.5.9", "duplicate"),
        ("<<<<<<< HEAD", "bad-path"),
    ],
)
def test_refuses_lines(line, name):
    entries, problems = series.parse(f"ok/ok.patch  # >=0.5.9\n{line}\n")
    assert [(problem.name, problem.where) for problem in problems] == [(name, "series:2")]
    assert [entry.name for entry in entries] == ["ok/ok.patch"]


@pytest.mark.parametrize(
    "guard, version, taken",
    [
        (">=0.5.9,<0.5.10", "0.5.9.post1", True),
        (">=0.5.9,<0.5.10", "0.5.10", False),
        (">=0.5.9", "0.5.10rc1", True),  # a release candidate that is pinned is meant
        ("<0.5.10", "0.5.10rc1", False),
    ],
)
def test_guards(guard, version, taken):
    (entry,), _ = series.parse(f"a/b.patch  # {guard}\n")
    assert entry.is_for(Version(version)) is taken


@given(st.text(alphabet="ab/.@# \n\r\t<>=0.5*,p-", max_size=80))
def test_no_text_makes_parsing_raise(text):
    series.parse(text)


def test_a_selection_belongs_to_who_asked_and_a_changed_queue_selects_anew(project):
    queue, version = series.read(project.root)[0], Version("9.9.1")
    queue.select(version).clear()
    assert [patch.name for patch in queue.select(version)] == [one.name for one in queue.entries]
    assert queue.select(Version("10")) == []
    assert len(replace(queue, entries=queue.entries[:1]).select(version)) == 1


def test_variant_shares_its_base_header_and_overlay(project):
    name = "steps/count-once-more@9.9.1.patch"
    project.write("series", f"{COUNT}  # <9.9.1\n{name}  # >=9.9.1\n{CUT}  # ==9.9.1\n")
    project.write(f"patches/{name}", variant_text())
    queue, problems = series.read(project.root)
    assert problems == []
    variant, cut = queue.select(Version("9.9.1"))
    assert variant.name == name
    assert queue.header(name).get("Subject") == "Count the steps once more"
    assert list(queue.overlay_for([variant])) == ["python/sglang/srt/steps/__init__.py"]
    assert queue.overlay_for([cut]) == {}


@pytest.mark.parametrize("step", [1, -1], ids=["added", "removed"])
def test_a_patch_brings_what_its_added_lines_import(project, step):
    project.write("overlay/python/sglang/srt/steps/other.py", "name = 1\n")
    line = "step_20 = 20\nfrom sglang.srt.steps import other\n"
    texts = [numbered(40), numbered(40).replace("step_20 = 20\n", line)]
    patch = patch_text(RUNNER, *texts[::step], Overlay=None)
    project.write("patches/steps/count-once-more.patch", patch)
    queue, problems = series.read(project.root)
    brought = queue.overlay_for(queue.select(Version("9.9.1")))
    assert problems == [] and brought == (queue.overlay if step == 1 else {})


@pytest.mark.parametrize(
    "line",
    [
        "from . import other",
        "from .other import name",
        "from ..steps import other as one",
        "from sglang.srt.steps import (\n    nothing,\n    other,\n)",
        "import sglang.srt.steps.other",
        "def late():\n    from .other import name",
    ],
)
def test_a_named_file_brings_what_it_imports(project, line):
    folder = "python/sglang/srt/steps"
    project.write(f"patches/{COUNT}", patch_text(Overlay=f"{folder}/count.py"))
    for name, text in {
        "count": line,
        "other": "from .deep.last import name",
        "deep/__init__": '"""A room."""',
        "deep/last": "name = 1",
        "deep/nobodys": "name = 1",
    }.items():
        project.write(f"overlay/{folder}/{name}.py", f"{text}\n")
    queue, _ = series.read(project.root)
    names = ["__init__.py", "count.py", "deep/__init__.py", "deep/last.py", "other.py"]
    found = list(queue.overlay_for(queue.select(Version("9.9.1"))))
    assert found == [f"{folder}/{name}" for name in names]
    assert queue.unnamed_overlay() == [f"{folder}/deep/nobodys.py"]


def test_as_patch_makes_new_files():
    files = {"python/sglang/b.py": b"x\n", "python/sglang/a.py": b"1\n\f\n3\n"}
    parsed = patchfile.parse_diff(series.as_patch(files).decode())
    made = [(file.path, "".join(file.hunks[0].new).encode()) for file in parsed]
    assert made == sorted(files.items()) and all(len(file.hunks) == 1 for file in parsed)


RELEASES = [Version(f"0.5.{n}{post}") for n in range(5, 12) for post in ("", ".post1", ".post3")]
BOUNDS = [f"0.5.{n}" for n in range(4, 14)]
FORMS = st.sampled_from([">={0},<{1}", ">={0}", "=={0}.*", ">=0.5.4,!={0}.*"])
BOUND = st.sampled_from(BOUNDS)
RANGES = st.builds(str.format, FORMS, BOUND, BOUND)
PINNED, ONE = st.sets(st.sampled_from(RELEASES), max_size=6), st.sampled_from(RELEASES)


def takes(guard: str, version: Version) -> bool:
    return SpecifierSet(guard).contains(version, prereleases=True)


@given(guard=RANGES, pinned=PINNED, version=ONE)
def test_a_parted_guard_gives_the_version_to_the_new_variant_and_every_pin_its_own(
    guard, pinned, version
):
    assume(takes(guard, version))
    kept, new = guards.split(guard, version, pinned)
    assert takes(new, version)
    if not kept:
        assert new == guard and not any(takes(guard, pin) for pin in pinned - {version})
        return
    assert not takes(kept, version)
    for pin in pinned - {version}:
        assert takes(kept, pin) == takes(guard, pin) and not takes(new, pin)
    for other in RELEASES:
        parts = takes(kept, other) + takes(new, other)
        assert parts == takes(guard, other), "disjoint, and together what it was"


@given(pinned=PINNED, version=ONE)
def test_a_guard_of_its_own_takes_no_other_pin(pinned, version):
    guard = guards.guard_for(version, pinned)
    assert takes(guard, version) and not any(takes(guard, pin) for pin in pinned - {version})


WIDER = {  # None where a guard is no plain range
    ">=0.5.5,<0.5.6": ">=0.5.5,<0.5.10",
    "==0.5.5": ">=0.5.5,<0.5.10",
    "==0.5.5.*": ">=0.5.5,<0.5.10",
    ">=0.5.5": None,
    "~=0.5.5": None,
    ">=0.5.5,!=0.5.6.*": None,
    ">=0.5.5,<0.5.7,!=0.5.6": None,
}


@pytest.mark.parametrize(("guard", "wider"), WIDER.items())
def test_a_plain_range_is_widened_to_take_a_version_and_its_post_releases(guard, wider):
    assert guards.extended(guard, Version("0.5.9"), [Version("0.5.5")]) == wider
