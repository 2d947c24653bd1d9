"""Patch an installed sglang where it lies, reversibly, by way of a journal: the bytes that
work/<tag>/ would have.

The installed files are the pristine release, or the release with edits of others; what is taken
back is what was found.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from .. import RELEASE, wheels
from ..applying.apply import described, load_queue, records
from ..applying.matching import listing_with
from ..applying.selection import Selection, select, settle
from ..files.atomic import locked
from ..files.tree import PREFIX, SGLANG, differing, digest, hash_python, list_package, names, sha256
from ..outcome import Outcome, Refused, in_wheel, some, system_problem, to_type
from ..queue.series import PROVENANCE, imports_by_line
from ..upstream import pins as pinning
from . import installed, undo
from .installed import Identity, Installed, Report, read
from .patched import HandedOn, InPlace, counts, find_handed_on, is_own
from .undo import Journal, State

LOG = logging.getLogger(__name__)
# the file that makes a server say that it is patched is changed last
LAST = "sglang/srt/entrypoints/engine.py"
Changes = dict[str, "bytes | None"]  # path below the folder -> content, None to remove the file


def install(
    root: Path,
    site: Path,
    discard: bool = False,
    release: str = "",
    only: str = "",
    without: Sequence[str] = (),
    check: bool = False,
) -> Report:
    """Apply the queue to the sglang in `site`; what an earlier, killed call began is finished
    first.

    discard: edits of files that an earlier install made may go; release: what the files are made
    of, where they do not say; only: the profile, "" for every patch; check: write nothing; the
    report is EMPTY, or ALREADY_APPLIED. Raises Refused, with nothing changed.
    """
    queue, pins = load_queue(root, only), pinning.load(root)
    with _exclusive_access(site, writes=not check) as place:
        journal = undo.read(place) if check else _finish_interrupted(place, pins, discard)
        if check and journal:
            if journal.state is State.INSTALLED and _any_file_installed(journal):
                return InPlace(journal).report(Outcome.ALREADY_APPLIED)
            journal = None
        if earlier := InPlace(journal) if journal else find_handed_on(installed.find(place)):
            selection = select(queue, pins.find(earlier.record["version"]), without)
            if earlier.is_of(selection):
                return earlier.report(Outcome.ALREADY_APPLIED)
            if isinstance(earlier, HandedOn):
                raise earlier.refusal(selection.pin.tag)
            _remove_earlier_install(earlier, selection, discard)
        here = installed.find(place)
        known = installed.recognise(here, pins, lambda pin: Selection(queue, pin).touched, release)
        if release and pins.find(release) != known.pin:
            what = f"is {known.pin.tag}, by its files, and not {release}"
            raise Refused.of("other-release", str(here), what, "leave --release out")
        return _make_changes(select(queue, known.pin, without), here, known, check)


def uninstall(root: Path, site: Path, discard: bool = False) -> Report:
    """Give the release in `site` back as it was before `install`, to bytes, modes and times. Raises
    Refused, with nothing changed, where that would lose edits (unless `discard`)."""
    with _exclusive_access(site) as place:
        journal = _load_journal(place, pinning.load(root))
        if journal is None:
            if other := find_handed_on(installed.find(place)):
                raise other.refusal()
            note = "nothing is installed in place here"
            return Report(place, Outcome.ALREADY_APPLIED, {}, notes=(note,))
        before, remaining = dict(journal.notes["found"]), dict[str, bytes]()
        if journal.state is State.INSTALLED and not discard:
            remaining = InPlace(journal).without_changes()
            before |= {PREFIX + name: sha256(content) for name, content in remaining.items()}
        undo.back(journal, discard, remaining)
        others = names(differing(before, list_package(place)))
        kept = tuple(sorted({*others, *remaining}))
        notes, record = tuple(_broken_imports(journal, kept)), journal.record
        numbers = counts(journal)
        return Report(place, Outcome.APPLIED, record, *numbers, notes, others=kept)


def _broken_imports(journal: Journal, modules: Sequence[str]) -> Iterator[str]:
    """A note for each module that is kept and imports one that went with the queue."""
    gone = {PREFIX + change.path for change in journal.changes if not change.before}
    for name in modules:
        lines = imports_by_line(PREFIX + name, read(journal.site, PREFIX + name) or b"")
        for line, path in sorted(each for each in lines if each[1] in gone)[:1]:
            what = f"imports {path.removeprefix(PREFIX)}, which went with the queue"
            yield f"{name}:{line} {what}: that module cannot be imported any more"


@contextmanager
def _exclusive_access(site: Path, writes: bool = True) -> Iterator[Path]:
    """Hold the lock of the folder itself. writes: also delete what a killed run left aside."""
    if not site.is_dir():
        installed.find(site)  # which says so
    place = site.resolve()
    try:
        with locked(place):
            if writes:
                undo.sweep(place)
            yield place
    except OSError as error:
        raise Refused(system_problem(error, [place])) from error


def _load_journal(place: Path, pins: pinning.Pins) -> Journal | None:
    """The folder's journal. One of an sglang that was replaced since is deleted."""
    journal = undo.read(place)
    if journal is None or not journal.faults():
        return journal
    is_installed = journal.state is State.INSTALLED
    if not is_installed or _any_file_installed(journal):  # no release was put over all of it
        try:
            here = installed.find(journal.site)
        except Refused:
            return journal
        # cut short before the first file, or behind the last: the journal is still about them
        is_as_found = not is_installed and here.listing == journal.notes["found"]
        if is_as_found or not installed.unedited(here, pins):
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
    """The journal of an install that is whole, or None: what was begun is finished."""
    journal = _load_journal(place, pins)
    if journal and journal.state is State.INSTALLING:
        LOG.info("an install was cut short here; it is finished")
        return undo.forward(journal, discard)
    if journal and journal.state is State.REMOVING:
        LOG.info("an uninstall was cut short here; it is finished")
        undo.back(journal, discard)
        return None
    return journal


