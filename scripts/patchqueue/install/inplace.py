"""Patch an installed sglang where it lies, reversibly: the bytes that work/<tag>/ would have, by
way of a journal.

The installed files themselves are the pristine release, so that neither its wheel nor quilt is
needed. The result is that of the strict replay, which apply holds against quilt's on every pin.

They may carry edits of others, who pin a release and patch it. The queue's hunks then stand where
their exact text is, and what is taken back is what was found.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import RELEASE
from ..files import disk
from ..files.locking import locked_folder
from ..files.tree import (
    LAID,
    LISTING,
    differing,
    hash_listing,
    list_package,
    listing_text,
    own_listing,
    sha256,
)
from ..hint import some, to_type
from ..laying import laid as laying
from ..laying.apply import load_queue
from ..laying.place import Read
from ..laying.selection import Selection, select
from ..laying.settled import settle
from ..outcome import Outcome, Problem, Refused
from ..queue import series
from ..queue.series import PROVENANCE, Queue
from ..upstream import pins as pinning
from ..wheels import build
from . import installed, journal, ownership
from .installed import Identity, Installed
from .journal import Journal, State
from .ownership import Differing, resolve

LOG = logging.getLogger(__name__)

PREFIX = "python/"  # a wheel's sglang/ lies under it in git
# in the journal's folder: the listing of what was found; the patches as they were laid; where
PRISTINE, TEXTS, ABOUT = "before.sha256", "patches.json", "laid.json"
# where a server says that it is patched: so it says it with every other file in place
LAST = "sglang/srt/entrypoints/engine.py"


@dataclass(frozen=True)
class Report:
    """What became of an installed sglang. record: its provenance; changed, added: the number of
    files; notes: what to know.

    faults: files of the queue that are not as it made them, by their names below the folder.
    others: files that others edited since, where every change of the queue is still in place;
    before: files that others had edited before. next_step: what puts faults right.
    """

    site: Path
    outcome: Outcome
    record: dict[str, Any]
    changed: int = 0
    added: int = 0
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    next_step: str = ""


@dataclass(frozen=True)
class Wanted:
    """How an install is meant. discard: edits of files that an earlier install made may go;
    release: what the files are made of, where they do not say; pristine: they may carry no edits
    of others."""

    discard: bool = False
    release: str = ""
    pristine: bool = False


def install(
    root: Path, site: Path, discard: bool = False, release: str = "", pristine: bool = False
) -> Report:
    """Lay the queue on the sglang in `site`; what an earlier, killed call began is finished first.

    discard, release, pristine: see Wanted. Raises Refused, with nothing changed, where the files
    are not those of a pinned release with or without edits of others, where a hunk does not fit
    them, where no patch is for it, where it cannot be written, or where it is patched by other
    means.
    """
    queue, pins = load_queue(root), pinning.load(root)
    wanted = Wanted(discard, release, pristine)
    with _opened(site) as place:
        found = _recovered(place, pins)
        if found:
            done = _in_place(found, select(queue, pins.find(found.record["version"])), wanted)
            if done:
                return done
        here = installed.find(place)
        other = _by_wheel(here)
        if other:
            return _wheel_report(here, other, queue, pins)
        known = _known(here, queue, pins, wanted)
        if known.pin.no_patches:
            what = f"no patch is for it: {known.pin.no_patches}"
            raise Refused.of("nothing-to-install", known.pin.tag, what, "use the release as it is")
        return _lay(select(queue, known.pin), here, known)


def _known(here: Installed, queue: Queue, pins: pinning.Pins, wanted: Wanted) -> Identity:
    known = installed.recognise(
        here, pins, lambda pin: Selection(queue, pin).touched, wanted.release
    )
    if wanted.pristine and known.edits.paths:
        what = f"carries edits of others: {some(_names(known.edits.paths))}"
        step = f"{to_type('install', '--site-packages', here.site)} lays the queue beside them"
        raise Refused.of("edited-release", str(here), what, step)
    return known


def _in_place(found: Journal, selection: Selection, wanted: Wanted) -> Report | None:
    """An earlier install: it is reported where it is of this queue and whole, else taken off.

    What others edited since stays. Raises Refused, with nothing changed, where their edits would
    be lost, or where the queue would not fit what is left.
    """
    differ = _differing(found)
    if found.record["queue"] == selection.stack_sha256 and not differ.ours:
        return _report(found, Outcome.ALREADY_APPLIED, differ)
    _refuse_edits(found, differ.ours, wanted.discard)
    left = _taken_off(found, differ)
    if differ.others or differ.both or found.record.get("edits"):
        settle(selection, _left(found, left), str(found.site), resolve(selection.pin.tag))
    LOG.info(f"queue release {found.record['release']} is taken off first")
    journal.back(journal.adopt(found, left) if left else found, wanted.discard)
    return None


def _left(found: Journal, left: Mapping[str, bytes]) -> Read:
    """The tree as it will be when the queue is taken off. left: files that others edited since."""
    changed = {PREFIX + change.path: change for change in found.changes}

    def read(path: str) -> bytes | None:
        name = path.removeprefix(PREFIX)
        if name in left:
            return left[name]
        return journal.kept(found, name) if path in changed else _read(found.site, path)

    return read


def _taken_off(found: Journal, differ: Differing) -> dict[str, bytes]:
    """The files that others edited since, without the queue's changes. Raises Refused."""
    file = found.path / TEXTS
    if not differ.both:
        return {}
    if not file.is_file():
        _refuse_edits(found, differ.both, False)
    read = partial(_read, found.site)
    return ownership.taken_off(file.read_bytes(), differ.both, read, str(found.site))


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
        before, left = _pristine(found), dict[str, bytes]()
        if found.state is State.INSTALLED and not discard:
            left = _taken_off(found, _differing(found))
            found = journal.adopt(found, left) if left else found
            before |= {PREFIX + name: sha256(content) for name, content in left.items()}
        journal.back(found, discard)
        others = _names(differing(before, list_package(place)))
        kept = tuple(sorted({*others, *left}))
        return Report(place, Outcome.APPLIED, found.record, *_counts(found), others=kept)


