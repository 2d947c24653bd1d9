"""One writer at a time: who waits, and what is said of it."""

from __future__ import annotations

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
def test_one_at_a_time(tmp_path, name):
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


def test_another_run_is_named(tmp_path, said):
    path = tmp_path / "one.lock"
    path.touch()

    def work() -> None:
        with locked(path):
            pass

    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        with ThreadPoolExecutor(1) as threads:
            done = threads.submit(work)
            end = time.monotonic() + 30
            while not said and time.monotonic() < end:
                threading.Event().wait(0.01)
            other.stdin.close()
            done.result()
    assert said == [f"another run holds {path}; waiting for it"]
