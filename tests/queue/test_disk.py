"""A full disk, and places that cannot be written: one sentence, the path, what to do."""

import errno
import os
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import fakes
import pytest
from fakes import RUNNER, TAG, in_child

from bundle import packing
from patchqueue import commands as cli
from patchqueue.files import run
from patchqueue.install import inplace
from patchqueue.outcome import disk_step, system_problem
from patchqueue.upstream import source


def error(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), *([path] if path else []))


CACHE, QUEUE = Path("/cache/queue"), Path("/src/queue")
PLACES = [QUEUE, CACHE]
OTHERS = (errno.ENOENT, errno.EIO, errno.EPIPE, errno.EEXIST)  # none of a disk
CHANGES = {f"os.{name}" for name in ("mkdir", "rename", "remove", "rmdir", "link", "symlink")}
CHANGES |= {"os.chmod", "os.utime", "os.truncate"}


COPIED = [("/from/a", "/src/queue/work/a", str(error(errno.ENOSPC, "/src/queue/work/a")))]
ODD = [("/from/a", "/src/queue/work/a", "said in no known form")]


@pytest.mark.parametrize(
    ("found", "name", "where"),
    [
        (error(errno.EROFS, "/src/queue/work/x"), "read-only", "/src/queue/work/x"),
        (error(errno.EACCES, "/cache/queue/.lock"), "no-access", "/cache/queue/.lock"),
        (error(errno.EPERM, "/elsewhere"), "no-access", "/elsewhere"),
        (error(errno.ENOSPC, "/cache/queue/a"), "disk-full", "/cache/queue/a"),
        (error(errno.ENOSPC), "disk-full", f"{QUEUE} or {CACHE}"),
        (error(errno.EDQUOT, "/src/queue/a"), "disk-full", "/src/queue/a"),
        *((error(number, "/src/queue/x"), "system-error", "/src/queue/x") for number in OTHERS),
        (error(errno.EIO), "system-error", "/src/queue or /cache/queue"),
        (OSError(errno.EXDEV, "crosses", "/a", None, "/b"), "system-error", "/a and /b"),
        (OSError("no number"), "system-error", "/src/queue or /cache/queue"),
        (shutil.SameFileError("the same"), "system-error", "/src/queue or /cache/queue"),
        (shutil.Error(COPIED), "disk-full", "/src/queue/work/a"),
        (shutil.Error(ODD), "system-error", "/src/queue/work/a"),
    ],
)
def test_what_an_error_means(found, name, where):
    problem = system_problem(found, PLACES)
    assert (problem.name, problem.where) == (name, where)
    assert problem.hint and (name != "system-error" or str(problem.what).rpartition(": ")[2])


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("patch: **** write error : No space left on device", "free some space"),
        ("fatal: cannot create .git/x: Read-only file system", "let that place be written"),
        ("ERROR: No matching distribution found", ""),
    ],
)
def test_what_another_program_says(text, step):
    assert disk_step(text).startswith(step) and bool(disk_step(text)) == bool(step)


FULL = "write error: No space left on device"


def test_pip_and_git_on_a_full_disk(project, tmp_path, monkeypatch):
    fakes.program(tmp_path / "bin/git", f"echo 'fatal: {FULL}' >&2; exit 128")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    failed = subprocess.CompletedProcess([], 1, "", f"ERROR: Could not install: {FULL}")
    monkeypatch.setattr(source, "_pip", lambda *_, folder: failed)
    shutil.rmtree(project.cache / "archives")
    for name, call in (
        ("git-failed", lambda: run.own_git(tmp_path, "init")),
        ("not-fetched", lambda: source.fetch(project.pin, None)),
    ):
        found, text = fakes.refused(call)
        assert found == name and "free some space" in text


# Commands


def closed(folder: Path, number: int):
    """An audit hook: in `folder` nothing is changed. A full disk is met within a file, unnamed."""

    def hook(event: str, arguments: tuple) -> None:
        writes = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        if not writes and (event not in CHANGES or number == errno.ENOSPC):
            return
        for argument in arguments[:2]:
            if isinstance(argument, (str, os.PathLike)) and Path(argument).is_relative_to(folder):
                raise error(number, None if number == errno.ENOSPC else str(argument))

    return hook


def run_in(folder: Path, number: int, words: list[str], said: Path) -> int:
    """Run a command in a process to which `folder` is closed: its exit code. It says `said`."""

    def command() -> None:
        with said.open("w") as errors, redirect_stdout(StringIO()), redirect_stderr(errors):
            sys.addaudithook(closed(folder, number))
            code = cli.main(words)
        os._exit(code)

    return in_child(command)


