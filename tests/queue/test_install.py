"""Install in place and take it off again: the bytes of the work tree, then all of the release's; a
kill at any moment leaves what the next call makes good; and what is not known is refused."""

import csv
import hashlib
import json
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import zipfile
from functools import partial
from pathlib import Path

import fakes
import pytest
import test_build
from fakes import ROOT, RUNNER, contents, exactly, in_child, refused, unchanged, verified
from packaging.version import Version

from patchqueue import wheels
from patchqueue.commands.install import launch_advice, launch_argument, launch_exceptions
from patchqueue.files import tree as trees
from patchqueue.files.atomic import locked
from patchqueue.install import inplace, installed, undo
from patchqueue.install.patched import InPlace
from patchqueue.outcome import Outcome

INFO = f"sglang-{fakes.VERSION}.dist-info"
STEPS = "sglang/srt/steps/__init__.py"
PATCHED = RUNNER.removeprefix("python/")
CALLED = f"{wheels.PLUGIN_NAME} -> {wheels.PLUGIN_CALL}"


@pytest.fixture
def do(project, site):
    """The verbs, by name, on that site."""
    verbs = ("install", "uninstall")
    return {verb: partial(getattr(inplace, verb), project.root, site) for verb in verbs}


@pytest.fixture
def command(project, site, tool):
    """A command line on that site: exit code, and all that it says."""

    def run(*words: str) -> tuple[int, str]:
        code, out, err = tool(project, *words, "--site-packages", site)
        return code, out + err

    return run


def test_install_makes_the_bytes_of_the_work_tree_and_uninstall_gives_all_back(project, site, do):
    (site / PATCHED).chmod(0o640)
    os.utime(site / PATCHED, ns=(1, 1_600_000_000_123_456_789))
    pristine = exactly(site)
    report = do["install"]()
    assert (report.outcome, report.changed, report.added) == (Outcome.APPLIED, 2, 1)
    assert trees.list_package(site) == trees.list_folder(project.apply().path)
    for name in ("tree", "patches", "overlay"):
        assert report.record[name] == project.apply().record[name]
    assert (site / "sglang/srt/kernels.so").read_text() == "not text"
    status = (site / PATCHED).stat()
    assert stat.S_IMODE(status.st_mode) == 0o640
    assert status.st_mtime_ns != 1_600_000_000_123_456_789
    with unchanged(site):
        assert do["install"]().outcome is Outcome.ALREADY_APPLIED
    assert do["uninstall"]().outcome is Outcome.APPLIED
    assert exactly(site) == pristine
    assert do["uninstall"]().outcome is Outcome.ALREADY_APPLIED and exactly(site) == pristine


def test_a_profile_is_installed_widened_and_removed(project, site, do):
    project.edit("patches/steps/name-the-cut.patch", "Probe: ", "Profile: speed\nProbe: ")
    whole = project.apply()
    with unchanged(site):
        report = do["install"](only="fixes")
        assert (report.outcome, report.changed, report.added) == (Outcome.APPLIED, 1, 1)
        assert trees.hash_python(trees.list_package(site)) == report.record["tree"]["after"]
        assert (site / PATCHED).read_bytes() == (whole.path / RUNNER).read_bytes()
        assert (site / "sglang/srt/cut.py").read_text() == fakes.RELEASE["sglang/srt/cut.py"]
        assert do["install"](only="fixes").outcome is Outcome.ALREADY_APPLIED
        assert do["install"]().record["tree"] == whole.record["tree"]
        do["uninstall"]()
    assert refused(do["install"], only="rl")[0] == "nothing-to-do"


def test_a_tree_that_is_not_the_planned_one_is_taken_back(site, do, monkeypatch):
    """Somebody else writes there: their file stays, and those of the queue go."""
    before, forward, mine = exactly(site), undo.forward, site / "sglang/srt/mine.py"
    monkeypatch.setattr(undo, "forward", lambda made: (forward(made), mine.write_text("mine\n"))[0])
    name, text = refused(do["install"])
    assert name == "tree mismatch" and "sglang/srt/mine.py" in text
    assert mine.read_text() == "mine\n"
    mine.unlink()
    assert exactly(site) == before


def test_hard_links_keep_the_release(site, do, tmp_path):
    """uv links the files of an environment to those of its cache."""
    cache = tmp_path / "cache-of-uv"
    shutil.copytree(site, cache, copy_function=os.link)
    before, inode = contents(cache), (site / PATCHED).stat().st_ino
    do["install"]()
    assert contents(cache) == before and (site / PATCHED).stat().st_ino != inode
    (site / PATCHED).write_text("in place\n")
    assert contents(cache) == before
    do["uninstall"](discard=True)
    assert contents(cache) == before and (site / PATCHED).stat().st_ino == inode


