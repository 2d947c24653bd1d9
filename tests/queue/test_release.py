"""A release of the queue: its files, the same bytes twice, cut once, and nothing else under its
number."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import subprocess
from pathlib import Path

import fakes
import pytest
import test_install
from fakes import QUEUE
from msgspec.structs import replace
from packaging.version import Version

from patchqueue.files import atomic
from patchqueue.hint import to_type
from patchqueue.laying.apply import load_queue
from patchqueue.laying.check import CheckReport
from patchqueue.outcome import Refused
from patchqueue.publishing import assets, changelog, cutting
from patchqueue.queue import released
from patchqueue.upstream import pins

ROOT = Path(__file__).resolve().parents[2]
WHEEL = f"sglang-9.9.1+{fakes.LABEL}-py3-none-any.whl"
PATCH = f"sglang-9.9.1+{fakes.LABEL}.patch"
FOLDER = f"dist/release-{QUEUE}"
RECORD = f"releases/{QUEUE}.toml"


@pytest.fixture
def ready(project, tmp_path) -> fakes.Project:
    fakes.to_release(project, tmp_path / "home")
    return project


@pytest.fixture
def run(capsys):
    """Run a command on a project: exit code, and all that it said."""

    def call(project, *words: str) -> tuple[int, str]:
        code = fakes.main(["--root", str(project.root), *words])
        said = capsys.readouterr()
        return code, said.out + said.err

    return call


@pytest.fixture
def cut(ready, run) -> fakes.Project:
    code, said = run(ready, "release", "--cut")
    assert code == 0, said
    return ready


def change(project) -> None:
    """One word of a patch's header: what is laid is the same, the wheel's record is not."""
    name = "patches/steps/count-once-more.patch"
    project.edit(name, "Why: without it a user saw", "Why: without it users saw")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_folder_has_all_that_is_published(ready, run):
    code, said = run(ready, "release")
    assert code == 0 and f"{FOLDER}: 1 wheel, 1 patch file" in said
    assert f"release {QUEUE} is not cut: keep these files to yourself" in said
    folder = ready.root / FOLDER
    made = files(folder)
    assert sorted(made) == ["CHANGES.md", "SHA256SUMS", WHEEL, f"{WHEEL}.metadata", PATCH]
    assert made["CHANGES.md"] == b"- More steps.\n"
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True)
    assert len(made["SHA256SUMS"].splitlines()) == len(made) - 1
    assert b"\nSummary: Patched by the sglang patch queue" in made[f"{WHEEL}.metadata"]


def test_the_same_queue_gives_the_same_bytes(ready):
    first = files(cutting.rebuild(ready.root, choice(ready))[0].folder)
    for path in ready.root.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    shutil.rmtree(ready.root / "work")
    assert files(cutting.rebuild(ready.root, choice(ready))[0].folder) == first


def choice(project, *words: str) -> assets.Choice:
    return assets.Choice(pins.load(project.root).all, *words)


@pytest.mark.parametrize("program", ["git apply", "patch -s -p1 -i"])
def test_the_patch_file_makes_the_patched_tree(ready, tmp_path, program):
    checkout = ready.checkout(tmp_path / "sglang")
    assets.make(ready.root, choice(ready), "")
    command = [*program.split(), str(ready.root / FOLDER / PATCH)]
    subprocess.run(command, cwd=checkout, check=True)
    for path in (ready.tree / "python").rglob("*.py"):
        name = path.relative_to(ready.tree)
        if name.name != "_version.py":
            assert (checkout / name).read_bytes() == path.read_bytes(), name


def test_only_the_wheels_that_are_meant(ready):
    plain = pins.load(ready.root).default
    names = [
        f"sglang-9.9.1-cp{python}-cp{python}-manylinux_2_34_{machine}.whl"
        for python in (311, 312)
        for machine in ("x86_64", "aarch64")
    ]
    pin = replace(plain, wheels=tuple(pins.Wheel(name, "0" * 64) for name in names))

    def taken(*words: object) -> list[str]:
        return [wheel.file for wheel in assets.Choice([pin], *words).wheels(pin)]

    assert taken() == names
    assert taken(["3.12"]) == names[2:] and taken([], ["aarch64"]) == names[1::2]
    assert taken(["3.11", "3.12"], ["x86_64"]) == names[::2] and taken(["3.9"]) == []
    assert [each.file for each in choice(ready, ["3.9"], ["aarch64"]).wheels(plain)] == [
        plain.wheels[0].file
    ], "a wheel for every Python is always meant"


def test_help_that_mean_no_wheel_are_refused(ready, run):
    ready.edit("upstream/pins.toml", "py3-none-any.whl", "cp312-cp312-manylinux_2_34_x86_64.whl")
    code, said = run(ready, "release", "--python", "3.9")
    assert code == 1 and "no wheel is for these words [nothing-to-build]" in said
    assert not (ready.root / FOLDER).exists()


def test_a_cut_is_one_commit_and_a_tag(cut):
    root = cut.root
    tag = f"pcg-{QUEUE}"
    assert fakes.git(root, "status", "--porcelain") == ""
    changed = fakes.git(root, "show", "--name-only", "--format=%s", tag).split("\n")
    assert f"Release {QUEUE} of the queue" in changed
    assert {"CHANGELOG.md", RECORD} == set(changed[-3:-1])
    assert "\n- More steps.\n" in fakes.git(root, "cat-file", "tag", tag)
    assert re.search(rf"(?m)^## {QUEUE}, \d{{4}}-\d\d-\d\d$", (root / "CHANGELOG.md").read_text())
    (found,) = released.read(root, QUEUE).revision
    assert found.version == Version("9.9.1") and found.wheels[0].file == WHEEL
    sums = dict(
        line.split("  ")[::-1] for line in (root / FOLDER / "SHA256SUMS").read_text().splitlines()
    )
    assert sums[WHEEL] == found.wheels[0].sha256 and sums[PATCH] == found.patch.sha256
    assert sums[f"{WHEEL}.metadata"] == found.wheels[0].metadata


def test_a_cut_release_is_built_again(cut, run):
    """What the workflow does, from a fresh clone of the tag."""
    first = files(cut.root / FOLDER)
    for name in ("dist", "work"):
        shutil.rmtree(cut.root / name)
    code, said = run(cut, "release", "--tag", f"pcg-{QUEUE}")
    assert code == 0 and f"every file is that of release {QUEUE}, cut on" in said
    assert files(cut.root / FOLDER) == first
    assert run(cut, "check")[0] == 0 and run(cut, "build")[0] == 0


@pytest.mark.parametrize("command", ["check", "build", "release"])
def test_other_content_under_the_same_number_is_refused(cut, run, command):
    change(cut)
    assert released.differences(cut.root, QUEUE, today(cut)) != []
    code, said = run(cut, command)
    assert code == 1 and f"{RECORD}: was cut with another content for 9.9.1" in said
    assert "next: `scripts/nox release --next` begins the next release" in said


def today(project) -> list[released.Hashes]:
    return assets.today(project.root, pins.load(project.root))


def test_another_file_under_the_same_name_is_refused(cut, run):
    """What is laid is the same: only the wheel's bytes tell."""
    found = released.read(cut.root, QUEUE)
    cut.edit(RECORD, found.find(Version("9.9.1")).wheels[0].sha256, "0" * 64)
    code, said = run(cut, "release")
    assert code == 1 and f"{RECORD}: has {WHEEL} with sha256 000000000000…" in said
    assert "[other-zlib]" in said and "its files are the same: take a Python with zlib" in said
    assert not (cut.root / FOLDER).exists()