def files(folder: Path) -> dict[str, object]:
    """What is there; an empty folder takes no space, and the next run goes on with it."""
    found = fakes.exactly(folder).items()
    return {name: held for name, (held, *_) in found if held != "folder"}


def no_tree(project, folder):
    shutil.rmtree(project.root / "work")


def edited(project, folder):
    file = project.tree / RUNNER
    file.write_text(file.read_text().replace("added_step = 20", "added_step = 21"))


def another_overlay(project, folder):
    project.edit("overlay/python/sglang/srt/steps/__init__.py", "our own", "ours")


def no_cache(project, folder):
    shutil.rmtree(project.cache / "archives")
    no_tree(project, folder)


def installed(project, folder):
    fakes.install(folder)


def installed_and_patched(project, folder):
    fakes.install(folder)
    inplace.install(project.root, folder)


def nothing(project, folder):
    pass


COMMANDS = {  # what is prepared, what is closed, and the words
    "apply": (no_tree, "root", ("apply",)),
    "apply-without-a-cache": (no_cache, "cache", ("apply", "--from", "{wheels}")),
    "unapply": (nothing, "root", ("unapply",)),
    "build": (nothing, "root", ("build", "--python", "3.12", "--machine", "x86_64")),
    "quilt": (nothing, "root", ("quilt", TAG, "series")),
    "refresh": (edited, "root", ("refresh",)),
    "check": (another_overlay, "root", ("check", "--write")),
    "pin": (lambda project, _: project.newer(), "root", ("pin", "9.9.2", "--from", "{wheels}")),
    "install": (installed, "folder", ("install", "--site-packages", "{folder}")),
    "uninstall": (installed_and_patched, "folder", ("uninstall", "--site-packages", "{folder}")),
    "patches": (nothing, "folder", ("patches", "--out", "{folder}/all.patch")),
}


NAMES = {errno.EROFS: "read-only", errno.ENOSPC: "disk-full"}
NAMES |= {errno.EIO: "(?:system-error|not-done|no-folder)"}


@pytest.mark.parametrize("number", NAMES, ids=errno.errorcode.get)
@pytest.mark.parametrize("prepare, where, words", COMMANDS.values(), ids=COMMANDS)
def test_a_command_that_cannot_write_says_so_in_a_sentence(
    applied, tmp_path, prepare, where, words, number
):
    folder = tmp_path / "folder"
    prepare(applied, folder)
    place = {"root": applied.root, "cache": applied.cache, "folder": folder}[where]
    before = files(place)
    filled = [word.format(wheels=applied.wheels, folder=folder) for word in words]
    file = tmp_path / "said"
    assert run_in(place, number, ["--root", str(applied.root), *filled], file) == 1
    said = file.read_text()
    (problem,) = [one for one in said.splitlines() if re.search(rf"\[{NAMES[number]}\]$", one)]
    assert number != errno.EIO or os.strerror(number) in problem
    assert "    next: " in said and (number == errno.ENOSPC or problem.startswith(str(place)))
    assert number != errno.EROFS or "as root" not in said, "root cannot write there either"
    assert files(place) == before


def test_a_journal_that_another_user_may_read_is_not_called_broken(project, tmp_path, monkeypatch):
    """`reinstall sglang, then delete that folder` would lose what takes the patches off."""
    site = fakes.install(tmp_path / "site")
    inplace.install(project.root, site)
    read = Path.read_text

    def denied(self, *arguments, **options):
        if self.name == inplace.undo.STATE:
            raise error(errno.EACCES, str(self))
        return read(self, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", denied)
    problem = fakes.problem_of(inplace.uninstall, project.root, site)
    assert problem.name == "no-access" and "run it as root" in problem.hint
    assert "reinstall" not in problem.hint


@pytest.mark.parametrize("ends_early", [False, True])
def test_a_bundle_on_a_full_disk(tmp_path, monkeypatch, capfd, ends_early):
    """xz says why: at the end, or, of a large archive, while it is still written to."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made/one").write_bytes(os.urandom(1 << 18))
    if ends_early:
        fakes.program(tmp_path / "bin/xz", f'echo "xz: {FULL}" >&2; exit 1')
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    made = [(tmp_path / "made", "made")]
    name, text = fakes.refused(packing.archive, Path("/dev/full"), made)
    assert name == "no-bundle" and "free some space" in text
    assert "No space left" in capfd.readouterr().err