def test_where_links_cannot_be_made_copies_serve(site, do, monkeypatch):
    def link(*_, **__):
        raise OSError("no links here")

    def without_inodes() -> dict[str, object]:
        return {name: (kind[:2], *rest) for name, (kind, *rest) in exactly(site).items()}

    monkeypatch.setattr(os, "link", link)
    os.utime(site / PATCHED, ns=(1, 1_600_000_000_123_456_789))
    before = without_inodes()
    do["install"]()
    do["uninstall"]()
    assert without_inodes() == before


def test_byte_code_of_changed_modules_goes_and_comes_back(site, do):
    """Python never compares unchecked byte code with its source."""
    code = site / "sglang/srt/__pycache__"
    before = contents(code)
    do["install"]()
    assert set(contents(code)) == {"page.cpython-312.pyc"}
    for name in ("runner.cpython-312.pyc", "runner.cpython-313.pyc", "cut.cpython-312.pyc"):
        (code / name).write_bytes(b"byte code of the patched module")
    (site / "sglang/srt/steps/__pycache__").mkdir()
    (site / "sglang/srt/steps/__pycache__/__init__.cpython-312.pyc").write_bytes(b"of ours")
    do["uninstall"]()
    assert contents(code) == before and not (site / "sglang/srt/steps").exists()
    killed(do, "forward")  # a server was started before the recovery
    (code / "runner.cpython-313.pyc").write_bytes(b"of the release")
    do["install"]()
    assert not list(code.glob("runner.*"))


def test_record_and_provenance(site, do):
    record = site / INFO / "RECORD"
    before = record.read_bytes()
    report = do["install"]()
    rows = {row[0]: row[1:] for row in csv.reader(record.read_text().splitlines())}
    for name in (PATCHED, STEPS, f"{INFO}/{wheels.PROVENANCE}"):
        assert rows[name] == wheels.record_row(name, (site / name).read_bytes())[1:]
    here = {name for name in contents(site) if not name.endswith(".pyc")}
    assert here <= rows.keys(), "pip would leave these behind"
    assert json.loads((site / INFO / wheels.PROVENANCE).read_text()) == report.record
    assert "Version: 9.9.1\n" in (site / INFO / "METADATA").read_text()
    changed = tuple(f"{name},".encode() for name in (PATCHED, "sglang/srt/cut.py"))
    kept = [line for line in before.splitlines(True) if not line.startswith(changed)]
    assert [line for line in record.read_bytes().splitlines(True) if line in kept] == kept
    do["uninstall"]()
    assert record.read_bytes() == before


# --- versions


def as_version(site: Path, version: str) -> None:
    """Rename the install: what it says of itself, not its files."""
    (site / INFO).rename(site / f"sglang-{version}.dist-info")
    (site / f"sglang-{version}.dist-info/METADATA").write_text(
        f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n"
    )
    (site / f"sglang-{version}.dist-info/RECORD").unlink()
    fakes.record(site, version)


# as in wheels for another CUDA, which setuptools-scm stamps with their local version
STAMPED = fakes.RELEASE["sglang/_version.py"].replace("9.9.1", "9.9.1+cu130")
OTHER_BUILD, SIBLING = "0.0.0.dev1+gdce8b0606", "9.9.1.post7"


@pytest.mark.parametrize(
    ("version", "own", "noted", "edited"),
    [
        ("9.9.1+cu130", {}, False, ()),
        ("9.9.1+cu130", {"sglang/_version.py": STAMPED}, False, ()),
        (OTHER_BUILD, {}, True, ()),
        # 0.5.12 is 0.5.12.post1 with a dozen other files: verl's stable image has it
        (SIBLING, {"sglang/srt/page.py": "other = 1\n"}, True, ("sglang/srt/page.py",)),
    ],
)
def test_the_files_say_which_release_it_is(site, do, version, own, noted, edited):
    for name, text in own.items():
        (site / name).write_text(text)
    as_version(site, version)
    with unchanged(site):
        report = do["install"]()
        assert report.outcome is Outcome.APPLIED and report.record["version"] == "9.9.1"
        assert [version in note for note in report.notes] == [True] * noted
        assert report.before == edited
        assert all((site / name).read_text() == text for name, text in own.items())
        do["uninstall"]()


def test_metadata_that_contradicts_the_files_is_refused(project, site, do):
    project.release("9.9.3", new="new = 1\n")
    as_version(site, "9.9.3")
    assert refused(do["install"])[0] == "bad-metadata"


# --- what is refused, with nothing changed


def edit(name, content="edited = 1\n"):
    return lambda site: fakes.write(site / name, content)


def edited_as(version):
    """Another file, in an install that says that it is this version."""

    def make(site):
        edit(PATCHED)(site)
        as_version(site, version)

    return make


def nameless(site):
    edit(PATCHED)(site)
    shutil.rmtree(site / INFO)
    for name in ("_version.py", "version.py"):
        (site / "sglang" / name).write_text("")


def gone(name):
    return lambda site: (site / name).unlink()


def link_file(site):
    (site / "elsewhere.py").write_bytes((site / PATCHED).read_bytes())
    (site / PATCHED).unlink()
    (site / PATCHED).symlink_to(site / "elsewhere.py")