def _remove_earlier_install(earlier: InPlace, selection: Selection, discard: bool) -> None:
    """Undo an earlier install, so that the selection can follow. Later edits of others stay. Raises
    Refused, with nothing changed."""
    journal, differ = earlier.journal, earlier.differing
    if differ.ours and not discard:
        again = to_type("install", "--site-packages", journal.site, "--discard")
        what = f"is patched, but has edits of the queue's own lines: {some(differ.ours)}"
        step = f"keep a copy of them; {again} makes the patched files anew"
        raise Refused.of("edited-install", str(journal.site), what, step)
    remaining = earlier.without_changes()
    if differ.others or journal.record.get("edits"):
        changed = {change.path: change.before for change in journal.changes}

        def content(path: str) -> bytes | None:
            name = path.removeprefix(PREFIX)
            if name in remaining:
                return remaining[name]
            if name not in changed:
                return read(journal.site, path)
            file = undo.kept(journal, name, changed[name])
            return file.read_bytes() if file else None

        settle(selection, content, str(journal.site), _resolve(selection.pin.tag))
    LOG.info(f"queue release {journal.record['release']} is taken off first")
    undo.back(journal, discard, remaining)


def _make_changes(
    selection: Selection, here: Installed, known: Identity, check: bool = False
) -> Report:
    """Install in place (check: write nothing). Whatever fails, the files are as they were."""
    changes, record, notes = _plan(selection, here, known)
    own = [here.site / name for name in changes if is_own(name)]
    added = sum(not path.exists() for path in own)
    outcome, before = Outcome.EMPTY if check else Outcome.APPLIED, names(known.edits.paths)
    numbers = len(own) - added, added
    report = Report(here.site, outcome, record, *numbers, known.notes, before=before)
    if check:
        return report
    try:
        journal = undo.prepare(here.site, changes, record, notes)
    except BaseException:
        undo.sweep(here.site)
        raise
    try:
        journal = undo.forward(journal)
        if paths := [name for names in InPlace(journal).differing for name in names]:
            what = f"was changed meanwhile: {some(paths)}; it is as it was again"
            step = "run it again when nobody else writes there"
            raise Refused.of(str(Outcome.TREE_MISMATCH), str(here), what, step)
    except BaseException:
        undo.back(journal)
        raise
    return report