def test_headings_of_an_entry_are_in_the_tag(ready, run):
    ready.edit("CHANGELOG.md", "- More steps.\n", "- More steps.\n\n### Fewer\n\n- Less.\n")
    fakes.commit(ready)
    assert run(ready, "release", "--cut")[0] == 0
    told = fakes.git(ready.root, "cat-file", "tag", f"pcg-{QUEUE}")
    assert told.endswith("\n\n- More steps.\n\n### Fewer\n\n- Less.\n")


def test_what_was_not_cut_is_not_made(ready, run):
    """Where some wheels alone were cut, as the workflow does it."""
    ready.release("9.9.2")
    ready.edit("series", "==9.9.1", ">=9.9")
    ready.place()
    fakes.commit(ready)
    assert run(ready, "release", "--cut", "v9.9.1")[0] == 0
    assert [each.patch is None for each in released.read(ready.root, QUEUE).revision] == [
        False,
        True,
    ]
    first = files(ready.root / FOLDER)
    code, said = run(ready, "release", "--tag", f"pcg-{QUEUE}")
    assert code == 0 and files(ready.root / FOLDER) == first, said
    code, said = run(ready, "release", "v9.9.2")
    assert code == 1 and "no wheel is for these words in what was cut" in said
    assert run(ready, "check")[0] == 0
    assert run(ready, "build", "v9.9.2")[0] == 0, "its content was cut with the others"


