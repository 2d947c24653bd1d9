"""Files written whole or not at all, durably, by one writer at a time, who holds a lock. Several
are written aside, made good by one rename, then moved; behind a kill, `recover` does the rest."""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ..outcome import Refused

LOG = logging.getLogger(__name__)

OUTPUT = Path("/dev/stdout")  # of this process
MANIFEST = "files.json"
# of patches/, series and what else a rebase writes
JOURNAL = Path("work/.patchqueue/rebase.journal")
# held while a file of the queue is read and rewritten
QUEUE_LOCK = Path("work/.patchqueue/rebase.lock")


def write(path: Path, content: bytes) -> None:
    """Write a file: whoever reads it finds the old content or the new, whenever this is killed.

    A link is followed, and stays. A pipe, a terminal and /dev/null take the content as it comes.
    Raises Refused for a disk or a socket."""
    is_output = _is_output(path)  # a file, too: no other one may take its place
    if is_output or (path.exists() and not path.is_dir() and not path.is_file()):
        if not (is_output or path.is_fifo() or path.is_char_device()):
            raise Refused.of("no-file", str(path), "is a device, and no file", "name a file")
        with open(1 if is_output else path, "wb", closefd=not is_output) as file:
            file.write(content)
        return
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(path)
    try:
        put(aside, content)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def _is_output(path: Path) -> bool:
    """Whether a file is what this process prints to, as /dev/stdout is."""
    with suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(1))
    return False


def _aside(path: Path) -> Path:
    """A name of this process's own beside a file; what killed runs left of theirs goes."""
    own = f".{path.name}.{os.uname().nodename}."
    for left in path.parent.glob(f"{glob.escape(own)}*.new"):
        try:
            os.kill(int(left.name[len(own) : -len(".new")]), 0)
        except ProcessLookupError:
            left.unlink(missing_ok=True)
        except (OSError, ValueError):
            pass  # another user's, or no name of ours
    return path.with_name(f"{own}{os.getpid()}.new")


def put(path: Path, content: bytes) -> None:
    """Write a new file, on the disk when this returns. What has its name is removed first: a link
    would lead elsewhere."""
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """Have the names in a folder on the disk when this returns, where its file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def write_all(root: Path, files: Mapping[str, bytes], journal: Path) -> None:
    """Write `files` (by path below root), in order. journal: a folder of the writer's own."""
    recover(root, journal)
    aside = journal.with_name(journal.name + ".new")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for number, content in enumerate(files.values()):
        put(aside / str(number), content)
    put(aside / MANIFEST, json.dumps(list(files)).encode())
    sync(aside)
    os.rename(aside, journal)
    sync(journal.parent)
    recover(root, journal)


def recover(root: Path, journal: Path) -> list[str]:
    """Finish what a killed run had made good; the paths that were written."""
    if not journal.is_dir():
        return []
    names: list[str] = json.loads((journal / MANIFEST).read_text(encoding="utf-8"))
    for number, name in enumerate(names):
        write(root / name, (journal / str(number)).read_bytes())
    # removed under another name: half a journal must never be recovered
    done = journal.with_name(journal.name + ".done")
    shutil.rmtree(done, ignore_errors=True)
    os.rename(journal, done)
    shutil.rmtree(done)
    return names


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold an exclusive lock on `path`, waiting (and saying so) while another has it; yields the
    descriptor, for children that are to hold it too.

    path: a file, made where there is none; or a folder itself. Raises OSError where it cannot be
    locked (a folder on NFS).
    """
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
    mode = os.O_RDONLY | os.O_DIRECTORY if path.is_dir() else os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, mode, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            LOG.info(f"another run holds {path}; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