def _plan(
    selection: Selection, here: Installed, known: Identity
) -> tuple[Changes, dict[str, Any], dict[str, Any]]:
    """The changes in order, the record of the patched tree, and the journal's notes: "found", the
    listing before, "texts", the patches, and "laid", of laid.json. Raises Refused."""
    files_of = partial(read, here.site)
    if known.edits.paths:
        selection = settle(selection, files_of, str(here), _resolve(known.pin.tag))
    origin = {"kind": "installed", "name": f"sglang {here.version or known.pin.version}"}
    planned = selection.plan(files_of, origin)
    files = {path: content for path, content in planned.files.items() if path.startswith(SGLANG)}
    after = listing_with(here.listing, files)
    about = described(files, files_of, after, known.edits)
    tree = {"before": hash_python(here.listing), "after": hash_python(after)}
    record = planned.record | {"tree": tree, "release": RELEASE}
    if known.edits.paths:
        record |= {"edits": known.edits.as_record(), "there": [*selection.already_present]}
    if PROVENANCE in after:
        files |= records(about, after)
    changes = _in_order(here, {path.removeprefix(PREFIX): files[path] for path in files}, record)
    _refuse_unwritable(here.site, changes)
    texts = [{"name": each.name, "forms": [each.diff]} for each in selection.patches]
    return changes, record, {"found": here.listing, "texts": texts, "laid": about}


def _in_order(here: Installed, own: Mapping[str, bytes], record: dict[str, Any]) -> Changes:
    """The changes in order: byte code is deleted; then come the overlay (nothing imports it yet),
    the patched files, pip's records, and the file that makes a server say that it is patched."""
    compiled = (path for name in own for path in undo.byte_code(here.site / name))
    changes: Changes = {path.relative_to(here.site).as_posix(): None for path in compiled}
    in_order = sorted(own, key=lambda name: ((here.site / name).exists(), name))
    changes |= {name: own[name] for name in in_order if name != LAST}
    if here.info and (here.info / "RECORD").is_file():
        changes |= _pip_records(here, here.info, own, record, changes)
    return changes | ({LAST: own[LAST]} if LAST in own else {})


def _pip_records(
    here: Installed,
    info: Path,
    own: Mapping[str, bytes],
    record: dict[str, Any],
    changes: Mapping[str, bytes | None],
) -> dict[str, bytes]:
    """The files by which pip knows the package: RECORD, the queue's provenance beside it, and the
    queue in upstream's list of plugins.

    The version stays upstream's: requirements like sglang==0.5.9 must still hold. The journal is
    listed too: it goes with the package.
    """
    points, name = info / wheels.ENTRY_POINTS, f"{info.name}/RECORD"
    present = {wheels.PLUGIN_LIST} if (here.site / wheels.PLUGIN_LIST).is_file() else set()
    before = points.read_bytes() if points.is_file() else None
    made = {f"{info.name}/{wheels.PROVENANCE}": f"{json.dumps(record, indent=1)}\n".encode()}
    if (entries := wheels.entry_points(before, present | own.keys())) is not None:
        made[f"{info.name}/{wheels.ENTRY_POINTS}"] = entries
    rows = here.record_rows()
    rows |= {path: wheels.record_row(path, content) for path, content in {**own, **made}.items()}
    journal = undo.own_names({**changes, **own, **made, name: b""}, here.site)
    rows |= {path: [path, "", ""] for path in journal}
    text, has_crlf = io.StringIO(), b"\r\n" in (info / "RECORD").read_bytes()
    csv.writer(text, lineterminator="\r\n" if has_crlf else "\n").writerows(rows.values())
    return made | {name: text.getvalue().encode("utf-8", "surrogateescape")}


def _refuse_unwritable(site: Path, changes: Iterable[str]) -> None:
    """Raise Refused where a folder is not writable, or a file would get another owner."""
    user, what, wrong = os.geteuid(), "", site
    for path in (site / name for name in changes):
        if path.parent.is_dir() and not os.access(path.parent, os.W_OK | os.X_OK):
            what, wrong = f"cannot be written by user {user}", path.parent
        elif path.exists() and user not in (0, owner := path.stat().st_uid):
            what, wrong = f"belongs to user {owner}, and would then belong to user {user}", path
        if what:
            step = "run it as root, or let it be written"
            raise Refused.of("not-writable", str(wrong), what, step)


def _resolve(tag: str) -> str:
    """The step for a conflict with edits of others, which keeps both sides."""
    words = f"--onto CHECKOUT --base {tag} BRANCH"
    in_clone = f"in a clone of the queue `scripts/nox backport {words}`"
    branch = in_clone if in_wheel() else to_type("backport", words)
    return (
        "change one side so that both fit; or --without PATCH, where your tree repairs the same; or"
        f" {branch}, then `git merge BRANCH`"
    )