def test_a_new_pin_is_other_content_too(cut):
    cut.release("9.9.2")
    cut.edit("series", "==9.9.1", ">=9.9")
    (problem,) = released.differences(cut.root, QUEUE, today(cut))
    assert "another content for 9.9.2" in problem.what


def test_the_next_number_takes_other_content(cut, run):
    code, said = run(cut, "release", "--next")
    assert code == 0 and f"README.md: release {QUEUE + 1}" in said
    readme = (cut.root / "README.md").read_text()
    assert readme.startswith(f"Take sglang-9.9.1+pcg.{QUEUE + 1}-py3-none-any.whl: queue release")
    assert f"queue release {QUEUE + 1}, all" in readme
    assert (cut.root / released.NUMBERED).read_text() == f"RELEASE = {QUEUE + 1}\n"
    assert (cut.root / "CHANGELOG.md").read_text().startswith("# Changes\n\n## Next\n\n## ")
    change(cut)
    assert released.differences(cut.root, QUEUE + 1, today(cut)) == []


def test_a_number_that_is_behind_is_named(cut):
    cut.write(
        f"releases/{QUEUE + 3}.toml",
        (cut.root / RECORD).read_text().replace(f"release = {QUEUE}", f"release = {QUEUE + 3}"),
    )
    (problem,) = released.differences(cut.root, QUEUE, today(cut))
    assert problem.what == f"RELEASE is {QUEUE}, and release {QUEUE + 3} was cut"
    assert f"RELEASE = {QUEUE + 4} " in problem.hint


def test_what_is_not_cut_cannot_be_followed_or_tagged(ready, run):
    code, said = run(ready, "release", "--next")
    assert code == 1 and f"release {QUEUE}: is not cut, so that work goes on in it" in said
    code, said = run(ready, "release", "--tag", f"pcg-{QUEUE}")
    assert code == 1 and f"there is no {RECORD}" in said
    code, said = run(ready, "release", "--tag", "pcg-99")
    assert code == 1 and f"whose release is {QUEUE} [other-tag]" in said


@pytest.mark.parametrize(
    ("do", "says"),
    [
        (lambda p: p.write("releases/about.toml", ""), "has no repository"),
        (lambda p: p.edit("CHANGELOG.md", "- More steps.\n", ""), "has nothing under `## Next`"),
        (lambda p: p.edit("CHANGELOG.md", "## Next", "## Later"), "has nothing under `## Next`"),
        (lambda p: (p.root / "CHANGELOG.md").unlink(), "CHANGELOG.md: is not there"),
        (lambda p: fakes.git(p.root, "tag", f"pcg-{QUEUE}"), "is there already [tag-exists]"),
        (change, "patches/steps/count-once-more.patch"),
    ],
    ids=["no address", "no entry", "no heading", "no changes", "a tag", "edits"],
)
def test_what_is_not_ready_is_not_cut(ready, run, do, says):
    do(ready)
    if do is not change:
        fakes.commit(ready) if fakes.git(ready.root, "status", "--porcelain") else None
    before = fakes.git(ready.root, "rev-parse", "HEAD")
    code, said = run(ready, "release", "--cut")
    assert code == 1 and says in said, said
    assert fakes.git(ready.root, "rev-parse", "HEAD") == before
    assert not (ready.root / RECORD).exists()


def state(root: Path) -> dict[str, str]:
    """What a cut leaves, as far as it is no clock's."""
    kept = "%(*tree) %(*subject) %(contents)"
    return {
        "edits": fakes.git(root, "status", "--porcelain", "--untracked-files=all"),
        "commits": fakes.git(root, "log", "--format=%s"),
        "tag": fakes.git(root, "for-each-ref", f"--format={kept}", f"refs/tags/pcg-{QUEUE}"),
        "writing": str((root / atomic.JOURNAL).exists()),
    }


