"""Patch an installed sglang where it lies, reversibly: the bytes that work/<tag>/ would have, by
way of a journal.

The installed files themselves are the pristine release, so that neither its wheel nor quilt is
needed. The result is that of the strict replay, which apply holds against quilt's on every pin.

They may carry edits of others, who pin a release and patch it. The queue's hunks then stand where
their exact text is, and what is taken back is what was found.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..files.locking import locked_folder
from ..files.tree import (
    LAID,
    LISTING,
    differing,
    from_sha256sum,
    hash_listing,
    list_package,
    sha256,
)
from ..hint import some, to_type
from ..laying.apply import load_queue
from ..laying.matching import Read
from ..laying.selection import Selection, select, settle
from ..outcome import Outcome, Refused
from ..queue.imports import by_line
from ..queue.series import Queue
from ..upstream import pins as pinning
from . import installed, journal, otherways, ownership
from .changes import ABOUT, PREFIX, PRISTINE, TEXTS, names, plan, read
from .installed import Identity, Installed
from .journal import Journal, State
from .ownership import Differing, resolve
from .report import Report
from .writable import not_done, refuse_unwritable

LOG = logging.getLogger(__name__)


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
        other = otherways.find(here)
        if other:
            return otherways.report(here, other, queue, pins)
        known = _known(here, queue, pins, wanted)
        if known.pin.no_patches:
            what = f"no patch is for it: {known.pin.no_patches}"
            raise Refused.of("nothing-to-install", known.pin.tag, what, "use the release as it is")
        return _lay(select(queue, known.pin), here, known)


def check(root: Path, site: Path, release: str = "", pristine: bool = False) -> Report:
    """What `install` would do, with nothing written: EMPTY with the counts of files that it would
    change and add; ALREADY_APPLIED where an install is in place. Raises Refused as `install`
    does."""
    queue, pins = load_queue(root), pinning.load(root)
    with locked_folder(site.resolve()) if site.is_dir() else nullcontext():
        place = site.resolve()
        found = journal.read(place)
        if found and found.state is State.INSTALLED and _any_in_place(found):
            return _report(found, Outcome.ALREADY_APPLIED, _differing(found))
        here = installed.find(site)
        if other := otherways.find(here):
            return otherways.report(here, other, queue, pins)
        known = _known(here, queue, pins, Wanted(release=release, pristine=pristine))
        changes, record, _ = plan(select(queue, known.pin), here, known)
        refuse_unwritable(place, changes)
        own = [name for name in changes if name.startswith("sglang/") and not name.endswith(".pyc")]
        added = sum(not (place / name).exists() for name in own)
        before = names(known.edits.paths)
        counts = len(own) - added, added
        return Report(place, Outcome.EMPTY, record, *counts, notes=known.notes, before=before)


def _known(here: Installed, queue: Queue, pins: pinning.Pins, wanted: Wanted) -> Identity:
    known = installed.recognise(
        here, pins, lambda pin: Selection(queue, pin).touched, wanted.release
    )
    if wanted.release and pins.find(wanted.release) != known.pin:
        what = f"is {known.pin.tag}, by its files, and not {wanted.release}"
        raise Refused.of("other-release", str(here), what, "leave --release out")
    if wanted.pristine and known.edits.paths:
        what = f"carries edits of others: {some(names(known.edits.paths))}"
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

    def content(path: str) -> bytes | None:
        name = path.removeprefix(PREFIX)
        if name in left:
            return left[name]
        return journal.kept(found, name) if path in changed else read(found.site, path)

    return content


def _taken_off(found: Journal, differ: Differing) -> dict[str, bytes]:
    """The files that others edited since, without the queue's changes. Raises Refused."""
    file = found.path / TEXTS
    if not differ.both:
        return {}
    if not file.is_file():
        _refuse_edits(found, differ.both, False)
    return ownership.taken_off(
        file.read_bytes(), differ.both, partial(read, found.site), str(found.site)
    )


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
            other = otherways.find(here)
            if other:
                otherways.refuse_uninstall(here, other)
            return Report(
                place, Outcome.ALREADY_APPLIED, {}, notes=("nothing is installed in place here",)
            )
        before, left = _pristine(found), {}
        if found.state is State.INSTALLED and not discard:
            left = _taken_off(found, _differing(found))
            found = journal.adopt(found, left) if left else found
            before |= {PREFIX + name: sha256(content) for name, content in left.items()}
        journal.back(found, discard)
        others = names(differing(before, list_package(place)))
        kept = tuple(sorted({*others, *left}))
        done = Report(place, Outcome.APPLIED, found.record, *_counts(found), others=kept)
        return replace(done, notes=tuple(_without_its_import(found, kept)))


def _without_its_import(found: Journal, kept: Sequence[str]) -> Iterator[str]:
    """Of the edits of others, the modules that import what went with the queue, as a copy of a
    patched module does: one line each."""
    gone = {PREFIX + change.path for change in found.changes if not change.before}
    for name in kept:
        file = found.site / name
        content = file.read_bytes() if file.is_file() else b""
        lines = [each for each in by_line(PREFIX + name, content) if each[1] in gone]
        if lines:
            line, path = min(lines)
            what = f"imports {path.removeprefix(PREFIX)}, which went with the queue"
            yield f"{name}:{line} {what}: that module cannot be imported any more"


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
            here = installed.find(place)
            other = otherways.find(here)
            if other:
                return otherways.verify(here, other)
            return _of_release(here, _known(here, load_queue(root), pins, Wanted(release=release)))
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


def _of_release(here: Installed, known: Identity) -> Report:
    """Of one that is not patched."""
    record = {"version": str(known.pin.version), "tree": {"before": hash_listing(here.listing)}}
    return Report(here.site, Outcome.EMPTY, record, before=names(known.edits.paths))


def _before(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The files that others had edited before the install."""
    return tuple(sorted(path for paths in record.get("edits", {}).values() for path in paths))


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
        raise Refused(not_done(error, place)) from error


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
        _drop(found)
        return None
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
    _drop(found)
    return None


def _any_in_place(found: Journal) -> bool:
    """Whether a file of the package is as the install made it."""
    own = (change for change in found.changes if change.path.startswith("sglang/"))
    return any(
        change.after and journal.digest(found.site / change.path) == change.after for change in own
    )


def _drop(found: Journal) -> None:
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


def _lay(selection: Selection, here: Installed, known: Identity) -> Report:
    changes, record, notes = plan(selection, here, known)
    refuse_unwritable(here.site, changes)
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
    before = names(known.edits.paths)
    return Report(here.site, Outcome.APPLIED, record, *_counts(made), known.notes, before=before)


def _pristine(found: Journal) -> dict[str, str]:
    """The listing of the release as it was found; empty where the journal's copy is lost."""
    file = found.path / PRISTINE
    return from_sha256sum(file.read_bytes()) if file.is_file() else {}


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
    differ = {*names(differing(wanted, now)), *found.faults()}
    own, about = {change.path for change in found.changes}, found.path / ABOUT
    return ownership.split(found.site, differ, own, about.read_bytes() if about.is_file() else b"")


def _counts(found: Journal) -> tuple[int, int]:
    """(changed, added) files of the package itself."""
    own = [
        change
        for change in found.changes
        if change.path.startswith("sglang/") and not change.is_byte_code
    ]
    return sum(bool(change.before) for change in own), sum(not change.before for change in own)
