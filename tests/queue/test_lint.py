"""Lint: each rule about the queue as a whole, by name, and what it leaves alone."""

from __future__ import annotations

import inspect
import re

import fakes
import pytest
from fakes import COUNT, CUT, patch_text

from patchqueue.applying.selection import select
from patchqueue.queue import series
from patchqueue.queue.series import PROVENANCE

VARIANT, OTHER = fakes.variant_text(), "steps/count-once-more@9.9.patch"
OF_THE_CUT = fakes.variant_text(CUT)
FIRST, STEPS = f"patches/{COUNT}", "overlay/python/sglang/srt/steps/"


def problems(project) -> list[tuple[str, str]]:
    queue, found = series.read(project.root)
    assert found == []
    return [(problem.name, problem.where) for problem in series.lint(project.root, queue)]


def variants(first: str, second: str, content: str = VARIANT):
    """A variant of the first patch, and the guards of both."""

    def change(project) -> None:
        entries = f"{COUNT}  # {first}\n{OTHER}  # {second}\n"
        project.write("series", f"{entries}{CUT}  # ==9.9.1\n")
        project.write(f"patches/{OTHER}", content)

    return change


def variant_of_nothing(project) -> None:
    variants("<9.9", ">=9.9")(project)
    (project.root / FIRST).unlink()
    project.edit("series", f"{COUNT}  # <9.9\n", "")


def written(name: str, content: str | bytes = "x = 1\n"):
    """A file of the overlay, and where its problem is."""
    return f"overlay/{name}", lambda project: project.write(f"overlay/{name}", content)


def gone(name: str):
    return lambda project: (project.root / name).unlink()


def link(name: str, to: str):
    return name, lambda project: (project.root / name).symlink_to(to)


OURS = "python/sglang/srt/steps/a.py"
CASES = [
    ("bad-variant", f"patches/{OTHER}", variants("<9.9", ">=9.9", patch_text())),
    ("bad-variant", f"patches/{OTHER}", variants("<9.9", ">=9.9", OF_THE_CUT)),
    ("bad-variant", f"patches/{OTHER}", variant_of_nothing),
    ("bad-variant", f"patches/{CUT}", lambda p: p.write(f"patches/{CUT}", VARIANT)),
    ("unnamed-overlay", *written("python/sglang/srt/extra.py")),
    ("symlink", *link(f"{STEPS}link.py", "__init__.py")),
    ("symlink", *link("overlay/test", "python")),
    ("reserved-name", *written(PROVENANCE)),
    ("bad-path", *written("setup.py")),
    ("bad-path", *written("python/sglang/srt/steps/a b.py")),
    ("bad-path", *written('python/sglang/srt/steps/a".py')),
    ("not-utf-8", *written(OURS, b"\xff\n")),
    ("crlf", *written(OURS, "x = 1\r\n")),
    ("overlay-form", *written(OURS, "")),
    ("overlay-form", *written(OURS, "x = 1")),
    ("missing-overlay", FIRST, gone(f"{STEPS}__init__.py")),
    ("unknown-patch", FIRST, lambda p: p.edit(FIRST, "Test:", "Needs: a/b.patch\nTest:")),
    ("missing-test", FIRST, gone("tests/revision/test_steps.py")),
]


@pytest.mark.parametrize(
    "name, where, change", CASES, ids=[f"{name}-{n}" for n, (name, _, _) in enumerate(CASES)]
)
def test_refuses(project, name, where, change):
    change(project)
    assert (name, where) in problems(project)


def test_all_names_are_covered():
    code = inspect.getsource(series).partition("def lint(")[2]
    assert {*re.findall(r'Problem\(\s*"([a-z0-9-]+)"', code)} == {name for name, _, _ in CASES}


def test_two_variants_for_one_release_are_refused(project):
    variants("<9.9", ">=9.9,<10")(project)
    assert problems(project) == []
    assert len(select(series.read(project.root)[0], project.pin).patches) == 2
    variants(">=9.8,<10", ">=9.9")(project)
    name, text = fakes.refused(select, series.read(project.root)[0], project.pin)
    assert name == "overlapping-variants" and COUNT in text


def test_byte_code_and_git_files_in_the_overlay_are_no_part_of_it(project):
    project.write(f"{STEPS}__pycache__/a.cpython-311.pyc", b"\0")
    project.write("overlay/.gitkeep", "")
    assert problems(project) == []


def test_each_repair_that_the_matrix_names_is_a_patch():
    """As after a rename."""
    names = re.findall(
        r'"([^"/\s]+/[^"\s]+\.patch)"', (fakes.ROOT / "evidence/matrix.toml").read_text()
    )
    assert names and {*names} <= {entry.base for entry in series.read(fakes.ROOT)[0].entries}
