"""Broken input of every kind: refused with the problem's name and place, and nothing written, in
the tree or the cache.

Each case breaks a project whose queue is applied, then runs one command as a user would.
"""

from __future__ import annotations

import stat
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass

import fakes
import pytest
from fakes import RELEASE, RUNNER, TAG, Project, git, header, numbered, patch_text

from patchqueue.commands import cli
from patchqueue.upstream import source

FIRST, CUT = "patches/steps/count-once-more.patch", "patches/steps/name-the-cut.patch"
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


def fits_twice(project: Project) -> None:
    """The release has the text once more, further down."""
    upstream("step_40 = 40\n", "step_40 = 40\n" + numbered(40))(project)


def repinned(*members: tuple[str | zipfile.ZipInfo, str]) -> Break:
    """The release's own wheel is broken: pinned with the sha256 that it has, not yet cached."""

    def change(project: Project) -> None:
        old = project.pin.wheels[0].sha256
        path = project.wheels / WHEEL
        with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zipfile warns of duplicates
            for name, content in members:
                archive.writestr(name, content)
        project.edit(PINS, old, source.file_sha256(path))

    return change


def link(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name)
    member.create_system, member.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return member


def other_wheel(project: Project) -> None:
    fakes.write_wheel(project.wheels / WHEEL, RELEASE | {"sglang/version.py": "evil\n"})


def cut_off(project: Project) -> None:
    path = project.wheels / WHEEL
    path.write_bytes(path.read_bytes()[:-100])


def wrong_tree_in_git(project: Project) -> None:
    folder = project.checkout(project.root / "checkout", tag=None)
    (folder / "python/sglang/version.py").write_text("evil\n")
    git(folder, "commit", "-qam", "evil")
    git(folder, "tag", TAG)


def link_instead_of_patch(project: Project) -> None:
    (project.root / FIRST).rename(project.root / "elsewhere.patch")
    (project.root / FIRST).symlink_to(project.root / "elsewhere.patch")


ON = f"{FIRST} on {TAG}: {RUNNER}: hunk 1"
FROM_WHEELS = ("apply", "--from", "{wheels}")


