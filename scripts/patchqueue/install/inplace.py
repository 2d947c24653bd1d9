"""Patch an installed sglang where it lies, reversibly: the bytes that work/<tag>/ would have, by
way of a journal.

The installed files themselves are the pristine release: they must be that of a pin in every byte,
so that neither its wheel nor quilt is needed. The result is that of the strict replay, which apply
holds against quilt's on every pin.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import RELEASE
from ..files import disk
from ..files.locking import locked_folder
from ..files.tree import (
    LISTING,
    differing,
    hash_listing,
    list_package,
    listing_text,
    own_listing,
    sha256,
)
from ..hint import some, to_type
from ..laying.apply import load_queue
from ..laying.selection import Selection, select
from ..outcome import Outcome, Problem, Refused
from ..queue.series import PROVENANCE, Queue
from ..upstream import pins as pinning
from ..wheels import build, plugin
from . import installed, journal
from .installed import Identity, Installed
from .journal import Journal, State

LOG = logging.getLogger(__name__)

PREFIX = "python/"  # a wheel's sglang/ lies under it in git
PRISTINE = "before.sha256"  # in the journal's folder: the listing of the release, as it was found
# where a server says that it is patched: so it says it with every other file in place
LAST = "sglang/srt/entrypoints/engine.py"


@dataclass(frozen=True)
class Report:
    """What became of an installed sglang. record: its provenance; changed, added: the number of
    files; notes: what to know.

    faults: files that are neither the release's nor the queue's, by their names below the folder.
    next_step: what puts them right.
    """

    site: Path
    outcome: Outcome
    record: dict[str, Any]
    changed: int = 0
    added: int = 0
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    next_step: str = ""


def install(root: Path, site: Path, discard: bool = False) -> Report:
    """Lay the queue on the sglang in `site`; what an earlier, killed call began is finished first.

    discard: edits of files that an earlier install made may go. Raises Refused, with nothing
    changed, where the files are not those of a pinned release, where no patch is for it, where it
    cannot be written, or where it is patched by other means.
    """
    queue, pins = load_queue(root), pinning.load(root)
    with _opened(site) as place:
        found = _recovered(place, pins)
        if found:
            pin = pins.find(found.record["version"])
            faults = _faults(found)
            if found.record["queue"] == select(queue, pin).stack_sha256 and not faults:
                return Report(place, Outcome.ALREADY_APPLIED, found.record, *_counts(found))
            _refuse_edits(found, faults, discard)
            LOG.info(f"queue release {found.record['release']} is taken off first")
            journal.back(found, discard)
        here = installed.find(place)
        other = _by_wheel(here)
        if other:
            return _wheel_report(here, other, queue, pins)
        known = installed.identify(here, pins)
        if known.pin.no_patches:
            what = f"no patch is for it: {known.pin.no_patches}"
            raise Refused.of("nothing-to-install", known.pin.tag, what, "use the release as it is")
        return _lay(select(queue, known.pin), here, known)


def uninstall(root: Path, site: Path, discard: bool = False) -> Report:
    """Give the release in `site` back as it was before `install`: bytes, modes, times, byte code,
    RECORD.

    Raises Refused, with nothing changed, where that would lose edits (unless told to discard them)
    or cannot be done.
    """
    with _opened(site) as place:
        found = _current(place, pinning.load(root))
        if found is None:
            here = installed.find(place)
            if _by_wheel(here):
                what = "was installed from a patched wheel, not in place"
                step = (
                    "`pip install --force-reinstall --no-deps"
                    f" sglang=={here.version.partition('+')[0]}`"
                )
                raise Refused.of("patched-wheel", str(here), what, step)
            return Report(
                place, Outcome.ALREADY_APPLIED, {}, notes=("nothing is installed in place here",)
            )
        before = _pristine(found)
        journal.back(found, discard)
        after = list_package(place)
        if hash_listing(after) != found.record["tree"]["before"]:
            notes = ("these files are not the release's, and were left alone",)
            faults = _names(differing(before, after))
            return Report(place, Outcome.APPLIED, found.record, *_counts(found), notes, faults)
        return Report(place, Outcome.APPLIED, found.record, *_counts(found))


def verify(root: Path, site: Path) -> Report:
    """Finish what a killed call began, then hold every file against the release or the patched
    tree.

    The outcome is APPLIED where it is patched, EMPTY where it is the pristine release,
    TREE_MISMATCH with the faults else.
    """
    with _opened(site) as place:
        pins = pinning.load(root)
        found = _recovered(place, pins)
        if found is None:
            return _verify_without_journal(installed.find(place), pins)
        faults = _faults(found)
        step = (
            f"{to_type('install', '--site-packages', site, '--discard')} makes the queue's files"
            " anew; put others back"
        )
        state = Outcome.TREE_MISMATCH if faults else Outcome.APPLIED
        return Report(place, state, found.record, *_counts(found), faults=faults, next_step=step)


def _verify_without_journal(here: Installed, pins: pinning.Pins) -> Report:
    """Of a patched wheel, which RECORD tells, or of the release itself."""
    record = _by_wheel(here)
    if record:
        faults, tag = installed.unlike_record(here), f"v{record['version']}"
        step = (
            f"{to_type('build', tag)}, then `pip install --force-reinstall --no-deps` with that"
            " wheel"
        )
        state = Outcome.TREE_MISMATCH if faults else Outcome.APPLIED
        return Report(here.site, state, record, faults=faults, next_step=step)
    known = installed.identify(here, pins)
    record = {"version": str(known.pin.version), "tree": {"before": hash_listing(here.listing)}}
    return Report(here.site, Outcome.EMPTY, record)


@contextmanager
def _opened(site: Path) -> Iterator[Path]:
    """Be the only one at work in the folder; what a killed run left aside is removed. No file is
    left for the lock."""
    if not site.is_dir():
        installed.find(site)  # which says so
    place = site.resolve()
    try:
        with locked_folder(place):
            journal.sweep(place)
            yield place
    except OSError as error:
        raise Refused(_not_done(error, place)) from error


def _not_done(error: OSError, place: Path) -> Problem:
    """The system's error as a problem: it tells a full disk from a folder that the user may not
    write."""
    owner = place.stat().st_uid
    other_user = error.errno in disk.DENIED and os.geteuid() not in (0, owner)
    found = disk.problem(
        error, [disk.Place(place, f"run it as user {owner}, or as root" if other_user else "")]
    )
    what = f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
    return found or Problem(
        "not-done", str(place), what, "run it again: it finishes what was begun"
    )


def _current(place: Path, pins: pinning.Pins) -> Journal | None:
    """The folder's journal, unless it is about another sglang than the one that lies there now:
    such a one is dropped.

    So it is where a release was installed over the patched one without pip's knowing of the
    journal, or `git restore` was run.
    """
    found = journal.read(place)
    if found is None or not found.faults():
        return found
    try:
        here = installed.find(place)
        installed.identify(here, pins)
    except Refused:
        return found
    if (
        found.state is not State.INSTALLED
        and hash_listing(here.listing) == found.record["tree"]["before"]
    ):
        return found  # cut short before the first file, or behind the last
    LOG.info(
        "the sglang that was patched here has been replaced since; the journal of it is dropped"
    )
    journal.forget(found)
    return None


def _recovered(place: Path, pins: pinning.Pins) -> Journal | None:
    """The journal of an install that is whole, or None: what was begun is finished, in the
    direction in which it was going."""
    found = _current(place, pins)
    if found and found.state is State.INSTALLING:
        LOG.info("an install was cut short here; it is finished")
        return journal.forward(found)
    if found and found.state is State.REMOVING:
        LOG.info("an uninstall was cut short here; it is finished")
        journal.back(found)
        return None
    return journal.finish(found) if found else None


def _refuse_edits(found: Journal, faults: tuple[str, ...], discard: bool) -> None:
    """What is laid anew must be taken off first: that may lose edits of its own files when told so,
    and needs all others as they were."""
    own = {change.path for change in found.changes}
    elsewhere = [name for name in faults if name not in own]
    named = elsewhere or ([] if discard else faults)
    again = to_type("install", "--site-packages", found.site, "--discard")
    keep = f"keep a copy of them; {again} makes the patched files anew"
    hint = "put them back as they were" if elsewhere else keep
    if named:
        what = f"is patched, but has edits: {some(named)}"
        raise Refused.of("edited-install", str(found.site), what, hint)


def _by_wheel(here: Installed) -> dict[str, Any] | None:
    """The provenance in the .dist-info of a wheel that `scripts/nox build` made. Raises Refused
    where an install in place left it, and the journal of that is gone: nothing can be taken back
    then."""
    file = here.info / build.PROVENANCE if here.info else None
    try:
        record = json.loads(file.read_text(encoding="utf-8")) if file else None
    except (OSError, ValueError):
        return None
    if record and f"+{build.LABEL}." not in here.version:
        what = f"is patched in place, but {journal.FOLDER}/ is gone: it cannot be taken back"
        step = f"`pip install --force-reinstall --no-deps sglang=={here.version}`"
        raise Refused.of("no-journal", str(here), what, step)
    return record


def _wheel_report(
    here: Installed, record: dict[str, Any], queue: Queue, pins: pinning.Pins
) -> Report:
    pin = pins.find(record["version"])
    if record["queue"] != select(queue, pin).stack_sha256:
        what = "was installed from a wheel of another queue"
        step = f"{to_type('build', pin.tag)}, and install that wheel"
        raise Refused.of("patched-wheel", str(here), what, step)
    notes = ("it was installed from the patched wheel",)
    return Report(here.site, Outcome.ALREADY_APPLIED, record, notes=notes)


def _lay(selection: Selection, here: Installed, known: Identity) -> Report:
    changes, record = plan(selection, here, known)
    _refuse_unwritable(here.site, changes)
    try:
        made = journal.prepare(
            here.site, changes, record, {PRISTINE: listing_text(here.listing).encode()}
        )
    except BaseException:
        journal.sweep(here.site)
        raise
    try:
        made = journal.forward(made)
        found = hash_listing(list_package(here.site))
        if found != record["tree"]["after"]:
            what = f"is tree {found}, planned was {record['tree']['after']}; it is as it was again"
            step = "run it again when nobody else writes there"
            raise Refused.of(str(Outcome.TREE_MISMATCH), str(here), what, step)
    except BaseException:  # an interrupt too: only a kill leaves the rest to the next call
        journal.back(made)
        raise
    return Report(here.site, Outcome.APPLIED, record, *_counts(made), known.notes)


def plan(
    selection: Selection, here: Installed, known: Identity
) -> tuple[dict[str, bytes | None], dict[str, Any]]:
    """What to change, in order, and the provenance to keep. Raises Refused where a patch does not
    fit.

    Order: byte code goes, the overlay comes (nothing imports it yet), then the patched files, pip's
    own records, and last the file with which a server says that it is patched.
    """
    laid = selection.replay(lambda path: _read(here.site, path))
    if laid.problems:
        raise Refused(laid.problems)
    files = {
        path: content for path, content in laid.files.items() if path.startswith("python/sglang/")
    }
    after = here.listing | {path: sha256(content) for path, content in files.items()}
    origin = {
        "kind": "installed",
        "name": f"sglang {here.version or known.pin.version}",
        "sha256": hash_listing(here.listing).removeprefix("sha256:"),
    }
    record = selection.record(origin, here.listing, after, selection.stack(laid)) | {
        "release": RELEASE
    }
    if PROVENANCE in after:
        files[LISTING] = listing_text(own_listing(after)).encode()
    by_place = {path.removeprefix(PREFIX): content for path, content in files.items()}
    byte_code = [path for name in by_place for path in journal.byte_code(here.site / name)]
    changes: dict[str, bytes | None] = {
        path.relative_to(here.site).as_posix(): None for path in byte_code
    }
    changes |= {
        name: by_place[name]
        for name in sorted(by_place, key=lambda name: ((here.site / name).exists(), name))
        if name != LAST
    }
    changes |= _records(here, by_place, record, changes)
    return changes | ({LAST: by_place[LAST]} if LAST in by_place else {}), record


def _records(
    here: Installed,
    files: dict[str, bytes],
    record: dict[str, Any],
    changes: dict[str, bytes | None],
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
    listed = journal.own_names(all_changes, here.site, {PRISTINE: b""})
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
    lines = text.decode("utf-8").splitlines(keepends=True)
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    rows = {name: build.record_row(name, content) for name, content in contents.items()}
    made = [
        _line(rows.pop(name), end) if (name := next(csv.reader([line]), [""])[0]) in rows else line
        for line in lines
    ]
    others = [*rows.values(), *([name, "", ""] for name in unhashed)]
    return "".join([*made, *(_line(row, end) for row in others)]).encode()


def _line(row: list[str], end: str) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator=end).writerow(row)
    return out.getvalue()


def _refuse_unwritable(site: Path, changes: dict[str, bytes | None]) -> None:
    """Every folder must take a new name, and every file's owner must be kept."""
    folders = {site} | {
        parent for name in changes for parent in [(site / name).parent] if parent.is_dir()
    }
    for folder in sorted(folders):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise Refused(_not_writable(folder))
    for path in (site / name for name in changes):
        if path.exists() and os.geteuid() not in (0, path.stat().st_uid):
            what = f"belongs to user {path.stat().st_uid}, and would not any more"
            step = f"run it as user {path.stat().st_uid}, or as root"
            raise Refused.of("not-writable", str(path), what, step)


