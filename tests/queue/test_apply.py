"""Apply and take off again: each byte is right, and nothing of the user's is lost."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile

import fakes
import pytest
from fakes import COUNT, CUT, RELEASE, RUNNER, TAG, numbered, refused, unchanged

from patchqueue.applying import worktree
from patchqueue.commands import trees
from patchqueue.files import run
from patchqueue.files.tree import hash_python, list_folder
from patchqueue.outcome import Outcome
from patchqueue.upstream import source

STEPS = "python/sglang/srt/steps/__init__.py"


def pristine_hash(project) -> str:
    return hash_python(source.fetch(project.pin, None).listing())


def record(project) -> dict:
    return json.loads((project.tree / "provenance.json").read_text())


def recount(project) -> None:
    """Change what the first patch adds."""
    project.edit(f"patches/{COUNT}", "+added_step = 20", "+added_step = 21")


def tree_hash(project) -> str:
    return hash_python(list_folder(project.tree))


def test_apply_makes_the_tree(project):
    report = project.apply()
    assert report.outcome is Outcome.APPLIED and report.path == project.tree
    for name, content in {
        RUNNER: fakes.added(numbered(40)),
        "python/sglang/srt/cut.py": RELEASE["sglang/srt/cut.py"] + "\nsix = 6",
        STEPS: '"""Steps of our own."""\n',
    }.items():
        assert (project.tree / name).read_text() == content
    assert not list(project.tree.rglob("*.so"))
    found, (wheel,), after = record(project), project.pin.wheels, tree_hash(project)
    assert found["tree"] == {"before": pristine_hash(project), "after": after}
    assert project.pin.patched == after
    assert found["source"] == {"kind": "wheel", "name": wheel.file, "sha256": wheel.sha256}
    assert [patch["name"] for patch in found["patches"]] == ["overlay.patch", COUNT, CUT]
    assert [file["path"] for file in found["overlay"]] == [STEPS] and found["tag"] == TAG
    with unchanged(project.root, project.cache):
        assert project.apply().outcome is Outcome.ALREADY_APPLIED
    # plain quilt takes everything off and on again
    fakes.quilt(project.tree, "pop", "-a")
    assert tree_hash(project) == pristine_hash(project) and not (project.tree / STEPS).exists()
    fakes.quilt(project.tree, "push", "-a", "--fuzz=0")
    assert tree_hash(project) == after and project.apply().outcome is Outcome.ALREADY_APPLIED


def test_unapply_gives_the_pristine_tree_back(applied):
    assert applied.unapply().outcome is Outcome.APPLIED
    assert tree_hash(applied) == pristine_hash(applied)
    assert not (applied.tree / STEPS).exists() and worktree.applied(applied.tree) == []
    assert applied.unapply().outcome is Outcome.ALREADY_APPLIED
    assert applied.apply().outcome is Outcome.APPLIED and (applied.tree / STEPS).is_file()
    shutil.rmtree(applied.tree)
    assert refused(applied.unapply)[0] == "no-tree"


def test_a_tree_that_does_not_become_pristine_is_left_applied(applied):
    """What is given back are quilt's copies: they need not be the release."""
    (applied.tree / ".pc" / COUNT / RUNNER).write_text("meddled\n")
    with unchanged(applied.tree):
        name, text = refused(applied.unapply)
        assert name == "tree mismatch" and "--discard" in text


@pytest.mark.parametrize(
    "file",
    [
        RUNNER,
        "python/sglang/version.py",
        STEPS,
        "python/sglang/srt/mine.py",
        "python/sglang/srt/data.json",  # the tree hash does not cover this one and the next
        f"patches/{CUT}",
        "patches/steps/mine.patch",
        "patches/series",
    ],
)
def test_edits_are_named_and_kept(applied, file):
    """And they are where the queue has changed too."""
    (applied.tree / file).parent.mkdir(exist_ok=True)
    (applied.tree / file).write_text("edited\n")
    for change in (lambda project: None, recount):
        change(applied)
        for command in (applied.apply, applied.unapply):
            with unchanged(applied.root, applied.cache):
                name, text = refused(command)
                assert name == "edited-tree" and file in text and "--discard" in text


@pytest.mark.parametrize(
    "stranger",
    ["notes.txt", ".git/config", "python/sglang/srt/mine.cpython-311-x86_64-linux-gnu.so"],
)
def test_strangers_in_the_tree_are_kept(applied, stranger):
    path = applied.tree / stranger
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine\n")
    recount(applied)
    for discard in (False, True):
        with unchanged(applied.root):
            assert refused(applied.apply, discard=discard)[0] == "unknown-files"


def test_what_running_the_tree_leaves_behind_is_no_edit(applied):
    byte_code = "python/sglang/__pycache__/a.cpython-311.pyc"
    for name in (byte_code, ".pytest_cache/x", "__pycache__/a.pyc"):
        (applied.tree / name).parent.mkdir(exist_ok=True)
        (applied.tree / name).write_text("x")
    assert applied.apply().outcome is Outcome.ALREADY_APPLIED


