"""What an install changes in the folder of an sglang, in which order, and what it keeps of it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from .. import RELEASE
from ..files.tree import (
    LAID,
    LISTING,
    hash_listing,
    own_listing,
    sha256,
    to_sha256sum,
)
from ..laying import own_changes as laying
from ..laying.selection import Selection, settle
from ..outcome import Refused
from ..queue.series import PROVENANCE
from ..wheels import build, plugin
from . import journal, ownership
from .installed import Identity, Installed

PREFIX = "python/"  # a wheel's sglang/ lies under it in git
# in the journal's folder: the listing of what was found; the patches as they were laid; where
PRISTINE, TEXTS, ABOUT = "before.sha256", "patches.json", "laid.json"
# where a server says that it is patched: so it says it with every other file in place
LAST = "sglang/srt/entrypoints/engine.py"


def plan(
    selection: Selection, here: Installed, known: Identity
) -> tuple[dict[str, bytes | None], dict[str, Any], dict[str, bytes]]:
    """What to change, in order; the provenance to keep; and the journal's notes. Raises Refused
    where a patch does not fit."""
    files_of = partial(read, here.site)
    if known.edits.paths:
        selection = settle(selection, files_of, str(here), ownership.resolve(known.pin.tag))
    laid = selection.replay(files_of)
    if laid.problems:
        raise Refused(laid.problems)
    files = {
        path: content for path, content in laid.files.items() if path.startswith("python/sglang/")
    }
    after = here.listing | {path: sha256(content) for path, content in files.items()}
    record = _record(selection, here, known, after, selection.stack(laid))
    about = laying.record(files, files_of, after, known.edits)
    if PROVENANCE in after:
        files[LISTING] = to_sha256sum(own_listing(after))
        files[LAID] = about
    by_place = {path.removeprefix(PREFIX): content for path, content in files.items()}
    notes = {
        PRISTINE: to_sha256sum(here.listing),
        TEXTS: ownership.texts(selection, selection.stack(laid)),
        ABOUT: about,
    }
    return _ordered(here, by_place, record, notes), record, notes


def _record(
    selection: Selection,
    here: Installed,
    known: Identity,
    after: dict[str, str],
    stack: dict[str, bytes],
) -> dict[str, Any]:
    """The provenance of what is laid on an installed sglang."""
    origin = {
        "kind": "installed",
        "name": f"sglang {here.version or known.pin.version}",
        "sha256": hash_listing(here.listing).removeprefix("sha256:"),
    }
    record = selection.record(origin, here.listing, after, stack) | {"release": RELEASE}
    if known.edits.paths:
        record["edits"] = known.edits.as_record()
        record["there"] = [*selection.already_present]
    return record


def _ordered(
    here: Installed,
    by_place: dict[str, bytes],
    record: dict[str, Any],
    notes: Mapping[str, bytes],
) -> dict[str, bytes | None]:
    """The changes: byte code goes, the overlay comes (nothing imports it yet), then the patched
    files, pip's own records, and last the file with which a server says that it is patched."""
    byte_code = [path for name in by_place for path in journal.byte_code(here.site / name)]
    changes: dict[str, bytes | None] = {
        path.relative_to(here.site).as_posix(): None for path in byte_code
    }
    changes |= {
        name: by_place[name]
        for name in sorted(by_place, key=lambda name: ((here.site / name).exists(), name))
        if name != LAST
    }
    changes |= _records(here, by_place, record, changes, notes)
    return changes | ({LAST: by_place[LAST]} if LAST in by_place else {})


def _records(
    here: Installed,
    files: dict[str, bytes],
    record: dict[str, Any],
    changes: dict[str, bytes | None],
    notes: Mapping[str, bytes],
) -> dict[str, bytes]:
    """What pip knows of the package: RECORD with the files as they are now, and the queue's
    provenance beside it.

    The version stays upstream's: requirements like sglang==0.5.9 must still hold, and a .dist-info
    cannot be renamed and its files changed in one step. patch_queue.json is what tells it apart.
    The journal is listed too: it goes with the package.
    """
    if here.info is None or not (here.info / "RECORD").is_file():
        return {}
    file, name = here.info / "RECORD", here.info.name
    own = {f"{name}/{build.PROVENANCE}": (json.dumps(record, indent=1) + "\n").encode()}
    own |= _entry_point(here, here.info, files)
    all_changes = {**changes, **files, **own, f"{name}/RECORD": b""}
    listed = journal.own_names(all_changes, here.site, notes)
    return own | {f"{name}/RECORD": updated_record(file.read_bytes(), {**files, **own}, listed)}


def _entry_point(here: Installed, info: Path, files: dict[str, bytes]) -> dict[str, bytes]:
    """entry_points.txt with the queue in upstream's list of plugins, where it is to change."""
    file = info / plugin.FILE
    there = {plugin.LIST} if (here.site / plugin.LIST).is_file() else set()
    made = plugin.listed(file.read_bytes() if file.is_file() else None, there | files.keys())
    return {} if made is None else {f"{info.name}/{plugin.FILE}": made}


def updated_record(text: bytes, contents: dict[str, bytes], unhashed: list[str]) -> bytes:
    """A RECORD with the rows of `contents` written anew or added, and rows without a hash for
    `unhashed`; every other line as it was."""
    lines = list(io.StringIO(text.decode("utf-8", "surrogateescape"), newline=""))
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    rows = {name: build.record_row(name, content) for name, content in contents.items()}
    made = [
        _line(rows.pop(name), end) if (name := next(csv.reader([line]), [""])[0]) in rows else line
        for line in lines
    ]
    others = [*rows.values(), *([name, "", ""] for name in unhashed)]
    return "".join([*made, *(_line(row, end) for row in others)]).encode("utf-8", "surrogateescape")


def _line(row: list[str], end: str) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator=end).writerow(row)
    return out.getvalue()


def names(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(path.removeprefix(PREFIX) for path in paths)


def named_tree(site: Path) -> str:
    """The tree as a server's first line names it and `--require` takes it, "sha256:<hex>"; empty
    where no queue's record is there. It does not count edits of others since then."""
    return str(laying.about(ownership.laid_in(site)).get("tree", ""))


def read(site: Path, path: str) -> bytes | None:
    file = site / path.removeprefix(PREFIX)
    return file.read_bytes() if path.startswith(f"{PREFIX}sglang/") and file.is_file() else None
