"""Broken input of every kind: refused with the problem's name and place, and nothing written, in
the tree or the cache.

Each case breaks a project whose queue is applied, then runs one command as a user would.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import dataclass

import fakes
import pytest
from fakes import RELEASE, RUNNER, TAG, Project, header, numbered

from patchqueue.upstream import source

FIRST, CUT = f"patches/{fakes.COUNT}", f"patches/{fakes.CUT}"
STEPS = "overlay/python/sglang/srt/steps/"
PINS = "upstream/pins.toml"
WHEEL = "sglang-9.9.1-py3-none-any.whl"
Break = Callable[[Project], object]


@dataclass(frozen=True)
class Case:
    """name, where: of the problem that must be said. words: the command."""

    id: str
    name: str
    where: str
    change: Break
    words: tuple[str, ...] = ("apply",)


def edit(file: str, old: str, new: str) -> Break:
    return lambda project: project.edit(file, old, new)


def write(file: str, content: str | bytes) -> Break:
    return lambda project: project.write(file, content)


def first(old: str, new: str) -> Break:
    return edit(FIRST, old, new)


def one_file(path: str) -> Break:
    text = f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n"
    return write(FIRST, f"{header(Overlay='python/sglang/srt/steps/')}\n{text}")


def upstream(old: str, new: str) -> Break:
    """Another release, in which the runner reads differently, takes the place of the pinned one."""

    def change(project: Project) -> None:
        (project.root / PINS).unlink()
        project.release(files=RELEASE | {"sglang/srt/runner.py": numbered(40).replace(old, new)})
        project.warm()

    return change


def repinned(*members: tuple[str, str]) -> Break:
    """The release's own wheel is broken: pinned with the sha256 that it has, not yet cached."""

    def change(project: Project) -> None:
        old = project.pin.wheels[0].sha256
        path = project.wheels / WHEEL
        with zipfile.ZipFile(path, "a") as archive:
            for name, content in members:
                archive.writestr(name, content)
        project.edit(PINS, old, source.file_sha256(path))

    return change


def other_wheel(project: Project) -> None:
    fakes.write_wheel(project.wheels / WHEEL, RELEASE | {"sglang/version.py": "evil\n"})


def link_instead_of_patch(project: Project) -> None:
    (project.root / FIRST).rename(project.root / "elsewhere.patch")
    (project.root / FIRST).symlink_to(project.root / "elsewhere.patch")


ON = f"{FIRST} on {TAG}: {RUNNER}: hunk 1"
FROM_WHEELS = ("apply", "--from", "{wheels}")


def overlap(project: Project) -> None:
    project.edit("series", "<10\n", "<10\nsteps/count-once-more@9.9.patch  # >=9.9\n")
    project.write("patches/steps/count-once-more@9.9.patch", fakes.variant_text())


CASES = [
    # series
    Case("series-missing", "no-series", "series", lambda p: (p.root / "series").unlink()),
    Case(
        "series-is-a-folder",
        "no-series",
        "series",
        lambda p: ((p.root / "series").unlink(), (p.root / "series").mkdir()),
    ),
    Case("series-not-utf-8", "not-utf-8", "series", write("series", b"\xff\n")),
    Case(
        "series-byte-order-mark",
        "byte-order-mark",
        "series:1",
        lambda p: p.write("series", b"\xef\xbb\xbf" + (p.root / "series").read_bytes()),
    ),
    Case("series-no-guard", "empty-guard", "series:2", edit("series", "  # >=9.9,<10", "")),
    Case("series-names-no-file", "missing-patch", "series:3", lambda p: (p.root / CUT).unlink()),
    Case("series-names-a-link", "missing-patch", "series:2", link_instead_of_patch),
    Case(
        "series-leaves-a-file-out",
        "unlisted-file",
        "patches/steps/left.patch",
        write("patches/steps/left.patch", ""),
    ),
    Case("series-selects-nothing", "empty", TAG, lambda p: p.guards("<9", "<9")),
    Case("variants-overlap", "overlapping-variants", "series:3", overlap),
    # a patch
    Case("header-field-missing", "missing-field", FIRST, first("Origin: own\n", "")),
    Case("patch-hand-edited-counts", "bad-form", FIRST, first("-18,6 +18,7", "-18,6 +18,9")),
    # the trees
    Case(
        "tree-not-pinned",
        "no-tree-pinned",
        "upstream/pins.toml: 9.9.1",
        lambda p: p.edit(PINS, f'patched = "{p.pin.patched}"\n', ""),
        ("check",),
    ),
    # how it fits
    Case(
        "release-lacks-the-file",
        "conflict",
        f"{FIRST} on {TAG}: python/sglang/gone.py",
        one_file("python/sglang/gone.py"),
    ),
    Case("release-reads-otherwise", "conflict", ON, upstream("step_21 = 21", "step_21 = None")),
    Case(
        "release-has-it-already",
        "merged upstream",
        ON,
        upstream("step_20 = 20\n", "step_20 = 20\nadded_step = 20\n"),
    ),
    Case(
        "release-lacks-it-unexplained",
        "unexplained-gap",
        f"{FIRST} on {TAG}",
        edit("series", ">=9.9,<10", ">=10"),
        ("check",),
    ),
    # overlay
    Case(
        "overlay-link",
        "symlink",
        STEPS + "x.py",
        lambda p: (p.root / STEPS / "x.py").symlink_to("/etc/passwd"),
    ),
    Case(
        "overlay-over-upstreams-file",
        "overlay-shadows-upstream",
        f"overlay/{RUNNER} on {TAG}",
        lambda p: (
            p.write(f"overlay/{RUNNER}", "x = 1\n"),
            p.edit(FIRST, "srt/steps/", f"srt/steps/, {RUNNER}"),
        ),
    ),
    # pins
    Case("pins-no-toml", "bad-pins", PINS, write(PINS, "[[[")),
    Case(
        "pins-wrong-tree",
        "tree mismatch",
        f"{TAG} from {WHEEL}",
        lambda p: p.edit(PINS, p.pin.tree, "sha256:" + "0" * 64),
        FROM_WHEELS,
    ),
    Case("pins-say-no-patches", "stale-no-patches", TAG, lambda p: p.without_patches("none")),
    # wheels and archives
    Case("wheel-is-another", "wrong-sha256", WHEEL, other_wheel, FROM_WHEELS),
    Case("member-up", "bad-member", WHEEL, repinned(("../x", "")), FROM_WHEELS),
    Case(
        "member-more",
        "tree mismatch",
        f"{TAG} from {WHEEL}",
        repinned(("sglang/more.py", "x = 1\n")),
        FROM_WHEELS,
    ),
    # git
    Case(
        "git-tag-missing",
        "not-fetched",
        "checkout",
        lambda p: p.checkout(p.root / "checkout", tag="v9.9.0"),
        ("apply", "--from", "{root}/checkout"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_refused(applied, case, tool):
    case.change(applied)
    before = fakes.snapshot(applied.root, applied.cache)
    words = [word.format(wheels=applied.wheels, root=applied.root) for word in case.words]
    code, _, said = tool(applied, *words)
    assert code == 1
    rows = said.splitlines()
    assert any(row.endswith(f"[{case.name}]") and case.where in row for row in rows), said
    assert fakes.snapshot(applied.root, applied.cache) == before


def test_the_project_that_is_broken_is_good_before(applied, tool):
    assert [tool(applied, word)[0] for word in ("check", "apply")] == [0, 0]