def _not_writable(folder: Path) -> Problem:
    owner, user = folder.stat().st_uid, os.geteuid()
    if user in (0, owner):
        what = "is read-only"
        step = "mount it, or set it, so that it can be written"
        return Problem("not-writable", str(folder), what, step)
    what = f"cannot be written by user {user}"
    return Problem("not-writable", str(folder), what, f"run it as user {owner}, or as root")


def _read(site: Path, path: str) -> bytes | None:
    file = site / path.removeprefix(PREFIX)
    return file.read_bytes() if path.startswith(f"{PREFIX}sglang/") and file.is_file() else None


def _pristine(found: Journal) -> dict[str, str]:
    """The listing of the release as it was found; empty where the journal's copy is lost."""
    file = found.path / PRISTINE
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return {path: digest for digest, path in (line.split("  ", 1) for line in lines)}


def _faults(found: Journal) -> tuple[str, ...]:
    """The files that are not those of the patched tree, or not as RECORD was left."""
    wanted = _pristine(found) | {
        PREFIX + change.path: change.after
        for change in found.changes
        if change.path.startswith("sglang/") and not change.is_byte_code
    }
    now = list_package(found.site)
    wanted.pop(LISTING, None)  # a tree does not list it, the journal does
    return tuple(sorted({*_names(differing(wanted, now)), *found.faults()}))


def _names(paths: list[str]) -> tuple[str, ...]:
    return tuple(path.removeprefix(PREFIX) for path in paths)


def _counts(found: Journal) -> tuple[int, int]:
    """(changed, added) files of the package itself."""
    own = [
        change
        for change in found.changes
        if change.path.startswith("sglang/") and not change.is_byte_code
    ]
    return sum(bool(change.before) for change in own), sum(not change.before for change in own)