def test_partly_popped(applied):
    after = tree_hash(applied)
    fakes.quilt(applied.tree, "pop")
    with unchanged(applied.root):
        for call in (applied.apply, applied.unapply):
            assert refused(call)[0] in ("popped-tree", "edited-tree")
    applied.apply(discard=True)
    assert tree_hash(applied) == after


def recorded(text: str):
    return lambda path: (path.mkdir(), (path / "provenance.json").write_text(text))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: (path / "python").mkdir(parents=True),
        lambda path: path.write_text("mine\n"),
        lambda path: path.symlink_to("elsewhere"),
        recorded('{"patches": [1]}'),
        recorded("{}"),
    ],
    ids=["folder", "file", "link", "broken record", "record of something else"],
)
def test_what_this_tool_did_not_make_is_kept_unless_discarded(project, make):
    (project.root / "work").mkdir()
    make(project.tree)
    with unchanged(project.tree):
        assert refused(project.apply)[0] == "foreign-tree"
    for _ in range(2):
        project.apply(discard=True)
        assert tree_hash(project) == record(project)["tree"]["after"]
        (project.tree / RUNNER).write_text("edited\n")


def test_another_source_is_laid_anew(applied):
    wheel = applied.wheels / "sglang-9.9.1-py3-none-any.whl"
    before = source.file_sha256(wheel)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.comment = b"of the same files"
    applied.edit("upstream/pins.toml", before, source.file_sha256(wheel))
    assert applied.apply(applied.wheels).outcome is Outcome.APPLIED
    assert record(applied)["source"]["sha256"] == source.file_sha256(wheel) != before


def own_names(project) -> list[str]:
    """What the tool keeps of trees beside them."""
    folder = project.root / "work/.patchqueue"
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(TAG))


@pytest.mark.parametrize("verb", ["unapply", "apply"])
@pytest.mark.parametrize("number", range(1, 4))
def test_killed_at_a_rename_the_next_run_has_a_tree(applied, verb, number):
    """The renames: the old tree away, the new one in its place, the old one to what is removed."""
    if verb == "apply":
        applied.edit("patches/steps/name-the-cut.patch", "+six = 6", "+six = 66")
        applied.place()
    fakes.kill_at(number, getattr(applied, verb))
    report = getattr(applied, verb)()
    is_done = report.outcome is Outcome.ALREADY_APPLIED
    assert is_done is (number == 3)
    assert tree_hash(applied) == report.record["tree"]["before" if verb == "unapply" else "after"]
    assert own_names(applied) == [f"{TAG}.lock", f"{TAG}.sha256sum"]


def test_a_tree_that_cannot_be_replaced_is_put_back(applied, monkeypatch):
    fakes.killed_at(2, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        applied.unapply()
    assert applied.apply().outcome is Outcome.ALREADY_APPLIED


def running(project, **options) -> subprocess.Popen:
    words = [sys.executable, "-m", "patchqueue", "--root", str(project.root), "apply"]
    return subprocess.Popen(words, stderr=subprocess.STDOUT, **options)


@pytest.mark.parametrize("moment", [0.4, 0.6])
def test_killed_at_any_moment_the_next_run_is_right(project, template, moment):
    killed = running(project, stdout=subprocess.DEVNULL, start_new_session=True)
    time.sleep(moment)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    project.apply()
    assert tree_hash(project) == hash_python(list_folder(template / "project/work" / TAG))
    assert {path.name for path in (project.root / "work").iterdir()} == {".patchqueue", TAG}


def test_a_second_run_says_that_it_waits_even_for_a_child(applied, said):
    """The lock is held while any process of the first run lives."""
    with worktree.WorkTree(applied.root, TAG).locked() as lock:
        child = subprocess.Popen(["sleep", "0.5"], pass_fds=[lock])
    started = time.monotonic()
    applied.apply()
    assert time.monotonic() - started > 0.3 and child.wait() == 0
    assert any("waiting" in text for text in said)


def test_quilt_holds_the_lock_when_its_parent_is_killed(applied, tmp_path, monkeypatch):
    """It still writes in the tree."""
    pid = tmp_path / "pid"
    line = f"echo $$ > {pid}.new\nmv {pid}.new {pid}\nexec sleep 30"
    slow = run.Quilt(str(fakes.program(tmp_path / "quilt", line)))
    monkeypatch.setattr(trees, "find_quilt", lambda cache: slow)
    child = os.fork()
    if child == 0:
        os._exit(fakes.main(["--root", str(applied.root), "quilt", TAG, "pop"]))
    while not pid.exists():
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with open(applied.root / f"work/.patchqueue/{TAG}.lock") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.kill(int(pid.read_text()), signal.SIGKILL)
        fcntl.flock(file, fcntl.LOCK_EX)


NAME = "it's $(touch ran);touch ran;a:b two\nlines"


def test_no_name_of_a_folder_is_shell_text(tmp_path, monkeypatch):
    """quilt's scripts paste where they lie into shell text: it was another path, or a command."""
    monkeypatch.setenv("PATH", os.devnull)
    name, text = refused(run.find_quilt, tmp_path / NAME / "cache")
    assert name == "no-quilt" and "PATCHQUEUE_CACHE" in text
    assert not list(tmp_path.rglob("ran"))