def test_a_cut_killed_before_any_change_can_be_run_again(ready, tmp_path, monkeypatch):
    """From the writing on; what it writes is built once."""
    known, chosen = pins.load(ready.root), choice(ready)
    made = assets.make(ready.root, chosen, "- More steps.\n")
    day = datetime.date(2030, 1, 2)
    monkeypatch.setattr(assets, "make", lambda *_: made)
    monkeypatch.setattr(cutting, "check", lambda *_: CheckReport((), ()))
    monkeypatch.setattr(test_install, "WRITES", test_install.WRITES | {"subprocess.Popen"})
    cutting._edits(ready.root)  # git writes its index anew, once
    number = 0
    while True:
        root = tmp_path / f"copy-{number}"
        shutil.copytree(ready.root, root, ignore=shutil.ignore_patterns("dist"))
        if not test_install.killed_at(number, root, lambda: cutting.cut(root, known, chosen, day)):
            break
        done = cutting.cut(root, known, chosen, day)
        assert done.commit == fakes.git(root, "rev-parse", f"{done.tag}^{{commit}}").strip()
        number += 1
        assert state(root) == state(tmp_path / "copy-0"), f"step {number}"
    assert number > 15 and state(root) == state(tmp_path / "copy-0")
    assert state(root)["commits"].count(cutting.TITLE) == 1 and state(root)["edits"] == ""


@pytest.mark.parametrize("word", ["commit", "tag"])
def test_an_interrupted_cut_says_what_is_left_and_goes_on(ready, run, monkeypatch, word):
    real = cutting._git

    def interrupt(root, *words):
        if words[0] == word and words[1:2] != ("--list",):
            raise KeyboardInterrupt
        return real(root, *words)

    with monkeypatch.context() as patch:
        patch.setattr(cutting, "_git", interrupt)
        code, said = run(ready, "release", "--cut")
    what = f"release {QUEUE} may lack its commit or its tag; `scripts/nox release --cut` makes them"
    assert code == 130 and f"interrupted; {what}\n" in said
    code, said = run(ready, "release", "--cut")
    assert code == 0 and f"tag pcg-{QUEUE}: release {QUEUE} of the queue" in said, said
    assert fakes.git(ready.root, "status", "--porcelain") == ""
    assert run(ready, "release", "--tag", f"pcg-{QUEUE}")[0] == 0


@pytest.mark.parametrize("what", ["a line of the changes", "a file", "a commit", "the queue"])
def test_a_cut_does_not_go_on_over_edits(cut, run, what):
    fakes.git(cut.root, "tag", "--delete", f"pcg-{QUEUE}")
    if what != "a commit":
        fakes.git(cut.root, "reset", "--soft", "HEAD~1")
    if what == "a line of the changes":
        cut.edit("CHANGELOG.md", "- More steps.", "- Fewer steps.")
    elif what == "a file":
        cut.write("notes.txt", "mine\n")
    elif what == "the queue":
        change(cut)
    else:
        cut.write("notes.txt", "mine\n")
        fakes.commit(cut)
    code, said = run(cut, "release", "--cut")
    assert code == 1 and f"release {QUEUE} was cut already" in said
    assert fakes.git(cut.root, "tag", "--list") == ""


def test_the_next_number_is_begun_of_files_that_are_whole(cut, run):
    """A killed command's journal holds another text of a page than the page has."""
    page = "docs/more.md"
    cut.write(page, f"release-{QUEUE}\n")
    with pytest.raises(KeyboardInterrupt), pytest.MonkeyPatch.context() as patch:
        fakes.killed_at(2, patch)
        files = {page: f"More of release-{QUEUE}\n".encode()}
        atomic.write_all(cut.root, files, cut.root / atomic.JOURNAL)
    assert run(cut, "release", "--next")[0] == 0
    assert (cut.root / page).read_text() == f"More of release-{QUEUE + 1}\n"


def test_a_release_is_cut_once(cut, run):
    code, said = run(cut, "release", "--cut")
    assert code == 1 and f"release {QUEUE} was cut already" in said


