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
from fakes import RELEASE, RUNNER, TAG, Project, diff, git, header, numbered, patch_text

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


def body(text: str) -> Break:
    return write(FIRST, header(Overlay="python/sglang/srt/steps/") + "\n" + text)


def one_file(path: str, more: str = "") -> Break:
    return body(f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n{more}")


def hunk(text: str) -> Break:
    return body(f"--- a/{RUNNER}\n+++ b/{RUNNER}\n{text}")


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


def no_archive(project: Project) -> None:
    (project.wheels / "sglang-9.9.2-py3-none-any.whl").write_bytes(b"<html>not found</html>")


def two_trees(project: Project) -> None:
    for python, text in (("cp311", "1\n"), ("cp312", "2\n")):
        fakes.write_wheel(
            project.wheels / f"sglang-9.9.2-{python}-{python}-manylinux_2_34_x86_64.whl",
            RELEASE | {"sglang/version.py": text},
        )


def evil_new_wheel(project: Project) -> None:
    fakes.write_wheel(project.wheels / "sglang-9.9.2-py3-none-any.whl", RELEASE | {"../x": ""})


def wrong_tree_in_git(project: Project) -> None:
    folder = project.checkout(project.root / "checkout", tag=None)
    (folder / "python/sglang/version.py").write_text("evil\n")
    git(folder, "commit", "-qam", "evil")
    git(folder, "tag", TAG)


def edit_tree(project: Project) -> None:
    (project.tree / RUNNER).write_text("mine\n")


def stranger(project: Project) -> None:
    (project.tree / "notes.txt").write_text("mine\n")


def foreign(project: Project) -> None:
    (project.tree / "provenance.json").write_text("{}")


def link_instead_of_patch(project: Project) -> None:
    (project.root / FIRST).rename(project.root / "elsewhere.patch")
    (project.root / FIRST).symlink_to(project.root / "elsewhere.patch")


ON = f"{FIRST} on {TAG}: {RUNNER}: hunk 1"
FROM_WHEELS = ("apply", "--from", "{wheels}")
PIN_IT = ("pin", "9.9.2", "--from", "{wheels}")
CONTEXT = "".join(f" step_{n} = {n}\n" for n in (18, 19, 20))
VARIANT = "Variant-Of: {}\n\n" + patch_text().split("\n\n", 1)[1]
TWO = (
    "steps/count-once-more.patch  # {}\nsteps/count-once-more@9.9.patch  #"
    " {}\nsteps/name-the-cut.patch  # ==9.9.1\n"
)


def variant(guards: tuple[str, str], of: str = "steps/count-once-more.patch") -> Break:
    def change(project: Project) -> None:
        project.write("series", TWO.format(*guards))
        project.write("patches/steps/count-once-more@9.9.patch", VARIANT.format(of))

    return change


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
    Case("series-bad-guard", "bad-guard", "series:2", edit("series", ">=9.9,<10", "9.9 to 10")),
    Case("series-text-guard", "bad-guard", "series:3", edit("series", "==9.9.1", "===9.9.1")),
    Case(
        "series-duplicate",
        "duplicate",
        "series:4",
        edit("series", "==9.9.1\n", "==9.9.1\nsteps/name-the-cut.patch  # ==9.9.1\n"),
    ),
    Case(
        "series-path-up",
        "bad-path",
        "series:4",
        edit("series", "==9.9.1\n", "==9.9.1\n../evil.patch  # ==9.9.1\n"),
    ),
    Case(
        "series-path-absolute",
        "bad-path",
        "series:4",
        edit("series", "==9.9.1\n", "==9.9.1\n/etc/evil.patch  # ==9.9.1\n"),
    ),
    Case(
        "series-quilt-option",
        "bad-path",
        "series:3",
        edit("series", "name-the-cut.patch ", "name-the-cut.patch -R "),
    ),
    Case(
        "series-merge-markers",
        "bad-path",
        "series:4",
        edit("series", "==9.9.1\n", "==9.9.1\n<<<<<<< ours\n"),
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
    Case("variants-overlap", "overlapping-variants", "series:2", variant(("<10", ">=9.9"))),
    Case(
        "variant-of-another",
        "bad-variant",
        "patches/steps/count-once-more@9.9.patch",
        variant(("<9.9", ">=9.9"), "steps/name-the-cut.patch"),
    ),
    # a patch's header
    Case("header-field-missing", "missing-field", FIRST, first("Origin: own\n", "")),
    Case(
        "header-field-twice",
        "repeated-field",
        FIRST,
        first("Origin: own\n", "Origin: own\nOrigin: own\n"),
    ),
    Case(
        "header-field-unknown",
        "unknown-field",
        FIRST,
        first("Origin: own\n", "Origin: own\nAuthor: me\n"),
    ),
    Case("header-field-bad", "bad-field", FIRST, first("Origin: own", "Origin: mine")),
    Case("header-bad-expression", "bad-field", FIRST, first(":: added_step", ":: /(/")),
    Case(
        "header-bad-gap",
        "bad-field",
        FIRST,
        first("Origin: own\n", "Origin: own\nGap: soon: it will be there\n"),
    ),
    Case(
        "header-stray-text",
        "bad-header",
        FIRST,
        first("Origin: own\n", "Origin: own\nsome words\n"),
    ),
    Case(
        "header-of-a-mail",
        "bad-header",
        FIRST,
        lambda p: p.write(
            FIRST, "From 0123 Mon Sep 17 00:00:00 2001\n" + (p.root / FIRST).read_text()
        ),
    ),
    Case(
        "header-test-missing",
        "missing-test",
        FIRST,
        lambda p: (p.root / "tests/revision/test_steps.py").unlink(),
    ),
    # its form
    Case("patch-empty", "empty-patch", FIRST, body("")),
    Case(
        "patch-not-utf-8",
        "not-utf-8",
        FIRST,
        lambda p: p.write(FIRST, (p.root / FIRST).read_bytes() + b"\xff"),
    ),
    Case(
        "patch-crlf",
        "crlf",
        f"{FIRST}:1",
        lambda p: p.write(FIRST, (p.root / FIRST).read_text().replace("\n", "\r\n")),
    ),
    Case("patch-hand-edited-counts", "bad-form", FIRST, first("-18,6 +18,7", "-18,6 +18,9")),
    Case(
        "patch-hand-edited-start",
        "wrong-hunk-counts",
        f"{FIRST}:",
        first("-18,6 +18,7", "-18,6 +19,7"),
    ),
    Case("patch-blank-context-lost", "bad-form", FIRST, first(" step_19 = 19\n", "\n")),
    Case(
        "patch-cut-off",
        "bad-form",
        FIRST,
        lambda p: p.write(FIRST, (p.root / FIRST).read_bytes()[:-25]),
    ),
    Case(
        "patch-last-line-cut-off",
        "bad-form",
        FIRST,
        lambda p: p.write(FIRST, (p.root / FIRST).read_bytes()[:-1]),
    ),
    Case(
        "patch-byte-order-mark",
        "byte-order-mark",
        f"{FIRST}:1",
        lambda p: p.write(FIRST, b"\xef\xbb\xbf" + (p.root / FIRST).read_bytes()),
    ),
    Case(
        "patch-line-end-lost-inside",
        "no-newline",
        FIRST,
        first("+added_step = 20\n", "+added_step = 20\n\\ No newline at end of file\n"),
    ),
    Case("patch-bad-hunk-header", "bad-form", FIRST, first("@@ -18,6 +18,7 @@", "@@ -18,6 @@")),
    Case(
        "patch-text-behind",
        "bad-form",
        FIRST,
        lambda p: p.write(FIRST, (p.root / FIRST).read_text() + "-- \n2.39.5\n"),
    ),
    Case("patch-git-lines", "bad-form", FIRST, first("--- a/", "index 012..345 100644\n--- a/")),
    Case("patch-renames", "rename", FIRST, first("--- a/", "rename from a\nrename to b\n--- a/")),
    Case(
        "patch-changes-a-mode",
        "mode-change",
        FIRST,
        first("--- a/", "old mode 100644\nnew mode 100755\n--- a/"),
    ),
    Case("patch-binary", "binary", FIRST, body("GIT binary patch\nliteral 0\n")),
    Case(
        "patch-makes-a-file",
        "new-or-deleted-file",
        FIRST,
        body("--- /dev/null\n+++ b/python/sglang/new.py\n@@ -0,0 +1 @@\n+x\n"),
    ),
    Case(
        "patch-deletes-a-file",
        "new-or-deleted-file",
        FIRST,
        body(f"--- a/{RUNNER}\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"),
    ),
    Case(
        "patch-fills-an-empty-file",
        "new-or-deleted-file",
        FIRST,
        body(diff("python/sglang/__init__.py", "", "x\n")),
    ),
    Case("patch-file-twice", "file-twice", FIRST, one_file(RUNNER, diff(RUNNER, "a\n", "b\n"))),
    Case(
        "patch-files-unsorted",
        "unsorted-files",
        FIRST,
        one_file(RUNNER, diff("python/sglang/a.py", "a\n", "b\n")),
    ),
    Case("patch-changes-nothing", "empty-hunk", FIRST, hunk("@@ -1,2 +1,2 @@\n a\n b\n")),
    Case(
        "patch-too-much-context",
        "unequal-context",
        FIRST,
        hunk(f"@@ -17,5 +17,6 @@\n step_17 = 17\n{CONTEXT}+x\n step_21 = 21\n"),
    ),
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
    Case("patch-path-outside", "bad-path", FIRST, one_file("setup.py")),
    Case(
        "patch-path-absolute",
        "bad-form",
        FIRST,
        body("--- /etc/x\n+++ /etc/x\n@@ -1 +1 @@\n-a\n+b\n"),
    ),
    Case("patch-path-backslash", "bad-path", FIRST, one_file("python\\sglang\\x")),
    Case(
        "patch-path-quoted",
        "bad-form",
        FIRST,
        body('--- "a/python/sglang/x"\n+++ "b/python/sglang/x"\n@@ -1 +1 @@\n-a\n+b\n'),
    ),
    Case("patch-path-with-date", "bad-form", FIRST, one_file("python/sglang/x\t2030-01-02")),
    Case("patch-path-with-space", "bad-path", FIRST, one_file("python/sglang/a b.py")),
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
    Case("overlay-outside", "bad-path", "overlay/setup.py", write("overlay/setup.py", "x = 1\n")),
    Case(
        "overlay-link",
        "symlink",
        STEPS + "x.py",
        lambda p: (p.root / STEPS / "x.py").symlink_to("/etc/passwd"),
    ),
    Case("overlay-not-utf-8", "not-utf-8", STEPS + "x.py", write(STEPS + "x.py", b"\xff\n")),
    Case("overlay-crlf", "crlf", STEPS + "x.py", write(STEPS + "x.py", "x = 1\r\n")),
    Case("overlay-empty", "overlay-form", STEPS + "x.py", write(STEPS + "x.py", "")),
    Case("overlay-space-in-name", "bad-path", STEPS + "a b.py", write(STEPS + "a b.py", "x = 1\n")),
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
    Case("pins-no-revision", "bad-pins", PINS, write(PINS, 'default = "9.9.1"\n')),
    Case(
        "pins-no-table",
        "bad-pins",
        f"{PINS}: revision 1",
        write(PINS, 'default = "9.9.1"\nrevision = ["9.9.1"]\n'),
    ),
    Case(
        "pins-unknown-default",
        "bad-pins",
        PINS,
        edit(PINS, 'default = "9.9.1"', 'default = "9.9.2"'),
    ),
    Case(
        "pins-bad-version",
        "bad-pins",
        f"{PINS}: revision newest",
        edit(PINS, 'version = "9.9.1"', 'version = "newest"'),
    ),
    Case(
        "pins-tag-leads-away",
        "bad-pins",
        f"{PINS}: revision 9.9.1",
        edit(PINS, 'tag = "v9.9.1"', 'tag = "../../x"'),
    ),
    Case(
        "pins-bad-date",
        "bad-pins",
        f"{PINS}: revision 9.9.1",
        edit(PINS, "released = 2030-01-02", 'released = "today"'),
    ),
    Case(
        "pins-bad-hash",
        "bad-pins",
        f"{PINS}: revision 9.9.1",
        edit(PINS, 'tree = "sha256:', 'tree = "sha256:x'),
    ),
    Case(
        "pins-bad-wheel-hash",
        "bad-pins",
        f"{PINS}: revision 9.9.1",
        edit(PINS, ', sha256 = "', ', sha256 = "x'),
    ),
    Case(
        "pins-wheel-of-another",
        "bad-pins",
        f"{PINS}: revision 9.9.1",
        edit(PINS, "sglang-9.9.1", "torch-9.9.1"),
    ),
    Case(
        "pins-wheel-path-up",
        "bad-pins",
        f"{PINS}: revision 9.9.1",
        edit(PINS, "sglang-9.9.1", "../sglang-9.9.1"),
    ),
    Case(
        "pins-unknown-field",
        "bad-pins",
        f"{PINS}: revision 9.9.1",
        edit(PINS, 'tag = "v9.9.1"', 'tag = "v9.9.1"\ncommit = "x"'),
    ),
    Case(
        "pins-twice",
        "duplicate-pin",
        PINS,
        lambda p: p.write(PINS, (t := (p.root / PINS).read_text()) + t[t.index("[[rev") :]),
    ),
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
    Case("revision-no-version", "unknown-revision", "'../x'", lambda p: None, ("apply", "../x")),
    # wheels and archives
    Case("wheel-is-another", "wrong-sha256", WHEEL, other_wheel, FROM_WHEELS),
    Case("wheel-cut-off", "wrong-sha256", WHEEL, cut_off, FROM_WHEELS),
    Case(
        "wheel-to-pin-no-archive",
        "bad-archive",
        "sglang-9.9.2-py3-none-any.whl",
        no_archive,
        PIN_IT,
    ),
    Case("wheels-to-pin-differ", "wheels-differ", "sglang 9.9.2", two_trees, PIN_IT),
    Case(
        "wheel-to-pin-evil", "bad-member", "sglang-9.9.2-py3-none-any.whl", evil_new_wheel, PIN_IT
    ),
    Case("wheel-to-pin-missing", "not-fetched", "sglang 9.9.2", lambda p: None, PIN_IT),
    Case("member-up", "bad-member", WHEEL, repinned(("../x", "")), FROM_WHEELS),
    Case("member-up-inside", "bad-member", WHEEL, repinned(("sglang/../../x", "")), FROM_WHEELS),
    Case("member-absolute", "bad-member", WHEEL, repinned(("/etc/x", "")), FROM_WHEELS),
    Case("member-backslash", "bad-member", WHEEL, repinned(("sglang\\x.py", "")), FROM_WHEELS),
    Case("member-dot", "bad-member", WHEEL, repinned(("sglang/./x.py", "")), FROM_WHEELS),
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
    Case(
        "git-nowhere",
        "not-fetched",
        "no/such/place",
        lambda p: None,
        ("apply", "--from", "no/such/place"),
    ),
    Case(
        "git-no-repository",
        "not-fetched",
        "overlay",
        lambda p: None,
        ("apply", "--from", "{root}/overlay"),
    ),
    # the tree
    Case("tree-edited", "edited-tree", f"work/{TAG}", edit_tree),
    Case("tree-edited-unapply", "edited-tree", f"work/{TAG}", edit_tree, ("unapply",)),
    Case("tree-with-untracked", "unknown-files", f"work/{TAG}", stranger, ("apply", "--discard")),
    Case("tree-of-somebody-else", "foreign-tree", f"work/{TAG}", foreign),
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


def test_no_case_is_there_twice():
    assert len({case.id for case in CASES}) == len(CASES) >= 40