def verify(root: Path, site: Path, release: str = "") -> Report:
    """Finish what a killed call began, then hold every file against the release or the patched
    tree.

    The outcome is APPLIED where every change of the queue is in place, EMPTY where none is,
    TREE_MISMATCH with the faults else. Edits of others are told apart.
    """
    with _opened(site) as place:
        pins = pinning.load(root)
        found = _recovered(place, pins)
        if found is None:
            return _verify_without_journal(root, installed.find(place), pins, release)
        differ = _differing(found)
        step = (
            f"{to_type('install', '--site-packages', site, '--discard')} makes the queue's files"
            " anew, from those that it found; keep a copy of edits of yours in them"
        )
        state = Outcome.TREE_MISMATCH if differ.ours else Outcome.APPLIED
        return replace(_report(found, state, differ), next_step=step)


def _report(found: Journal, outcome: Outcome, differ: Differing) -> Report:
    others = tuple(sorted((*differ.others, *differ.both)))
    return Report(
        found.site,
        outcome,
        found.record,
        *_counts(found),
        faults=differ.ours,
        others=others,
        before=_before(found.record),
    )


def _before(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The files that others had edited before the install."""
    return tuple(sorted(name for names in record.get("edits", {}).values() for name in names))


def _verify_without_journal(
    root: Path, here: Installed, pins: pinning.Pins, release: str
) -> Report:
    """Of a patched wheel, which RECORD tells, or of the release itself."""
    record = _by_wheel(here)
    if record:
        names, tag = installed.unlike_record(here), f"v{record['version']}"
        own = {each["path"].removeprefix(PREFIX) for each in record["overlay"]}
        own |= {name for name in names if ".dist-info/" in name}
        differ = ownership.split(here.site, names, own, ownership.laid_in(here.site))
        step = (
            f"{to_type('build', tag)}, then `pip install --force-reinstall --no-deps` with that"
            " wheel; keep a copy of edits of yours"
        )
        state = Outcome.TREE_MISMATCH if differ.ours else Outcome.APPLIED
        others = tuple(sorted((*differ.others, *differ.both)))
        return Report(here.site, state, record, faults=differ.ours, others=others, next_step=step)
    queue, _ = series.read(root)
    known = _known(here, queue, pins, Wanted(release=release))
    record = {"version": str(known.pin.version), "tree": {"before": hash_listing(here.listing)}}
    return Report(here.site, Outcome.EMPTY, record, before=_names(known.edits.paths))


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
    if found.state is State.INSTALLED and not _any_in_place(found):
        return _dropped(found)
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
    return _dropped(found)


def _any_in_place(found: Journal) -> bool:
    """Whether a file of the package is as the install made it."""
    own = (change for change in found.changes if change.path.startswith("sglang/"))
    return any(
        change.after and journal.digest(found.site / change.path) == change.after for change in own
    )


def _dropped(found: Journal) -> None:
    LOG.info(
        "the sglang that was patched here has been replaced since; the journal of it is dropped"
    )
    journal.forget(found)


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


def _refuse_edits(found: Journal, edited: tuple[str, ...], discard: bool) -> None:
    """What is laid anew must be taken off first: that may lose edits of its own files when told
    so."""
    if edited and not discard:
        again = to_type("install", "--site-packages", found.site, "--discard")
        what = f"is patched, but has edits of the queue's own lines: {some(edited)}"
        hint = f"keep a copy of them; {again} makes the patched files anew"
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
    changes, record, notes = plan(selection, here, known)
    _refuse_unwritable(here.site, changes)
    try:
        made = journal.prepare(here.site, changes, record, notes)
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
    before = _names(known.edits.paths)
    return Report(here.site, Outcome.APPLIED, record, *_counts(made), known.notes, before=before)


def plan(
    selection: Selection, here: Installed, known: Identity
) -> tuple[dict[str, bytes | None], dict[str, Any], dict[str, bytes]]:
    """What to change, in order; the provenance to keep; and the journal's notes. Raises Refused
    where a patch does not fit."""
    read = partial(_read, here.site)
    if known.edits.paths:
        selection = settle(selection, read, str(here), resolve(known.pin.tag))
    laid = selection.replay(read)
    if laid.problems:
        raise Refused(laid.problems)
    files = {
        path: content for path, content in laid.files.items() if path.startswith("python/sglang/")
    }
    after = here.listing | {path: sha256(content) for path, content in files.items()}
    record = _record(selection, here, known, after, selection.stack(laid))
    about = laying.record(files, read, known.edits)
    if PROVENANCE in after:
        files[LISTING] = listing_text(own_listing(after)).encode()
        files[LAID] = about
    by_place = {path.removeprefix(PREFIX): content for path, content in files.items()}
    notes = {
        PRISTINE: listing_text(here.listing).encode(),
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
        record["moved"], record["there"] = selection.moved, selection.there
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
    all_changes = {**changes, **files, **own, f"{name}/RECORD": b""}
    listed = journal.own_names(all_changes, here.site, notes)
    return own | {f"{name}/RECORD": updated_record(file.read_bytes(), {**files, **own}, listed)}


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


def _differing(found: Journal) -> Differing:
    """The files that are not those of the patched tree, or not as RECORD was left, and whose change
    that is."""
    wanted = _pristine(found) | {
        PREFIX + change.path: change.after
        for change in found.changes
        if change.path.startswith("sglang/") and not change.is_byte_code
    }
    now = list_package(found.site)
    for path in (LISTING, LAID):  # a tree does not list them, the journal does
        wanted.pop(path, None)
    names = {*_names(differing(wanted, now)), *found.faults()}
    own, about = {change.path for change in found.changes}, found.path / ABOUT
    return ownership.split(found.site, names, own, about.read_bytes() if about.is_file() else b"")


def _names(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(path.removeprefix(PREFIX) for path in paths)


def _counts(found: Journal) -> tuple[int, int]:
    """(changed, added) files of the package itself."""
    own = [
        change
        for change in found.changes
        if change.path.startswith("sglang/") and not change.is_byte_code
    ]
    return sum(bool(change.before) for change in own), sum(not change.before for change in own)
