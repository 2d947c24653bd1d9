"""One writer at a time: an advisory lock on a file, which child processes hold too for as long as
they live."""

from __future__ import annotations

import fcntl
import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

LOG = logging.getLogger(__name__)

# by file: this run's threads that hold it or wait for it
_WITHIN: Counter[tuple[int, int]] = Counter()
_COUNTING = Lock()


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold an exclusive lock on `path`, waiting (and saying so, once) while another process has it.

    Yields the descriptor. A child started with it in `pass_fds` keeps the lock until it ends, so a
    run that was killed while its child still writes does not let the next one in too early.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _held(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), str(path)) as descriptor:
        yield descriptor


@contextmanager
def locked_folder(path: Path) -> Iterator[int]:
    """The same on a folder itself, for places where no file may be left behind. Raises OSError
    where it cannot be locked (NFS)."""
    with _held(os.open(path, os.O_RDONLY | os.O_DIRECTORY), str(path)) as descriptor:
        yield descriptor


@contextmanager
def _held(descriptor: int, name: str) -> Iterator[int]:
    status = os.fstat(descriptor)
    file = status.st_dev, status.st_ino
    with _COUNTING:
        is_first = not _WITHIN[file]
        _WITHIN[file] += 1
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if is_first:  # else it is this run's own, or it was said
                LOG.info(f"another run holds {name}; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
        with _COUNTING:
            _WITHIN[file] -= 1
