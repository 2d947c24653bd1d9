"""The changes that an install makes in the folder of an sglang, in order, and its record."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from .. import RELEASE
from ..applying import own_changes
from ..applying.matching import listing_with
from ..applying.selection import Selection, settle
from ..files.tree import PREFIX, SGLANG, hash_python
from ..outcome import Refused
from ..queue.series import PROVENANCE
from ..wheels import build, notice
from . import ownership, undo
from .installed import Identity, Installed, read

# where a server says that it is patched: so it says it with every other file in place
LAST = "sglang/srt/entrypoints/engine.py"
Changes = dict[str, "bytes | None"]  # path below the folder -> content, None to remove the file


def plan(selection: Selection, here: Installed, known: Identity) -> tuple[Changes, dict[str, Any]]:
    """The changes, in order, and the record that the journal keeps.

    The record is a patched tree's, with "notes": "found", the listing before; "texts", the patches
    as they are applied; "laid", what laid.json has. Raises Refused where a patch does not fit, and
    where a file cannot be written.
    """
    files_of = partial(read, here.site)
    if known.edits.paths:
        selection = settle(selection, files_of, str(here), ownership.resolve(known.pin.tag))
    origin = {"kind": "installed", "name": f"sglang {here.version or known.pin.version}"}
    planned = selection.plan(files_of, origin)
    files = {path: content for path, content in planned.files.items() if path.startswith(SGLANG)}
    after = listing_with(here.listing, files)
    about = own_changes.described(files, files_of, after, known.edits)
    tree = {"before": hash_python(here.listing), "after": hash_python(after)}
    record = planned.record | {"tree": tree, "release": RELEASE}
    if known.edits.paths:
        record |= {"edits": known.edits.as_record(), "there": [*selection.already_present]}
    if PROVENANCE in after:
        files |= own_changes.records(about, after)
    own = {path.removeprefix(PREFIX): content for path, content in files.items()}
    # byte code goes, the overlay comes (nothing imports it yet), then the patched files, pip's own
    # records, and last the file with which a server says that it is patched
    compiled = (path for name in own for path in undo.byte_code(here.site / name))
    changes: Changes = {path.relative_to(here.site).as_posix(): None for path in compiled}
    in_order = sorted(own, key=lambda name: ((here.site / name).exists(), name))
    changes |= {name: own[name] for name in in_order if name != LAST}
    if here.info and (here.info / "RECORD").is_file():
        changes |= _records(here.site, here.info, own, record, changes)
    changes |= {LAST: own[LAST]} if LAST in own else {}
    _refuse_unwritable(here.site, changes)
    notes = {"found": here.listing, "texts": ownership.applied_diffs(planned), "laid": about}
    return changes, record | {"notes": notes}


def _records(
    site: Path, info: Path, files: dict[str, bytes], record: dict[str, Any], changes: Changes
) -> dict[str, bytes]:
    """The files by which pip knows the package: RECORD with the files as they are now, the queue's
    provenance beside it, and the queue in upstream's list of plugins.

    The version stays upstream's: requirements like sglang==0.5.9 must still hold, and a .dist-info
    cannot be renamed and its files changed in one step. patch_queue.json is what tells it apart.
    The journal is listed too: it goes with the package.
    """
    entry_points = info / notice.ENTRY_POINTS
    there = {notice.PLUGINS} if (site / notice.PLUGINS).is_file() else set()
    before = entry_points.read_bytes() if entry_points.is_file() else None
    entries = notice.entry_points(before, there | files.keys())
    own = {f"{info.name}/{build.PROVENANCE}": (json.dumps(record, indent=1) + "\n").encode()}
    own |= {} if entries is None else {f"{info.name}/{notice.ENTRY_POINTS}": entries}
    name, text = f"{info.name}/RECORD", (info / "RECORD").read_bytes()
    listed = io.StringIO(text.decode("utf-8", "surrogateescape"), newline="")
    rows = {row[0]: row for row in csv.reader(listed) if row}
    rows |= {path: build.record_row(path, content) for path, content in (files | own).items()}
    journal = undo.own_names({**changes, **files, **own, name: b""}, site)
    rows |= {path: [path, "", ""] for path in journal}
    made, end = io.StringIO(), "\r\n" if b"\r\n" in text else "\n"
    csv.writer(made, lineterminator=end).writerows(rows.values())
    return own | {name: made.getvalue().encode("utf-8", "surrogateescape")}


def _refuse_unwritable(site: Path, changes: Iterable[str]) -> None:
    """Raise Refused where a folder does not take a new name, or a file would get another owner."""
    user = os.geteuid()
    paths = [site / name for name in changes]
    step = "run it as root, or let it be written"
    for folder in sorted({site, *(path.parent for path in paths if path.parent.is_dir())}):
        if not os.access(folder, os.W_OK | os.X_OK):
            what = f"cannot be written by user {user}"
            raise Refused.of("not-writable", str(folder), what, step)
    for path in paths:
        if path.exists() and user not in (0, owner := path.stat().st_uid):
            what = f"belongs to user {owner}, and would then belong to user {user}"
            raise Refused.of("not-writable", str(path), what, step)
