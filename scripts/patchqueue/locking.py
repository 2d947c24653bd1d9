"""One writer at a time: an advisory lock on a file, which child processes hold too for as long as they live."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, say: Callable[[str], None]) -> Iterator[int]:
    """Hold an exclusive lock on `path`, waiting (and saying so) while another process has it.

    Yields the descriptor. A child started with it in `pass_fds` keeps the lock until it ends, so a run that was killed
    while its child still writes does not let the next one in too early.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another run holds {path.name}; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