def link_package(site):
    (site / "sglang").rename(site.parent / "sglang")
    (site / "sglang").symlink_to(site.parent / "sglang")


def editable(site):
    shutil.rmtree(site / "sglang")
    (site / INFO / "direct_url.json").write_text(
        '{"url": "file:///sgl-workspace/my%20sglang/python", "dir_info": {"editable": true}}'
    )


def two(site):
    shutil.copytree(site / INFO, site / "sglang-9.8.dist-info")


BAD = {
    "a link for a file": (link_file, "linked-install"),
    "a link for the package": (link_package, "linked-install"),
    "an editable install": (editable, "editable"),
    "what is left of an editable install": (lambda s: shutil.rmtree(s / "sglang"), "editable"),
    "two installs": (two, "two-installs"),
    "no METADATA": (gone(f"{INFO}/METADATA"), "bad-metadata"),
    "a journal of nobody's": (edit(f"{undo.FOLDER}/notes.txt"), "bad-journal"),
    "another release": (edited_as("9.9.2"), "unknown-release"),
    "another build": (edited_as(OTHER_BUILD), "unknown-release"),
    "no version": (nameless, "unknown-release"),
    "a sibling that the patches do not fit": (edited_as(SIBLING), "conflict"),
}


@pytest.mark.parametrize("make, name", BAD.values(), ids=BAD.keys())
def test_refused_and_nothing_is_written(site, do, make, name):
    make(site)
    with unchanged(site):
        found, text = refused(do["install"])
        assert found == name and "next:" in text


@pytest.mark.parametrize(
    "named, name",
    [
        ("nowhere", "no-folder"),
        ("site-packages/sglang/__init__.py", "no-folder"),
        ("site-packages/sglang", "no-sglang"),
        ("venv", "no-sglang"),
        ("checkout", "no-sglang"),
    ],
)
def test_wrong_folders(project, site, tmp_path, named, name):
    (tmp_path / "venv/lib/python3.12/site-packages/sglang").mkdir(parents=True)
    (tmp_path / "checkout/python/sglang").mkdir(parents=True)
    for verb in (inplace.install, inplace.uninstall):
        assert refused(verb, project.root, tmp_path / named)[0] == name


def damaged(site):
    for folder in ("links", "before"):
        (site / undo.FOLDER / folder / PATCHED).write_text("damaged\n")


BOTH, DISCARDING = ("install", "uninstall"), {"discard": True}
SINCE = {  # what has happened since an install -> the problem, its place, verbs, and their options
    "an edit": (edit(PATCHED), "edited-install", PATCHED, BOTH, {}),
    "a stranger in the queue's own folder": (
        edit("sglang/srt/steps/mine.txt"),
        "unknown-files",
        "sglang/srt/steps/mine.txt",
        ("uninstall",),
        DISCARDING,
    ),
    "damaged pre-images": (damaged, "bad-journal", PATCHED, ("uninstall",), {}),
    "a lost journal": (lambda site: shutil.rmtree(site / undo.FOLDER), "no-journal", "", BOTH, {}),
}


@pytest.mark.parametrize("make, name, place, verbs, options", SINCE.values(), ids=SINCE)
def test_refused_and_nothing_is_taken_off(site, do, make, name, place, verbs, options):
    do["install"]()
    make(site)
    for verb in verbs:
        with unchanged(site):
            found, text = refused(do[verb], **options)
            assert found == name and place in text and "next:" in text


@pytest.mark.parametrize("damaged", ["links", "before"])
def test_one_damaged_pre_image_is_no_harm(site, do, damaged):
    """As where somebody edits that file in another environment that is linked to the cache."""
    pristine = contents(site)
    do["install"]()
    (site / undo.FOLDER / damaged / PATCHED).write_text("damaged\n")
    do["uninstall"]()
    assert contents(site) == pristine


# --- a journal that somebody else wrote


def rewritten(site: Path, change) -> None:
    """Change what the journal says."""
    file = site / undo.FOLDER / undo.STATE
    written = json.loads(file.read_text())
    change(written)
    file.write_text(json.dumps(written))


def named(path: str, before: bytes | None = None):
    """A first change about another file, which an uninstall would remove or replace."""
    digests = [b"" if each is None else each for each in (before, b"secret\n")]
    old, new = (hashlib.sha256(text).hexdigest() if text else "" for text in digests)
    change = {"path": path, "before": old, "after": new}
    return partial(rewritten, change=lambda written: written["changes"].insert(0, change))


def overwritten(site: Path) -> None:
    """A change that would put a file of the journal in another's place."""
    edit(f"{undo.FOLDER}/before/x/y")(site)
    edit(f"{undo.FOLDER}/victim/secret", "mine\n")(site)
    named("../victim/secret", b"mine\n")(site)


def made_folder(site: Path) -> None:
    rewritten(site, lambda written: written["folders"].insert(0, "../victim/empty"))


