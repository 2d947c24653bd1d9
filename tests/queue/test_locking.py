"""One writer at a time: who waits, and what is said of it."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from patchqueue.files.atomic import locked

HOLD = (
    "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX);"
    " print(flush=True); sys.stdin.read()"
)


@pytest.mark.parametrize("name", ["one.lock", "."])
def test_a_runs_own_threads_wait_in_silence(tmp_path, name, said):
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
    assert said == []


def test_a_thread_that_was_overtaken_waits_in_silence(tmp_path, said, monkeypatch):
    """Another thread of this run takes the lock before the first one has tried."""
    path, begun, flock = tmp_path / "one.lock", threading.Event(), fcntl.flock

    def slow(descriptor: int, how: int) -> None:
        if how & fcntl.LOCK_NB and not begun.is_set():
            begun.set()
            time.sleep(0.2)
        flock(descriptor, how)

    def work(wait: bool) -> None:
        assert not wait or begun.wait(10)
        with locked(path):
            time.sleep(0.4)

    monkeypatch.setattr(fcntl, "flock", slow)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, [False, True]))
    assert said == []


def test_another_run_is_named_once(tmp_path, said):
    path = tmp_path / "one.lock"
    path.touch()

    def work(_: int) -> None:
        with locked(path):
            pass

    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        with ThreadPoolExecutor(4) as threads:
            done = threads.map(work, range(4))
            end = time.monotonic() + 30
            while not said and time.monotonic() < end:
                threading.Event().wait(0.01)
            threading.Event().wait(0.2)
            other.stdin.close()
            list(done)
    assert said == [f"another run holds {path}; waiting for it"]
