"""Files, locks, records and programs: written whole or not at all, by one at a time."""

import json
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import fakes
import pytest

from patchqueue.files import atomic, record, run
from patchqueue.files.atomic import locked
from patchqueue.outcome import Refused


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path, monkeypatch):
    file = tmp_path / "new folder/file"
    atomic.write(file, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        atomic.write(file, b"new")
    assert file.read_bytes() == b"old" and os.listdir(file.parent) == ["file"]


def test_content_and_name_are_on_the_disk_before_it_returns(tmp_path, monkeypatch):
    done = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        noted = lambda *words, name=name, real=real: done.append(name) or real(*words)  # noqa: E731
        monkeypatch.setattr(os, name, noted)
    atomic.write(tmp_path / "file", b"content")
    assert done == ["fsync", "replace", "fsync"]


def test_a_link_stays_and_its_file_is_written(tmp_path):
    (tmp_path / "folder").mkdir()
    for name in ("there", "not yet there"):
        link = tmp_path / f"link to {name}"
        link.symlink_to(f"folder/{name}")
        atomic.write(link, b"old")
        atomic.write(link, b"new")
        assert link.is_symlink() and (tmp_path / "folder" / name).read_bytes() == b"new"


def test_a_pipe_and_a_terminal_take_the_content_and_stay(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    atomic.write(pipe, b"content")
    reader.join(10)
    assert read == [b"content"] and pipe.is_fifo()
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    (tmp_path / "out").symlink_to(os.ttyname(theirs))
    atomic.write(tmp_path / "out", b"content")
    assert os.read(ours, 7) == b"content" and (tmp_path / "out").is_char_device()


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone makes devices")
def test_devices_stay(tmp_path):
    null, disk = tmp_path / "null", tmp_path / "disk"
    os.mknod(null, 0o020666, os.makedev(1, 3))
    atomic.write(null, b"content")
    assert null.is_char_device()
    os.mknod(disk, 0o060600, os.makedev(7, 255))
    with pytest.raises(Refused, match="no file"):
        atomic.write(disk, b"content")
    assert disk.is_block_device()


def test_a_socket_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(Refused, match="no file"):
            atomic.write(tmp_path / "socket", b"content")
    assert (tmp_path / "socket").is_socket()


@pytest.mark.parametrize("to", ["pipe", "file"])
def test_standard_output_is_printed_to(tmp_path, to):
    """Behind what was printed there before. By a link: the machine's own is not at risk."""
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    code = (
        "import sys; from pathlib import Path; from patchqueue.files import atomic;"
        "print('before', flush=True); atomic.write(Path(sys.argv[1]), b'content\\n')"
    )
    file = tmp_path / "out"
    with open(file, "ab") as out:
        out.write(b"of others\n")
        out.flush()
        given = out if to == "file" else subprocess.PIPE
        words = [sys.executable, "-c", code, str(tmp_path / "stdout")]
        done = subprocess.run(words, stdout=given, check=True)
    found = file.read_bytes().removeprefix(b"of others\n") if to == "file" else done.stdout
    assert found == b"before\ncontent\n"


def test_what_a_killed_write_left_goes_with_the_next(tmp_path):
    folder = tmp_path / "folder"
    fakes.kill_at(1, lambda: atomic.write(folder / "file", b"new"))
    assert len(os.listdir(folder)) == 1
    living = folder / f".file.{os.uname().nodename}.1.new"
    others = folder / ".file.another-host.999999999.new"
    for path in (living, others):
        path.touch()
    atomic.write(folder / "file", b"newer")
    assert sorted(os.listdir(folder)) == sorted(["file", living.name, others.name])


@pytest.mark.parametrize("name", ["one.lock", "."])
def test_one_writer_at_a_time_holds_a_lock_and_who_waits_says_so(tmp_path, name, said):
    """On a file, and on a folder itself."""
    path = tmp_path / name
    within: list[int] = []

    def work(number: int) -> None:
        with locked(path):
            within.append(number)
            threading.Event().wait(0.01)
            assert within.pop() == number and not within

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert set(said) == {f"another run holds {path}; waiting for it"}


def test_what_is_written_is_read_back_a_line_for_each_name():
    text = record.text_of(value := {"a": [1, {"b": None}], "c\n": {"d": "e\n"}})
    assert json.loads(text) == value and text.count("\n") == len(value) + 2


STEERING = {
    run.GIT: ("GIT_DIR", "GIT_INDEX_FILE", "GIT_CONFIG_COUNT"),
    run.UV: ("UV_INDEX", "UV_FIND_LINKS", "UV_EXCLUDE_NEWER", "VIRTUAL_ENV"),
    run.QUILT: ("QUILTRC", "QUILT_PATCHES_PREFIX", "POSIXLY_CORRECT", "ENV"),
}
KEPT = {run.GIT: "GIT_SSL_CAINFO", run.UV: "UV_INDEX_URL", run.QUILT: "EDITOR", run.DIFF: "TMPDIR"}


@pytest.mark.parametrize("tool", KEPT, ids=lambda tool: tool.name)
def test_what_steers_a_program_does_not_reach_it_and_a_missing_one_is_named(
    tool, tmp_path, monkeypatch
):
    problem = fakes.problem_of(run.run, tool, program=str(tmp_path / "none"))
    assert problem.name == f"no-{tool.name}" and problem.hint == tool.install
    for name in (*STEERING.get(tool, ()), KEPT[tool]):
        monkeypatch.setenv(name, "the user's")
    fakes.program(tmp_path / "tool", "env")
    said = run.run(tool, program=str(tmp_path / "tool")).stdout.decode().splitlines()
    found = dict(line.partition("=")[::2] for line in said)
    assert not found.keys() & set(STEERING.get(tool, ())) and found[KEPT[tool]] == "the user's"
    assert all(found[name] == value for name, value in tool.given.items())


def test_a_failure_is_told_by_its_last_line(tmp_path):
    fakes.program(tmp_path / "git", "echo first >&2; echo 'fatal: last' >&2; exit 3")
    with pytest.raises(run.Failed, match="^last$") as failure:
        run.run(run.GIT, program=str(tmp_path / "git"))
    assert failure.value.said == "first\nfatal: last" and failure.value.done.returncode == 3
    assert run.run(run.GIT, program=str(tmp_path / "git"), good=(3,)).returncode == 3
