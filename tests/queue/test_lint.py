"""Lint: each rule about the queue as a whole, by name, and what it leaves alone."""

from __future__ import annotations

import re

import pytest
from fakes import patch_text

from patchqueue.queue import imports, series
from patchqueue.queue import lint as linting
from patchqueue.queue.series import PROVENANCE

VARIANT = "Variant-Of: steps/count-once-more.patch\n\n" + patch_text().split("\n\n", 1)[1]
TWO = (
    "steps/count-once-more.patch  # {}\nsteps/count-once-more@9.9.patch  #"
    " {}\nsteps/name-the-cut.patch  # ==9.9.1\n"
)


def problems(project) -> list[tuple[str, str]]:
    queue, found = series.read(project.root)
    assert found == []
    found = [*linting.lint(project.root, queue), *linting.unlisted_names(project.root, queue)]
    return [(problem.name, problem.where) for problem in found]


def with_variant(project, first: str, second: str, content: str = VARIANT) -> None:
    project.write("series", TWO.format(first, second))
    project.write("patches/steps/count-once-more@9.9.patch", content)


def variant_of_nothing(project):
    with_variant(project, "<9.9", ">=9.9")
    (project.root / "patches/steps/count-once-more.patch").unlink()
    project.write("series", TWO.format("<9.9", ">=9.9").split("\n", 1)[1])


CUT = "steps/name-the-cut"
A = "overlay/python/sglang/srt/steps/a.py"
SECOND = "patches/steps/count-once-more@9.9.patch"
OTHER = VARIANT.replace("count-once-more", "name-the-cut")
WRITTEN = [  # problem, where it is, the file that makes it
    ("unnamed-overlay", "overlay/python/sglang/srt/extra.py", "x = 1\n"),
    ("reserved-name", f"overlay/{PROVENANCE}", "x = 1\n"),
    ("bad-path", "overlay/setup.py", "x = 1\n"),
    ("bad-path", "overlay/python/sglang/srt/steps/a b.py", "x = 1\n"),
    ("bad-path", 'overlay/python/sglang/srt/steps/a".py', "x = 1\n"),
    ("not-utf-8", A, b"\xff\n"),
    ("crlf", A, "x = 1\r\n"),
    ("overlay-form", A, ""),
    ("overlay-form", A, "x = 1"),
    ("bad-variant", f"patches/{CUT}.patch", VARIANT),
    ("unknown-patch", "docs/patches.md:2", "| patch |\n| `steps/count-more` | 9.9 | too few |\n"),
    ("unknown-patch", "evidence/matrix.toml:2", '[graphs]\nrepairs = ["steps/count-more.patch"]\n'),
    ("unknown-patch", "evidence/questions.toml:1", 'repairs = ["steps/count-more.patch"]\n'),
    ("unknown-patch", "pull-requests/steps/count-more/pull-request.toml", 'title = "More"\n'),
    ("unknown-patch", f"pull-requests/{CUT}/pull-request.toml", 'below = [\n    "a/b",\n]\n'),
]
CASES = [
    *(
        (name, where, lambda p, file=where.partition(":")[0], text=text: p.write(file, text))
        for name, where, text in WRITTEN
    ),
    ("overlapping-variants", "series:2", lambda p: with_variant(p, ">=9.8,<10", ">=9.9")),
    ("bad-variant", SECOND, lambda p: with_variant(p, "<9.9", ">=9.9", patch_text())),
    ("bad-variant", SECOND, lambda p: with_variant(p, "<9.9", ">=9.9", OTHER)),
    ("bad-variant", SECOND, variant_of_nothing),
    (
        "symlink",
        "overlay/python/sglang/srt/steps/link.py",
        lambda p: (p.root / "overlay/python/sglang/srt/steps/link.py").symlink_to("__init__.py"),
    ),
    ("symlink", "overlay/test", lambda p: (p.root / "overlay/test").symlink_to("python")),
    (
        "missing-overlay",
        "patches/steps/count-once-more.patch",
        lambda p: (p.root / "overlay/python/sglang/srt/steps/__init__.py").unlink(),
    ),
    (
        "unknown-patch",
        "patches/steps/name-the-cut.patch",
        lambda p: p.edit(f"patches/{CUT}.patch", "Test:", "Needs: steps/count-more.patch\nTest:"),
    ),
    (
        "missing-test",
        "patches/steps/count-once-more.patch",
        lambda p: (p.root / "tests/revision/test_steps.py").unlink(),
    ),
]


@pytest.mark.parametrize(
    "name, where, change", CASES, ids=[f"{name}-{n}" for n, (name, _, _) in enumerate(CASES)]
)
def test_refuses(project, name, where, change):
    change(project)
    assert (name, where) in problems(project)


def test_all_names_are_covered():
    names = set(re.findall(r'Problem\(\s*"([a-z0-9-]+)"', open(linting.__file__).read()))
    assert names == {name for name, _, _ in CASES}


def test_disjoint_variants_are_good(project):
    """And a pull request may name a step, by a folder that has no patch."""
    with_variant(project, "<9.9", ">=9.9,<10")
    for name, text in (("steps/first", f'step_to = "{CUT}"\n'), (CUT, 'below = ["steps/first"]\n')):
        project.write(f"pull-requests/{name}/pull-request.toml", text)
    assert problems(project) == []


def test_byte_code_and_git_files_in_the_overlay_are_no_part_of_it(project):
    project.write("overlay/python/sglang/srt/steps/__pycache__/a.cpython-311.pyc", b"\0")
    project.write("overlay/.gitkeep", "")
    assert problems(project) == []


@pytest.mark.parametrize(
    ("text", "lines", "files"),
    [
        ("import a.b as c, d  # e\n", [1], {"python/a/b", "python/d"}),
        ("\n    from a import (\n  b,\n  c as d,\n)\n", [2], {"python/a/b", "python/a/c"}),
        ("from . import b\n", [1], {"python/sglang/srt/b"}),
        ("x = 1\nfrom ..c import d\n", [2], {"python/sglang/c", "python/sglang/c/d"}),
        ("important = 'from a import b'\n", [], set()),
    ],
)
def test_imports_of_a_module(text, lines, files):
    found = [*imports.by_line("python/sglang/srt/module.py", text.encode())]
    assert sorted({line for line, _ in found}) == lines
    assert {f"{file}.py" for file in files} <= {file for _, file in found}
    assert bool(found) is bool(files)
    alone = imports.of_lines([text])
    assert alone == (set() if "from ." in text else {file for _, file in found})
