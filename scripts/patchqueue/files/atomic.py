"""Files written whole or not at all, durably: one alone, or several of the project together.

Several are written aside first, made good by one rename, then put in their places. Killed before
that rename, nothing was written; killed behind it, `recover` does the rest.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

MANIFEST = "files.json"
# of patches/, series and what else a rebase writes
JOURNAL = Path("work/.patchqueue/rebase.journal")


def write(path: Path, content: bytes, aside: Path | None = None) -> None:
    """Write a file: whoever reads it finds the old content or the new, whenever this is killed.

    aside: where it is written first, in the same folder; a name of this process's own otherwise.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = aside or path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        put(aside, content)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def put(path: Path, content: bytes) -> None:
    """Write a file in place, on the disk when this returns."""
    with open(path, "wb") as file:
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
    """Write `files` (path below root -> content), in their order. journal: a folder of this
    writer's own, below root."""
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
        path = root / name
        # by one name: what a killed run left of it is written again
        write(path, (journal / str(number)).read_bytes(), path.with_name(path.name + ".new"))
    # removed under another name: half a journal must never be recovered
    done = journal.with_name(journal.name + ".done")
    shutil.rmtree(done, ignore_errors=True)
    os.rename(journal, done)
    shutil.rmtree(done)
    return names