def linked(name: str, path: str = ""):
    """A folder of the site or of the journal that is a link to the victim's."""

    def make(site: Path) -> None:
        shutil.rmtree(site / name, ignore_errors=True)
        (site / name).symlink_to(site.parent / "victim")
        if path:
            named(path)(site)

    return make


def moved(state: str):
    """The journal's whole folder is a link."""

    def make(site: Path) -> None:
        rewritten(site, lambda written: written.update(state=state))
        victim = site.parent / "victim"
        shutil.copytree(site / undo.FOLDER, victim, dirs_exist_ok=True)
        shutil.rmtree(site / undo.FOLDER)
        (site / undo.FOLDER).symlink_to(victim)

    return make


HOSTILE = {
    "..": named("../victim/secret"),
    ".. further in": named("sglang/../../victim/secret"),
    "absolute": lambda site: named(str(site.parent / "victim/secret"))(site),
    "backslash": named("sglang\\..\\x"),
    "no name": named(""),
    "no text": named(1),
    "another's content": overwritten,
    "a folder to remove": made_folder,
    "a linked folder": linked("sglang/out", "sglang/out/secret"),
    "linked links": linked(f"{undo.FOLDER}/links"),
    "linked before": linked(f"{undo.FOLDER}/before"),
    "a linked journal": moved("installed"),
    "a linked journal that is done": moved("removed"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_journal_reaches_no_file_outside_of_its_folder(site, do, kind):
    """Who may write into the folder need not be who runs this, often root."""
    do["install"]()
    victim = site.parent / "victim"
    (victim / "empty").mkdir(parents=True)
    (victim / "secret").write_text("secret\n")
    HOSTILE[kind](site)
    for verb in ("install", "uninstall"):
        with unchanged(victim, site):
            assert refused(do[verb])[0] == "bad-journal"


def test_notes_of_a_journal_name_no_file_to_write(site, do, tmp_path):
    """They say which files others edited since, and the queue's changes are taken off such."""
    secret = tmp_path / "victim/secret"
    edit("../victim/secret", "secret\n")(site)

    def noted(written: dict) -> None:
        written["notes"]["found"][f"python/{secret}"] = "0" * 64
        written["notes"]["laid"]["files"][str(secret)] = []

    with unchanged(secret.parent, site):
        do["install"]()
        rewritten(site, noted)
        do["uninstall"]()


@pytest.mark.parametrize("name", ["journal.json.new", f"after/{PATCHED}"])
def test_links_in_a_journal_are_not_written_through(site, do, tmp_path, name):
    before, secret = (site / PATCHED).read_text(), tmp_path / "secret"
    do["install"]()
    edit(PATCHED, (site / PATCHED).read_text() + "mine = 1\n")(site)  # the journal takes it over
    secret.write_text("secret\n")
    (site / undo.FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
    (site / undo.FOLDER / name).symlink_to(secret)
    do["uninstall"]()
    assert secret.read_text() == "secret\n"
    assert (site / PATCHED).read_text() == before + "mine = 1\n"


def test_what_an_install_prepares_goes_through_no_link(site, do, tmp_path):
    with unchanged(site):
        (tmp_path / "victim").mkdir()
        (site / undo.PREPARING).symlink_to(tmp_path / "victim")
        do["install"]()
        assert [*(tmp_path / "victim").iterdir()] == []
        do["uninstall"]()


def test_byte_code_behind_a_link_is_not_the_packages(site, do, tmp_path):
    kept = site / "sglang/srt/__pycache__"
    kept.rename(tmp_path / "elsewhere")
    kept.symlink_to(tmp_path / "elsewhere")
    for verb in ("install", "uninstall"):
        with unchanged(tmp_path / "elsewhere"):
            do[verb]()


def test_a_folder_of_the_package_that_is_a_link_is_not_patched(site, do, tmp_path):
    """Its files would be changed where they are, and the journal could not name them."""
    (site / "sglang/srt").rename(tmp_path / "srt")
    (site / "sglang/srt").symlink_to(tmp_path / "srt")
    with unchanged(tmp_path / "srt"):
        name, text = refused(do["install"], release="9.9.1")
    assert name == "linked-install" and "sglang/srt is a link" in text
    assert not (site / undo.FOLDER).exists()


def test_an_unwritable_folder_is_named(project, site):
    """As another user: root may write everywhere."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    for path in [site.parent, *site.parent.parents]:
        if path.stat().st_uid == 0 and not path.stat().st_mode & stat.S_IXOTH:
            path.chmod(path.stat().st_mode | stat.S_IXOTH)

    def as_nobody(folder: Path, words: str) -> None:
        os.setgid(65534)
        os.setuid(65534)
        said = refused(inplace.install, project.root, folder)[1]
        assert words in said and "next: run it as root" in said, said

    with unchanged(site):
        assert in_child(lambda: as_nobody(site, "[not-writable]")) == 0
        shutil.copytree(site, site.parent / "open", copy_function=shutil.copy2)
        for path in (site.parent / "open").rglob("*"):
            path.chmod(0o777 if path.is_dir() else 0o666)
        (site.parent / "open").chmod(0o777)
        assert in_child(lambda: as_nobody(site.parent / "open", "then belong to user 65534")) == 0


def test_owners_and_modes_are_kept(project, site, do):
    if os.geteuid() != 0:
        pytest.skip("needs root, to give files away")
    for path in [site, *site.rglob("*")]:
        os.chown(path, 1234, 1234)
    with unchanged(site):
        old = os.umask(0o077)
        try:
            do["install"]()
        finally:
            os.umask(old)
        for name in (PATCHED, STEPS, "sglang/srt/steps", f"{INFO}/RECORD"):
            status = (site / name).stat()
            assert (status.st_uid, status.st_gid) == (1234, 1234), name
            assert stat.S_IMODE(status.st_mode) & 0o444 == 0o444, name
        do["uninstall"]()


@pytest.mark.parametrize(
    ("module", "name", "last"), [(undo, "_stage", 1), (os, "replace", 3), (os, "mkdir", 4)]
)
def test_a_full_or_failing_disk_leaves_the_release(site, do, monkeypatch, module, name, last):
    """One call fails, once: what was done is taken back."""
    calls, original = [], getattr(module, name)

    def fail(*arguments, **options):
        calls.append(arguments)
        if len(calls) == last:
            raise OSError(28, "No space left on device", str(arguments[0]))
        return original(*arguments, **options)

    with unchanged(site), monkeypatch.context() as patch:
        patch.setattr(module, name, fail)
        found = refused(do["install"])
        assert found[0] == "disk-full" and "as root" not in found[1]


# --- other ways in which a release can be patched


def test_another_queue_is_taken_off_first(project, site, do, said):
    with unchanged(site):
        do["install"]()
        project.edit("patches/steps/count-once-more.patch", "+added_step = 20", "+added_step = 21")
        assert do["install"]().outcome is Outcome.APPLIED
        assert "added_step = 21" in (site / PATCHED).read_text()
        assert f"queue release {fakes.QUEUE} is taken off first" in said
        do["uninstall"]()


@pytest.fixture
def wheel_site(project, tmp_path) -> Path:
    """The patched wheel, installed: its overlay has the module that says what it is."""
    name = "overlay/python/sglang/srt/prefill_graph/report/provenance.py"
    project.write(name, (ROOT / name).read_bytes())
    both = "sglang/srt/steps/, python/sglang/srt/prefill_graph/"
    project.edit("patches/steps/count-once-more.patch", "sglang/srt/steps/", both)
    target = wheels.Target("3.12", "x86_64")
    made = wheels.build(project.root, project.pin, target, None, project.root / "dist")
    zipfile.ZipFile(made.path).extractall(tmp_path / "wheel-site")
    return tmp_path / "wheel-site"


def test_the_patched_wheel_is_known(project, wheel_site):
    with unchanged(wheel_site):
        report = inplace.install(project.root, wheel_site)
        assert report.outcome is Outcome.ALREADY_APPLIED and len(report.notes) == 1
        assert refused(inplace.uninstall, project.root, wheel_site)[0] == "patched-wheel"
        less = {"without": ["steps/name-the-cut"]}  # which the wheel has
        assert refused(inplace.install, project.root, wheel_site, **less)[0] == "patched-wheel"
        project.edit("patches/steps/count-once-more.patch", "+added_step = 20", "+added_step = 21")
        assert refused(inplace.install, project.root, wheel_site)[0] == "patched-wheel"


def test_the_patched_wheel_is_verified(project, wheel_site):
    assert (wheel_site / trees.LISTING.removeprefix("python/")).is_file()

    def verify():
        found = verified(wheel_site)
        return found["intact"], *([name for name, _ in found[who]] for who in ("faults", "others"))

    assert verify() == (True, [], [])
    others = ["sglang/srt/mine.py", "sglang/srt/page.py"]
    for name in others:
        edit(name)(wheel_site)
    assert verify() == (True, [], others)
    # what a start script compares is what the server says of itself
    assert verified(wheel_site)["tree"] == project.apply().record["tree"]["after"]
    edit(STEPS)(wheel_site)
    assert verify() == (False, [STEPS], others)


def put_over(site: Path, version: str = fakes.VERSION) -> dict[str, bytes]:
    """Install a release over what is there, as an installer that knows nothing of the journal."""
    shutil.rmtree(site / "sglang")
    shutil.rmtree(site / INFO)
    fakes.install(site, version=version)
    return contents(site / "sglang")


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_a_release_that_was_put_over_it_is_left_alone(project, site, do, verb, said):
    do["install"]()
    before = put_over(site)
    report = do[verb](**(DISCARDING if verb == "uninstall" else {}))
    assert any("has been replaced since" in text for text in said)
    if verb == "install":
        assert report.outcome is Outcome.APPLIED
        assert do["install"]().outcome is Outcome.ALREADY_APPLIED
        return
    assert contents(site / "sglang") == before and not (site / undo.FOLDER).exists()
    # over a killed install: the journal says how it was, and that is another release
    killed(do, "forward")
    project.release("9.9.2")
    before = put_over(site, "9.9.2")
    assert do["uninstall"]().outcome is Outcome.ALREADY_APPLIED
    assert contents(site / "sglang") == before and not (site / undo.FOLDER).exists()


def test_a_journal_without_faults_is_kept_where_the_python_files_are_a_releases(project, tmp_path):
    """So they are where the queue changes other files alone."""
    table = "sglang/srt/table.json"
    files = fakes.release_of("9.9.2") | {table: "[1]\n"}
    project.release("9.9.2", files)
    project.edit("series", "# >=9.9,<10\n", "# ==9.9.1\nsteps/count-the-table.patch  # ==9.9.2\n")
    text = fakes.patch_text(f"python/{table}", "[1]\n", "[2]\n", Probe=f"python/{table} :: [2]")
    project.write("patches/steps/count-the-table.patch", text)
    site = fakes.install(tmp_path / "other", files, version="9.9.2")
    with unchanged(site):
        inplace.install(project.root, site)
        assert (site / table).read_text() == "[2]\n"
        assert inplace.install(project.root, site).outcome is Outcome.ALREADY_APPLIED
        inplace.uninstall(project.root, site)


def test_a_checkout_that_is_installed_editable(project, tmp_path):
    """The folder that the refusal of its site-packages names can be patched; git sees it."""
    checkout = project.checkout(tmp_path / "checkout")
    folder = checkout / "python"
    edit("sglang/_version.py", "__version__ = version = '0.0.0.dev1+g123'\n")(folder)
    edit("sglang/not_in_the_wheel.txt", "text\n")(folder)
    with unchanged(folder):
        assert inplace.install(project.root, folder).outcome is Outcome.APPLIED
        assert "added_step" in (folder / PATCHED).read_text()
        assert fakes.git(checkout, "status", "--porcelain", "--", RUNNER).startswith(" M")
        assert inplace.install(project.root, folder).outcome is Outcome.ALREADY_APPLIED
        inplace.uninstall(project.root, folder)


# --- kills


WRITES = {f"os.{name}" for name in ("rename", "link", "remove", "mkdir", "rmdir", "chmod", "chown")}
WRITES |= {"os.utime", "shutil.rmtree", "shutil.copystat", "open", "fcntl.flock"}


def killed_at(number: int, site: Path, call) -> bool:
    """Whether a kill came before the n-th thing that the call does to a file below `site`."""

    def die_in_time():
        seen = -1

        def hook(event: str, arguments: tuple) -> None:
            nonlocal seen
            written = os.O_WRONLY | os.O_RDWR | os.O_DIRECTORY
            if event not in WRITES or (event == "open" and not (arguments[2] or 0) & written):
                return
            if any(str(argument).startswith(str(site)) for argument in arguments):
                seen += 1
                if seen == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        call()

    return in_child(die_in_time) == -signal.SIGKILL


def own_files(site: Path) -> dict[str, bytes]:
    """The package and pip's records of it: what must be of one state."""
    return {
        name: content
        for name, content in contents(site).items()
        if not name.startswith((undo.FOLDER, f".{undo.FOLDER}")) and not name.endswith(".pyc")
    }


@pytest.fixture
def states(site, do) -> tuple[dict, dict, dict]:
    """Everything in the site before an install; the files before, and after it."""
    pristine, before = exactly(site), own_files(site)
    do["install"]()
    after = own_files(site)
    do["uninstall"]()
    assert exactly(site) == pristine
    return pristine, before, after


@pytest.mark.parametrize("then", ["install", "uninstall"])
@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_killed_at_every_step(site, do, states, monkeypatch, verb, then):
    """The next call, whichever it is, makes good what a kill has left; and no file is ever torn."""
    pristine, before, after = states
    monkeypatch.setattr(inplace, "LAST", PATCHED)
    number = mixed = 0
    while True:
        (do["install"] if verb == "uninstall" else lambda: None)()
        if not killed_at(number, site, do[verb]):
            break
        found = own_files(site)
        assert all(
            content in (before.get(name), after.get(name)) for name, content in found.items()
        ), f"step {number} left a file that is neither"
        assert before.keys() & after.keys() <= found.keys(), f"step {number} left a file missing"
        if found[PATCHED] == after[PATCHED]:
            assert found == after, f"at step {number} a server says too early that it is patched"
        mixed += found not in (before, after)
        do[then]()
        if then == "install":
            assert own_files(site) == after
        do["uninstall"]()
        assert exactly(site) == pristine, f"step {number}"
        number += 1
    assert number > 25 and mixed > 3, "the kills do not reach the renames"


def killed(do, name: str) -> None:
    """An install that is killed in place of this step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(undo, name, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        assert in_child(do["install"]) == -signal.SIGKILL


@pytest.fixture
def underway(site, do):
    """An install that was killed before its first rename."""
    killed(do, "forward")
    assert undo.state_of(site) == "installing"


def test_a_damaged_new_file_is_not_put_in_place(site, do, underway):
    (site / undo.FOLDER / "after" / PATCHED).write_text("damaged\n")
    assert refused(do["install"])[0] == "bad-journal"
    do["uninstall"]()
    assert do["uninstall"]().outcome is Outcome.ALREADY_APPLIED
    assert not (site / undo.FOLDER).exists()


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_an_edit_before_the_recovery_is_kept_unless_it_is_discarded(site, do, underway, verb):
    (site / PATCHED).write_text("edited\n")
    name, text = refused(do["install"])
    assert name == "edited-install" and "--discard" in text
    assert (site / PATCHED).read_text() == "edited\n"
    do[verb](discard=True)
    assert do[verb]().outcome is Outcome.ALREADY_APPLIED


def test_a_change_behind_the_last_rename_is_seen(site, do, monkeypatch):
    """An install ends with every file as it was planned, or it is taken back."""
    settle = undo._settle

    def beside_another(*words):
        (site / STEPS).write_text("mine\n")
        return settle(*words)

    monkeypatch.setattr(undo, "_settle", beside_another)
    name, text = refused(do["install"])
    assert name == "edited-install" and STEPS in text
    assert undo.state_of(site) == "installing"


def test_a_state_is_on_the_disk_before_what_follows_it(site, do, monkeypatch):
    done = []

    def noted(function, name):
        return lambda *words: done.append((name, Path(words[-1]))) or function(*words)

    for module, name in ((os, "replace"), (undo.atomic, "sync"), (undo, "digest")):
        monkeypatch.setattr(module, name, noted(getattr(module, name), name))
    do["install"]()
    do["uninstall"]()
    folder = site / undo.FOLDER
    states = [at for at, each in enumerate(done) if each == ("replace", folder / undo.STATE)]
    assert len(states) == 3
    assert all(done[at + 1] == ("sync", folder) for at in states)


def test_edits_in_a_killed_install_are_refused(site, do):
    """Which of its files are whole is not known yet."""
    killed(do, "_settle")
    edit(PATCHED, (site / PATCHED).read_text() + "mine = 1\n")(site)
    with unchanged(site):
        name, text = refused(do["uninstall"])
        assert name == "edited-install" and PATCHED in text


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_killed_at_random_moments(site, do, states, verb):
    """SIGKILL to the whole process group, 25 moments over the whole time, from a fixed seed."""
    pristine, before, after = states
    dice = random.Random(25)
    if verb == "uninstall":
        do["install"]()
    started = time.monotonic()
    in_child(do[verb])
    whole = time.monotonic() - started
    for number in range(25):
        do["install" if verb == "uninstall" else "uninstall"]()
        child = os.fork()
        if child == 0:
            os.setsid()
            try:
                do[verb]()
            finally:
                os._exit(0)
        time.sleep(whole * (number + dice.random()) / 25)
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:  # not yet a leader of its own group
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = own_files(site).items()
        assert all(content in (before.get(name), after.get(name)) for name, content in found)
        do["install" if number % 2 else "uninstall"]()
        assert own_files(site) in (before, after)
    do["uninstall"]()
    assert exactly(site) == pristine


def test_two_at_once(project, site, do):
    """The second waits, says so, and finds it done."""
    words = ["--root", project.root, "install", "--site-packages", site]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with locked(site):
        run = subprocess.Popen([sys.executable, "-m", "patchqueue", *words], **pipes)
        assert "waiting for it" in run.stdout.readline()
        assert not (site / undo.FOLDER).exists()
    said = run.communicate(timeout=60)[0]
    assert run.returncode == 0, said
    assert do["install"]().outcome is Outcome.ALREADY_APPLIED


# --- real releases


def test_a_real_release(unpacked_release):
    """The tree of the replay, which `--verify` confirms, and the name in upstream's list."""
    pin, site = unpacked_release("0.5.23")
    before, info = exactly(site), "sglang-0.5.23.dist-info"
    report = inplace.install(ROOT, site)
    assert report.record["tree"] == {"before": pin.tree, "after": pin.patched}
    assert trees.hash_python(trees.list_package(site)) == pin.patched
    last = undo.read(site).changes[-1].path
    assert last == inplace.LAST, "a server would call itself patched before it is"
    found = verified(site)
    assert found["intact"] and (found["version"], found["tree"]) == ("0.5.23", pin.patched)
    assert test_build.named(site) == [CALLED]
    listed = f"{info}/entry_points.txt"
    rows = {row[0]: row for row in csv.reader((site / info / "RECORD").read_text().splitlines())}
    assert rows[listed] == wheels.record_row(listed, (site / listed).read_bytes())
    text = (site / listed).read_bytes()
    (site / listed).write_text("edited = 1\n")
    assert InPlace(undo.read(site)).differing.ours == (listed,)
    (site / listed).write_bytes(text)
    inplace.uninstall(ROOT, site)
    assert trees.hash_python(trees.list_package(site)) == pin.tree and exactly(site) == before


def test_check_writes_nothing(site, command):
    for before, expected, words in (
        (lambda: None, 0, "would apply 2 patches, change 2 files and add 1; nothing was written"),
        (lambda: command("install"), 0, "is patched already"),
        (lambda: (command("uninstall"), edit(PATCHED)(site)), 1, "[conflict]"),
    ):
        before()
        with unchanged(site):
            code, said = command("install", "--check")
            assert code == expected and words in said


def python(folder: Path, site: Path | None) -> str:
    """A Python that finds sglang in `site`, or nowhere."""
    folder.mkdir(parents=True)
    line = f"export PYTHONPATH={site}" if site else "unset PYTHONPATH"
    return str(fakes.program(folder / "python", f'{line}; exec {sys.executable} -S "$@"'))


def test_install_finds_the_sglang_of_the_environment(project, site, tmp_path, tool, monkeypatch):
    """The activated one, the one on PATH, or the one that is named; several are listed."""
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    one = python(tmp_path / "one/bin", site)
    none = python(tmp_path / "none/bin", None)
    edit("sglang/__init__.py", "")(tmp_path / "other-site")

    def run(*words, path: str = ""):
        monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin" if path else "/nowhere")
        code, out, err = tool(project, "install", "--check", *words)
        return code, out + err

    code, said = run("--python", one)
    assert code == 0 and said.startswith(f"sglang of {one}: {site}\n")
    code, said = run(path=str(tmp_path / "one/bin"))
    assert code == 0 and f"sglang of {one}: {site}" in said
    for missing, name in ((none, "no-sglang"), ("/nowhere/python", "no-python")):
        code, said = run("--python", missing)
        assert code == 1 and f"[{name}]" in said
    monkeypatch.chdir(tmp_path)
    assert run("--python", "one/bin/python")[0] == 0
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "one"))
    assert run()[0] == 0
    monkeypatch.delenv("VIRTUAL_ENV")
    second = python(tmp_path / "two/bin", tmp_path / "other-site")
    Path(second).rename(tmp_path / "one/bin/python3")
    code, said = run(path=str(tmp_path / "one/bin"))
    assert code == 1 and "[several-sglang]" in said and f"--python {one}`" in said


def test_the_launch_line_is_the_page_s():
    """docs/choose.md has the same table, and the same notes of models that need something else."""
    text = (ROOT / "docs/choose.md").read_text(encoding="utf-8")
    row = r"(?m)^\| (0\.5\.\S+(?: – 0\.5\.\d+)?) \| (.+?) \| (.+?) \| .+ \| .+ \|$"
    rows = re.findall(row, text)
    (sparse,) = re.findall(r"\| DeepSeek-V3.2, GLM-5 \| (\S+) to (\S+) \| `(.+?)`", text)
    assert len(rows) == 6
    for releases, breakable, piecewise in rows:
        ends = releases.split(" – ")
        for version in map(Version, dict.fromkeys(ends)):
            said, more = launch_argument(version), " ".join(launch_exceptions(version))
            page = piecewise if breakable == "unavailable" else breakable
            page = page.partition(" (")[0].strip("`")
            assert said == ("" if page == "default" else page), releases
            assert ("--enforce-piecewise-" in more) == ("(1)" in breakable), releases
            is_between = Version(sparse[0]) <= version <= Version(sparse[1])
            assert (sparse[2] in more) == is_between, releases
    assert launch_advice(Version("0.5.16")) == "start the server: the graph is on"
    assert launch_exceptions(Version("0.5.16"), "fixes") == []
    assert "--enable-breakable-cuda-graph" in launch_advice(Version("0.5.12.post1"))


def test_the_command_line(site, command):
    code, said = command("install")
    assert code == 0 and "2 patches, 2 files changed, 1 added" in said
    assert "next: start the server: the graph is on" in said
    assert command("install")[1].startswith("already applied")
    edit(STEPS)(site)
    edit("sglang/srt/page.py")(site)
    code, said = command("install")
    assert code == 1 and "[edited-install]" in said
    assert "--discard`" in said.splitlines()[-1] and STEPS in said
    code, said = command("uninstall")
    assert code == 1 and "[edited-install]" in said
    code, said = command("uninstall", "--discard")
    assert code == 0 and "made since the install, were kept:\n  sglang/srt/page.py\n" in said
    assert installed.find(site).version == "9.9.1"
    edit("sglang/srt/page.py", fakes.RELEASE["sglang/srt/page.py"])(site)
    again = f"next: `scripts/nox install --site-packages {site}` patches it"
    code, said = command("uninstall")
    assert (code, said.splitlines()[-1]) == (0, again)