def test_a_queue_with_a_problem_is_not_cut(ready, run):
    pins = ready.root / "upstream/pins.toml"
    pins.write_text(re.sub('patched = "sha256:....', 'patched = "sha256:0000', pins.read_text()))
    fakes.commit(ready)
    code, said = run(ready, "release", "--cut")
    assert code == 1 and "upstream/pins.toml" in said and not (ready.root / RECORD).exists()


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"sha256": "0" * 64}, "other-zlib"),
        ({"sha256": "0" * 64, "record": "0" * 64}, "frozen-release"),
    ],
)
def test_a_file_that_is_not_the_published_one_is_named(cut, fields, name):
    found = released.read(cut.root, QUEUE)
    made = found.assets
    assert released.mismatches(found, made) == []
    changed = made | {WHEEL: replace(made[WHEEL], **fields)}
    (problem,) = released.mismatches(found, changed)
    assert problem.name == name and WHEEL in problem.what
    one_more = made | {"x.whl": replace(made[WHEEL], file="x.whl")}
    assert [each.name for each in released.mismatches(found, one_more)] == ["not-released"]


def test_a_record_comes_back_as_it_was_written(cut):
    found = released.read(cut.root, QUEUE)
    written = released.text(found, to_type("release", "--cut"))
    assert written == (cut.root / RECORD).read_bytes()
    bare = replace(found, revision=(released.Revision(Version("1"), *["sha256:" + "0" * 64] * 2),))
    cut.write(RECORD, released.text(bare, "x"))
    assert released.read(cut.root, QUEUE) == bare


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (f"release = {QUEUE}", "release = 1", "is of release 1"),
        ("release =", "release ", "is not TOML"),
        ('queue = "sha256:', 'queue = "', "queue"),
    ],
)
def test_a_broken_record_is_refused(cut, old, new, says):
    cut.edit(RECORD, old, new)
    with pytest.raises(Refused, match=f"{RECORD}.*{says}.*bad-releases"):
        released.read(cut.root, QUEUE)


def test_the_entry_of_a_release():
    text = "# C\n\n## Next\n\na\n\n## 10, 2026-01-02\n\nb\n\nc\n\n## 1\n\nd\n"
    found = [changelog.entry(text, number, cut=True) for number in (10, 1)]
    assert found == ["b\n\nc\n", "d\n"] and changelog.entry(text, 11, cut=False) == "a\n"


# The project's own.


def test_the_workflow_names_what_the_tool_makes():
    """The tag that `--cut` makes starts it, and its files are those of the command."""
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    assert f'tags: ["{released.tag(2).replace("2", "*")}"]' in text
    assert f"subject-checksums: files/{assets.SUMS}" in text
    assert f"--notes-file files/{assets.CHANGES} files/*" in text
    assert 'scripts/nox release --tag "$TAG"\n' in text and "mv dist/release-* files" in text
    assert "run: scripts/nox index\n" in text and "path: dist/index\n" in text
    for words in (["release", "--tag", "pcg-2"], ["index"]):
        assert fakes.parser(words[0]).parse_args(words).run


def test_what_was_released_is_what_is_there():
    """`check` says so too, on every run; this is for who runs the tests alone."""
    known = pins.load(ROOT)
    assert released.differences(ROOT, QUEUE, assets.today(ROOT, known)) == []


def test_every_release_has_its_changes():
    text = changelog.read(ROOT)
    for each in released.every(ROOT):
        assert changelog.entry(text, each.release, cut=True)
    if has_news(ROOT):
        assert changelog.entry(text, QUEUE, cut=False)


def has_news(root: Path) -> bool:
    """Whether the queue lays other lines than the release that was cut last: `release --next`
    begins with an empty heading, and that commit has to pass. (`queue` has the number in it.)"""
    now = assets.today(root, pins.load(root))
    last = released.every(root)[-1:]
    changes = {each.version: each.changes for each in last[0].revision} if last else {}
    return any(changes.get(each.version) != each.changes for each in now)


def test_a_release_has_no_news_before_it_has_a_change(cut, run):
    assert run(cut, "release", "--next")[0] == 0
    assert not has_news(cut.root)
    with pytest.raises(Refused, match="has nothing under `## Next`"):
        changelog.entry(changelog.read(cut.root), QUEUE + 1, cut=False)
    cut.edit("overlay/python/sglang/srt/steps/__init__.py", "Steps", "More steps")
    cut.place()
    assert has_news(cut.root)


def test_hashes_tell_every_part_of_the_real_queue():
    """Each pinned release with patches has hashes of its own."""
    known, queue = pins.load(ROOT), load_queue(ROOT)
    found = assets.today(ROOT, known)
    assert [each.version for each in found] == [
        pin.version for pin in known.all if queue.select(pin.version)
    ]
    assert (
        len({each.queue for each in found}) == len({each.changes for each in found}) == len(found)
    )
