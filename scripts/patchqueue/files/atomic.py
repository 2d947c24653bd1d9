"""Several files of the project, written all or none: aside first, made good by one rename, then put
in their places.

Killed before that rename, nothing was written; killed behind it, `recover` does the rest.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

MANIFEST = "files.json"
# of patches/, series and what else a rebase writes
OF_QUEUE = Path("work/.patchqueue/rebase.journal")


def write_all(root: Path, files: Mapping[str, bytes], journal: Path) -> None:
    """Write `files` (path below root -> content), in their order. journal: a folder of this
    writer's own, below root."""
    recover(root, journal)
    aside = journal.with_name(journal.name + ".new")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for number, content in enumerate(files.values()):
        _write(aside / str(number), content)
    _write(aside / MANIFEST, json.dumps(list(files)).encode())
    os.rename(aside, journal)
    recover(root, journal)


def recover(root: Path, journal: Path) -> list[str]:
    """Finish what a killed run had made good; the paths that were written."""
    if not journal.is_dir():
        return []
    names: list[str] = json.loads((journal / MANIFEST).read_text(encoding="utf-8"))
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".new")
        _write(temporary, (journal / str(number)).read_bytes())
        os.replace(temporary, path)
    # removed under another name: half a journal must never be recovered
    done = journal.with_name(journal.name + ".done")
    shutil.rmtree(done, ignore_errors=True)
    os.rename(journal, done)
    shutil.rmtree(done)
    return names


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
