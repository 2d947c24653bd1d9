"""One writer at a time: an advisory lock on a file, which child processes hold too for as long as
they live."""

from __future__ import annotations

import fcntl
import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

LOG = logging.getLogger(__name__)

# by file: this run's threads that hold it or wait for it
_WITHIN: Counter[tuple[int, int]] = Counter()
_COUNTING = Lock()


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold an exclusive lock on `path`, waiting (and saying so, once) while another process has it.

    path: a file, made where there is none; or a folder itself, where no file may be left behind.
    Yields the descriptor. A child started with it in `pass_fds` keeps the lock until it ends, so a
    run that was killed while its child still writes does not let the next one in too early. Raises
    OSError where it cannot be locked (a folder on NFS).
    """
    if path.is_dir():
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    status = os.fstat(descriptor)
    file = status.st_dev, status.st_ino
    try:
        with _COUNTING:  # no other thread of this run takes the lock between
            is_news = not _WITHIN[file]  # else the lock is this run's own, or it was said
            _WITHIN[file] += 1
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_news = False
        if is_news:
            LOG.info(f"another run holds {path}; waiting for it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
        with _COUNTING:
            _WITHIN[file] -= 1
