"""Patch an installed sglang where it lies, reversibly: the bytes that work/<tag>/ would have, by
way of a journal.

The installed files themselves are the pristine release, so that neither its wheel nor quilt is
needed. The result is that of the strict replay, which apply holds against quilt's on every pin.

They may carry edits of others, who pin a release and patch it. The queue's hunks then apply where
their exact text is, and what is taken back is what was found.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..applying.apply import load_queue
from ..applying.selection import Selection, select, settle
from ..files.atomic import locked
from ..files.tree import LAID, LISTING, PREFIX, differing, digest, list_package, names, sha256
from ..outcome import Outcome, Refused, some, system_problem, to_type
from ..queue.imports import by_line
from ..queue.series import Queue
from ..upstream import pins as pinning
from . import changes, installed, undo
from .changes import Differing, plan
from .installed import Identity, Installed, Report, read
from .undo import Journal, State

LOG = logging.getLogger(__name__)


def install(
    root: Path,
    site: Path,
    discard: bool = False,
    release: str = "",
    only: str = "",
    without: Sequence[str] = (),
) -> Report:
    """Apply the queue to the sglang in `site`; what an earlier, killed call began is finished
    first.

    discard: edits of files that an earlier install made may go; release: what the files are made
    of, where they do not say; only: the profile whose patches are applied, "" for every patch;
    without: patches that are left out.
    Raises Refused, with nothing changed, where the files are not those of a pinned release with or
    without edits of others, where a hunk does not fit them, where no patch is for it, where it
    cannot be written, or where it is patched by other means.
    """
    queue, pins = load_queue(root, only), pinning.load(root)
    with _exclusive_access(site) as place:
        if journal := _finish_interrupted(place, pins, discard):
            selection = select(queue, pins.find(journal.record["version"]), without)
            differ = _differing(journal)
            if selection.made(journal.record) and not differ.ours:
                return _report(journal, Outcome.ALREADY_APPLIED, differ)
            _remove_earlier_install(journal, selection, differ, discard)
        here = installed.find(place)
        if other := changes.find_other_install(here):
            return other.report(queue, pins)
        known = _identify_release(here, queue, pins, release)
        return _make_changes(select(queue, known.pin, without), here, known)


def check(
    root: Path,
    site: Path,
    release: str = "",
    only: str = "",
    without: Sequence[str] = (),
) -> Report:
    """The report of an `install` that writes nothing: EMPTY with the counts of files that it would
    change and add; ALREADY_APPLIED where an install is in place. Raises Refused as `install`
    does."""
    queue, pins = load_queue(root, only), pinning.load(root)
    with locked(site.resolve()) if site.is_dir() else nullcontext():
        journal = undo.read(site.resolve())
        if journal and journal.state is State.INSTALLED and _any_file_installed(journal):
            return _report(journal, Outcome.ALREADY_APPLIED, _differing(journal))
        here = installed.find(site)
        if other := changes.find_other_install(here):
            return other.report(queue, pins)
        known = _identify_release(here, queue, pins, release)
        planned, record = plan(select(queue, known.pin, without), here, known)
        own = list(filter(_is_own, planned))
        added = sum(not (here.site / name).exists() for name in own)
        counts, before = (len(own) - added, added), names(known.edits.paths)
        return Report(here.site, Outcome.EMPTY, record, *counts, known.notes, before=before)


def uninstall(root: Path, site: Path, discard: bool = False) -> Report:
    """Give the release in `site` back as it was before `install`: bytes, modes, times, byte code,
    RECORD.

    Raises Refused, with nothing changed, where that would lose edits (unless `discard` is set)
    or cannot be done.
    """
    with _exclusive_access(site) as place:
        journal = _load_journal(place, pinning.load(root))
        if journal is None:
            if other := changes.find_other_install(installed.find(place)):
                other.refuse_uninstall()
            note = "nothing is installed in place here"
            return Report(place, Outcome.ALREADY_APPLIED, {}, notes=(note,))
        before, remaining = dict(journal.record["notes"]["found"]), dict[str, bytes]()
        if journal.state is State.INSTALLED and not discard:
            remaining = _without_changes(journal, _differing(journal))
            before |= {PREFIX + name: sha256(content) for name, content in remaining.items()}
        undo.back(journal, discard, remaining)
        others = names(differing(before, list_package(place)))
        kept = tuple(sorted({*others, *remaining}))
        notes = list[str]()
        gone = {PREFIX + change.path for change in journal.changes if not change.before}
        for name in kept:  # a copy of a patched module, say: one line for each
            lines = by_line(PREFIX + name, read(place, PREFIX + name) or b"")
            for line, path in sorted(each for each in lines if each[1] in gone)[:1]:
                what = f"imports {path.removeprefix(PREFIX)}, which went with the queue"
                notes.append(f"{name}:{line} {what}: that module cannot be imported any more")
        report = _report(journal, Outcome.APPLIED, Differing(others=kept))
        return replace(report, notes=tuple(notes))


def verify(root: Path, site: Path, release: str = "") -> Report:
    """Finish what a killed call began, then hold every file against the release or the patched
    tree.

    The outcome is APPLIED where every change of the queue is in place, EMPTY where none is,
    TREE_MISMATCH with the faults else. Edits of others are told apart.
    """
    with _exclusive_access(site) as place:
        pins = pinning.load(root)
        if journal := _finish_interrupted(place, pins):
            differ = _differing(journal)
            step = (
                f"{to_type('install', '--site-packages', site, '--discard')} makes the queue's"
                " files anew, from those that it found; keep a copy of edits of yours in them"
            )
            state = Outcome.TREE_MISMATCH if differ.ours else Outcome.APPLIED
            return replace(_report(journal, state, differ), next_step=step)
        here = installed.find(place)
        if other := changes.find_other_install(here):
            return other.verify()
        known = _identify_release(here, load_queue(root), pins, release)
        record = {"version": str(known.pin.version)}
        return Report(here.site, Outcome.EMPTY, record, before=names(known.edits.paths))


@contextmanager
def _exclusive_access(site: Path) -> Iterator[Path]:
    """Be the only one at work in the folder; what a killed run left aside is removed. No file is
    left for the lock."""
    if not site.is_dir():
        installed.find(site)  # which says so
    place = site.resolve()
    try:
        with locked(place):
            undo.sweep(place)
            yield place
    except OSError as error:
        raise Refused(system_problem(error, [place])) from error


def _load_journal(place: Path, pins: pinning.Pins) -> Journal | None:
    """The folder's journal, unless it is about another sglang than the one that lies there now:
    such a one is dropped.

    So it is where a release was installed over the patched one without pip's knowing of the
    journal, or `git restore` was run.
    """
    journal = undo.read(place)
    if journal is None or not journal.faults():
        return journal
    is_installed = journal.state is State.INSTALLED
    if not is_installed or _any_file_installed(journal):  # no release was put over all of it
        try:
            here = installed.find(journal.site)
            installed.identify(here, pins)
        except Refused:
            return journal
        # cut short before the first file, or behind the last: the journal is still about them
        if not is_installed and here.listing == journal.record["notes"]["found"]:
            return journal
    LOG.info(
        "the sglang that was patched here has been replaced since; the journal of it is dropped"
    )
    undo.forget(journal)
    return None


def _any_file_installed(journal: Journal) -> bool:
    """Whether a file of the package is as the install made it."""
    own = (change for change in journal.changes if change.path.startswith("sglang/"))
    return any(each.after and digest(journal.site / each.path) == each.after for each in own)


def _finish_interrupted(place: Path, pins: pinning.Pins, discard: bool = False) -> Journal | None:
    """The journal of an install that is whole, or None: what was begun is finished, in the
    direction in which it was going."""
    journal = _load_journal(place, pins)
    if journal and journal.state is State.INSTALLING:
        LOG.info("an install was cut short here; it is finished")
        return undo.forward(journal, discard)
    if journal and journal.state is State.REMOVING:
        LOG.info("an uninstall was cut short here; it is finished")
        undo.back(journal, discard)
        return None
    return journal


def _identify_release(here: Installed, queue: Queue, pins: pinning.Pins, release: str) -> Identity:
    """Which release it is. release, Raises: as for `install`."""
    known = installed.recognise(here, pins, lambda pin: Selection(queue, pin).touched, release)
    if release and pins.find(release) != known.pin:
        what = f"is {known.pin.tag}, by its files, and not {release}"
        raise Refused.of("other-release", str(here), what, "leave --release out")
    return known


def _make_changes(selection: Selection, here: Installed, known: Identity) -> Report:
    """Install in place. Whatever fails, the files are as they were: only a kill leaves the rest to
    the next call."""
    planned, record = plan(selection, here, known)
    try:
        journal = undo.prepare(here.site, planned, record)
    except BaseException:
        undo.sweep(here.site)
        raise
    try:
        journal = undo.forward(journal)
        differ = _differing(journal)
        if paths := (*differ.ours, *differ.both, *differ.others):
            what = f"was changed meanwhile: {some(paths)}; it is as it was again"
            step = "run it again when nobody else writes there"
            raise Refused.of(str(Outcome.TREE_MISMATCH), str(here), what, step)
    except BaseException:
        undo.back(journal)
        raise
    return replace(_report(journal, Outcome.APPLIED, Differing()), notes=known.notes)


def _remove_earlier_install(
    journal: Journal, selection: Selection, differ: Differing, discard: bool
) -> None:
    """Take an earlier install off, for the selection to follow it. What others edited since stays.

    Raises Refused, with nothing changed, where their edits would be lost, or where the selection
    would not fit what is left.
    """
    if differ.ours and not discard:
        again = to_type("install", "--site-packages", journal.site, "--discard")
        what = f"is patched, but has edits of the queue's own lines: {some(differ.ours)}"
        step = f"keep a copy of them; {again} makes the patched files anew"
        raise Refused.of("edited-install", str(journal.site), what, step)
    remaining = _without_changes(journal, differ)
    if differ.others or differ.both or journal.record.get("edits"):
        changed = {change.path: change.before for change in journal.changes}

        def content(path: str) -> bytes | None:
            name = path.removeprefix(PREFIX)
            if name in remaining:
                return remaining[name]
            if name not in changed:
                return read(journal.site, path)
            file = undo.kept(journal, name, changed[name])
            return file.read_bytes() if file else None

        settle(selection, content, str(journal.site), changes.resolve(selection.pin.tag))
    LOG.info(f"queue release {journal.record['release']} is taken off first")
    undo.back(journal, discard, remaining)


def _without_changes(journal: Journal, differ: Differing) -> dict[str, bytes]:
    """The files that others edited since, without the queue's changes. Raises Refused."""
    applied, files_of = journal.record["notes"]["texts"], partial(read, journal.site)
    return changes.without_changes(applied, differ.both, files_of, str(journal.site))


def _differing(journal: Journal) -> Differing:
    """The files that are not those of the patched tree, or not as RECORD was left, and whose change
    that is."""
    own = {PREFIX + each.path: each.after for each in journal.changes if _is_own(each.path)}
    wanted = journal.record["notes"]["found"] | own
    for path in (LISTING, LAID):  # a tree does not list them, the journal does
        wanted.pop(path, None)
    differ = {*names(differing(wanted, list_package(journal.site))), *journal.faults()}
    changed = {change.path for change in journal.changes}
    return changes.attribute(journal.site, differ, changed, journal.record["notes"]["laid"])


def _is_own(name: str) -> bool:
    """Whether it is a file of the package itself, and not byte code."""
    return name.startswith("sglang/") and not name.endswith(undo.PYC)


def _report(journal: Journal, outcome: Outcome, differ: Differing) -> Report:
    changed = [bool(each.before) for each in journal.changes if _is_own(each.path)]
    return Report(
        journal.site,
        outcome,
        {name: value for name, value in journal.record.items() if name != "notes"},
        sum(changed),
        len(changed) - sum(changed),
        faults=differ.ours,
        others=tuple(sorted((*differ.others, *differ.both))),
        before=changes.edited_before(journal.record),
    )
