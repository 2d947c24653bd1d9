"""Broken input of every kind: refused with the problem's name and place, and nothing written, in
the tree or the cache.

Each case breaks a project whose queue is applied, then runs one command as a user would.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable

import fakes
import pytest
from fakes import RELEASE, RUNNER, TAG, Project, header, numbered

from patchqueue.upstream import source

FIRST, CUT = f"patches/{fakes.COUNT}", f"patches/{fakes.CUT}"
LEFT, PINS = "patches/steps/left.patch", "upstream/pins.toml"
WHEEL = "sglang-9.9.1-py3-none-any.whl"
GONE = "python/sglang/gone.py"
Break = Callable[[Project], object]


def edit(file: str, old: str, new: str) -> Break:
    return lambda project: project.edit(file, old, new)


def write(file: str, content: str | bytes) -> Break:
    return lambda project: project.write(file, content)


def remove(file: str) -> Break:
    return lambda project: (project.root / file).unlink()


def series_is_a_folder(project: Project) -> None:
    (project.root / "series").unlink()
    (project.root / "series").mkdir()


def begin_with_a_byte_order_mark(project: Project) -> None:
    project.write("series", b"\xef\xbb\xbf" + (project.root / "series").read_bytes())


def link_instead_of_patch(project: Project) -> None:
    (project.root / FIRST).rename(project.root / "elsewhere.patch")
    (project.root / FIRST).symlink_to(project.root / "elsewhere.patch")


def change_what_upstream_lacks(project: Project) -> None:
    text = f"--- a/{GONE}\n+++ b/{GONE}\n@@ -1 +1 @@\n-a\n+b\n"
    project.write(FIRST, f"{header(Overlay='python/sglang/srt/steps/')}\n{text}")


def merge_upstream(project: Project) -> None:
    """Another release, whose runner has the change, takes the place of the pinned one."""
    (project.root / PINS).unlink()
    merged = numbered(40).replace("step_20 = 20\n", "step_20 = 20\nadded_step = 20\n")
    project.release(files=RELEASE | {"sglang/srt/runner.py": merged})
    project.warm()


def shadow_upstream(project: Project) -> None:
    project.write(f"overlay/{RUNNER}", "x = 1\n")
    project.edit(FIRST, "srt/steps/", f"srt/steps/, {RUNNER}")


def another_wheel(project: Project) -> None:
    fakes.write_wheel(project.wheels / WHEEL, RELEASE | {"sglang/version.py": "evil\n"})


def repinned(member: str) -> Break:
    """The release's own wheel is broken: pinned with the sha256 that it has, not yet cached."""

    def change(project: Project) -> None:
        old, path = project.pin.wheels[0].sha256, project.wheels / WHEEL
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(member, "x = 1\n")
        project.edit(PINS, old, source.file_sha256(path))

    return change


ON_HUNK = f"{FIRST} on {TAG}: {RUNNER}: hunk 1"
SERIES = [  # the problem's name, its place, and what breaks the project
    ("no-series", "series", remove("series")),
    ("no-series", "series", series_is_a_folder),
    ("not-utf-8", "series", write("series", b"\xff\n")),
    ("bad-path", "series:1", begin_with_a_byte_order_mark),
    ("empty-guard", "series:2", edit("series", "  # >=9.9,<10", "")),
    ("missing-patch", "series:3", remove(CUT)),
    ("missing-patch", "series:2", link_instead_of_patch),
    ("unlisted-file", LEFT, write(LEFT, "")),
    ("empty", TAG, lambda project: project.guards("<9", "<9")),
]
PATCHES = [
    ("bad-form", FIRST, edit(FIRST, "-18,6 +18,7", "-18,6 +18,9")),
    ("conflict", f"{FIRST} on {TAG}: {GONE}", change_what_upstream_lacks),
    ("merged upstream", ON_HUNK, merge_upstream),
    ("overlay-shadows-upstream", f"overlay/{RUNNER} on {TAG}", shadow_upstream),
]
WHEELS = [
    ("wrong-sha256", WHEEL, another_wheel),
    ("bad-member", WHEEL, repinned("../x")),
    ("tree mismatch", f"{TAG} from {WHEEL}", repinned("sglang/more.py")),
]


@pytest.mark.parametrize(("name", "where", "change"), [*SERIES, *PATCHES, *WHEELS])
def test_refused(applied, tool, name, where, change):
    change(applied)
    before = fakes.snapshot(applied.root, applied.cache)
    from_wheels = ("--from", applied.wheels) if (name, where, change) in WHEELS else ()
    code, _, said = tool(applied, "apply", *from_wheels)
    rows = said.splitlines()
    assert code == 1 and any(row.endswith(f"[{name}]") and where in row for row in rows), said
    assert fakes.snapshot(applied.root, applied.cache) == before


def test_the_project_that_is_broken_is_good_before(applied, tool):
    assert [tool(applied, word)[0] for word in ("check", "apply")] == [0, 0]