def overlap(project: Project) -> None:
    project.edit("series", "<10\n", "<10\nsteps/count-once-more@9.9.patch  # >=9.9\n")
    text = "Variant-Of: steps/count-once-more.patch\n\n" + patch_text().split("\n\n", 1)[1]
    project.write("patches/steps/count-once-more@9.9.patch", text)


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
    Case("series-crlf", "crlf", "series:2", edit("series", ">=9.9,<10\n", ">=9.9,<10\r\n")),
    Case(
        "series-byte-order-mark",
        "byte-order-mark",
        "series:1",
        lambda p: p.write("series", b"\xef\xbb\xbf" + (p.root / "series").read_bytes()),
    ),
    Case("series-no-guard", "empty-guard", "series:2", edit("series", "  # >=9.9,<10", "")),
    Case(
        "series-duplicate",
        "duplicate",
        "series:4",
        edit("series", "==9.9.1\n", "==9.9.1\nsteps/name-the-cut.patch  # ==9.9.1\n"),
    ),
    Case(
        "series-quilt-option",
        "bad-path",
        "series:3",
        edit("series", "name-the-cut.patch ", "name-the-cut.patch -R "),
    ),
    Case("series-names-no-file", "missing-patch", "series:3", lambda p: (p.root / CUT).unlink()),
    Case("series-names-a-link", "missing-patch", "series:2", link_instead_of_patch),
    Case(
        "series-leaves-a-file-out",
        "unlisted-file",
        "patches/steps/left.patch",
        write("patches/steps/left.patch", ""),
    ),
    Case(
        "series-selects-nothing",
        "empty",
        TAG,
        write("series", "steps/count-once-more.patch # <9\nsteps/name-the-cut.patch # <9\n"),
    ),
    Case("variants-overlap", "overlapping-variants", "series:3", overlap),
    # a patch's header
    Case("header-field-missing", "missing-field", FIRST, first("Origin: own\n", "")),
    Case(
        "header-test-missing",
        "missing-test",
        FIRST,
        lambda p: (p.root / "tests/revision/test_steps.py").unlink(),
    ),
    # its form
    Case(
        "patch-not-utf-8",
        "not-utf-8",
        FIRST,
        lambda p: p.write(FIRST, (p.root / FIRST).read_bytes() + b"\xff"),
    ),
    Case("patch-hand-edited-counts", "bad-form", FIRST, first("-18,6 +18,7", "-18,6 +18,9")),
    Case("patch-renames", "rename", FIRST, first("--- a/", "rename from a\nrename to b\n--- a/")),
    Case("patch-fits-at-two-places", "conflict", FIRST, fits_twice),
    # the trees
    Case(
        "tree-not-pinned",
        "no-tree-pinned",
        "upstream/pins.toml: 9.9.1",
        lambda p: p.edit(PINS, f'patched = "{p.pin.patched}"\n', ""),
        ("check",),
    ),
    Case(
        "tree-is-another",
        "tree mismatch",
        "upstream/pins.toml: 9.9.1",
        edit(f"{STEPS}__init__.py", "our own", "ours"),
        ("check",),
    ),
    Case("patch-path-up", "bad-path", FIRST, one_file("python/sglang/../../../x")),
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
    Case(
        "release-passes-the-probe",
        "merged upstream",
        f"{FIRST} on {TAG}",
        first(":: added_step", ":: step_7"),
        ("check",),
    ),
    # overlay
    Case(
        "overlay-missing",
        "missing-overlay",
        FIRST,
        lambda p: (p.root / STEPS / "__init__.py").unlink(),
    ),
    Case(
        "overlay-unnamed",
        "unnamed-overlay",
        "overlay/python/sglang/other.py",
        write("overlay/python/sglang/other.py", "x = 1\n"),
    ),
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
    Case("pins-missing", "no-pins", PINS, lambda p: (p.root / PINS).unlink()),
    Case("pins-no-toml", "bad-pins", PINS, write(PINS, "[[[")),
    Case(
        "pins-wrong-tree",
        "tree mismatch",
        f"{TAG} from {WHEEL}",
        lambda p: p.edit(PINS, p.pin.tree, "sha256:" + "0" * 64),
        FROM_WHEELS,
    ),
    Case(
        "pins-say-no-patches",
        "stale-no-patches",
        TAG,
        edit(PINS, 'tag = "v9.9.1"', 'tag = "v9.9.1"\nno_patches = "none"'),
    ),
    Case("revision-unknown", "unknown-revision", "'v9.9.2'", lambda p: None, ("apply", "v9.9.2")),
    # wheels and archives
    Case("wheel-is-another", "wrong-sha256", WHEEL, other_wheel, FROM_WHEELS),
    Case("wheel-cut-off", "wrong-sha256", WHEEL, cut_off, FROM_WHEELS),
    Case("member-up", "bad-member", WHEEL, repinned(("../x", "")), FROM_WHEELS),
    Case(
        "member-link",
        "bad-member",
        WHEEL,
        repinned((link("sglang/x.py"), "/etc/passwd")),
        FROM_WHEELS,
    ),
    Case(
        "member-twice", "bad-member", WHEEL, repinned(("sglang/version.py", "evil\n")), FROM_WHEELS
    ),
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
    Case(
        "git-tag-moved",
        "tree mismatch",
        TAG,
        wrong_tree_in_git,
        ("apply", "--from", "{root}/checkout"),
    ),
    # the tree
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_refused(applied, case, capsys):
    case.change(applied)
    before = fakes.snapshot(applied.root, applied.cache)
    words = [word.format(wheels=applied.wheels, root=applied.root) for word in case.words]
    code = cli.main(["--root", str(applied.root), *words])
    said = capsys.readouterr().err
    assert code == 1
    assert any(
        line.endswith(f"[{case.name}]") and case.where in line for line in said.splitlines()
    ), said
    assert fakes.snapshot(applied.root, applied.cache) == before


def test_the_project_that_is_broken_is_good_before(applied, capsys):
    assert (
        cli.main(["--root", str(applied.root), "apply"]) == 0
        and cli.main(["--root", str(applied.root), "check"]) == 0
    )
    assert "already applied" in capsys.readouterr().out
