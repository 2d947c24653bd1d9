"""The changes that an install makes in the folder of an sglang, in order, and its record; what
others did there, apart from the queue's changes; and the queue itself, applied by other means than
an install in place.

A patched wheel has the queue's record in its .dist-info. A branch, and the file for `git apply`,
leave the tree's own record alone.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .. import RELEASE, wheels
from ..applying import own_changes
from ..applying.matching import Read, inverted, listing_with, match
from ..applying.selection import Plan, Selection, select, settle
from ..files.tree import (
    LAID,
    LISTING,
    PREFIX,
    SGLANG,
    from_sha256sum,
    hash_python,
    names,
    own_listing,
)
from ..outcome import Outcome, Problem, Refused, in_clone, to_type
from ..queue.patchfile import parse_diff
from ..queue.patchfile import split as split_text
from ..queue.series import PACKAGE, PROVENANCE, Queue
from ..upstream.pins import Pins
from ..upstream.release import between
from . import undo
from .installed import Identity, Installed, Report, read

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
        selection = settle(selection, files_of, str(here), resolve(known.pin.tag))
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
    notes = {"found": here.listing, "texts": applied_diffs(planned), "laid": about}
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
    entry_points = info / wheels.ENTRY_POINTS
    there = {wheels.PLUGIN_LIST} if (site / wheels.PLUGIN_LIST).is_file() else set()
    before = entry_points.read_bytes() if entry_points.is_file() else None
    entries = wheels.entry_points(before, there | files.keys())
    own = {f"{info.name}/{wheels.PROVENANCE}": (json.dumps(record, indent=1) + "\n").encode()}
    own |= {} if entries is None else {f"{info.name}/{wheels.ENTRY_POINTS}": entries}
    name, text = f"{info.name}/RECORD", (info / "RECORD").read_bytes()
    listed = io.StringIO(text.decode("utf-8", "surrogateescape"), newline="")
    rows = {row[0]: row for row in csv.reader(listed) if row}
    rows |= {path: wheels.record_row(path, content) for path, content in (files | own).items()}
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


REST = "sglang/… (files that the queue leaves alone)"


@dataclass(frozen=True)
class Differing:
    """Files that are not as they were left, by their names below the folder.

    ours: the queue's, or with a change of the queue that is not in place any more; others: of
    others alone; both: of others, and every change of the queue is still there.
    """

    ours: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    both: tuple[str, ...] = ()


def attribute(
    site: Path, paths: Iterable[str], own: Collection[str], about: Mapping[str, Any]
) -> Differing:
    """Whose the differences are. own: files that the queue changed or added; about: laid.json."""
    rows = own_changes.rows_in(about)
    ours, others, both = list[str](), list[str](), list[str]()
    for name in sorted(paths):
        file = site / name
        if (
            name in rows
            and file.is_file()
            and not own_changes.undone(file.read_bytes(), rows[name])
        ):
            both.append(name)
        elif name in own or name in rows or f"{PREFIX}{name}".startswith(PACKAGE):
            ours.append(name)
        else:
            others.append(name)
    return Differing(tuple(ours), tuple(others), tuple(both))


def _tree_record(site: Path) -> dict[str, Any]:
    """laid.json of the tree itself; empty where it has none."""
    return own_changes.read(read(site, LAID) or b"")


def named_tree(site: Path) -> str:
    """The tree as a server's first line names it and `--require` takes it, "sha256:<hex>"; empty
    where no queue's record is there. It does not count edits of others since then."""
    return str(_tree_record(site).get("tree", ""))


def edited_before(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The files that others had edited before the queue was applied, as a record of that says."""
    try:
        return tuple(sorted(name for paths in record["edits"].values() for name in paths))
    except (KeyError, TypeError, AttributeError):
        return ()


def applied_diffs(planned: Plan) -> list[dict[str, Any]]:
    """The diffs of the patches as they were applied, for a journal: each with three lines of the
    tree's context, and with its own."""
    return [
        {"name": patch.name, "forms": [split_text(text.decode("utf-8"))[1], patch.diff]}
        for patch in planned.selection.patches
        for text in [planned.stack[patch.name]]
    ]


def without_changes(
    applied: Sequence[Mapping[str, Any]], paths: Collection[str], read: Read, where: str
) -> dict[str, bytes]:
    """Files without the queue's changes, and with all that others made of them since.

    applied: see `applied_diffs`; paths: below the folder; read: the files as they are, in git's
    layout. Raises Refused, naming patch and file, where a change has no one place from which to
    take it.
    """
    now = {name: read(PREFIX + name) or b"" for name in paths}
    problems: list[Problem] = []
    for patch in reversed(applied):
        forms = [{file.path: file for file in parse_diff(form)} for form in patch["forms"]]
        for path in forms[0]:
            name = path.removeprefix(PREFIX)
            if name not in now:
                continue
            text = now[name].decode("utf-8", "surrogateescape")
            matches = (match(text, inverted(form[path])) for form in forms)
            at_one_place = (
                each.text for each in matches if all(len(spot.lines) == 1 for spot in each.spots)
            )
            without = next(at_one_place, None)
            if without is None:
                what = "lines were edited since beside those of the queue, or among them"
                step = "remove that edit, run the same command again, then make the edit again"
                at = f"patches/{patch['name']} on {where}: {name}"
                problems.append(Problem(str(Outcome.CONFLICT), at, what, step))
            else:
                now[name] = without.encode("utf-8", "surrogateescape")
    if problems:
        raise Refused(problems)
    return now


def resolve(tag: str) -> str:
    """The step for a conflict with edits of others, which keeps both sides."""
    branch = in_clone("backport", f"--onto CHECKOUT --base {tag} BRANCH")
    return (
        "change one side so that both fit; or --without PATCH, where your tree repairs the same; or"
        f" {branch}, then `git merge BRANCH`"
    )


@dataclass(frozen=True)
class Patched:
    """An sglang that carries the queue, but not by an install in place. wheel: from a patched
    wheel; else by git, from a branch or a file."""

    here: Installed
    wheel: bool
    record: dict[str, Any]

    def report(self, queue: Queue, pins: Pins) -> Report:
        """Of one that has this very queue. Raises Refused where it has another."""
        pin = pins.find(self.record["version"])
        selection = select(queue, pin)
        if self.wheel and not selection.made(self.record):
            what = "was installed from a wheel of another queue"
            step = f"{to_type('build', pin.tag)}, and install that wheel"
            raise Refused.of("patched-wheel", str(self.here), what, step)
        if not self.wheel and read(self.here.site, PROVENANCE) != selection.overlay[PROVENANCE]:
            what = "was patched by git, with a branch or file of another queue"
            step = f"remove that one with git, then apply what {to_type('patches', pin.tag)} writes"
            raise Refused.of("patched-by-git", str(self.here), what, step)
        note = f"it was {'installed from the patched wheel' if self.wheel else 'patched by git'}"
        return Report(self.here.site, Outcome.ALREADY_APPLIED, self.record, notes=(note,))

    def refuse_uninstall(self) -> None:
        """Raise Refused: what applied it has to take it off."""
        where = str(self.here)
        if self.wheel:
            what = "was installed from a patched wheel, not in place"
            step = f"{_reinstall(self.here)}; keep a copy of edits of yours first"
            raise Refused.of("patched-wheel", where, what, step)
        what = "was patched by git, not in place"
        step = "switch to the branch before it; or `git apply --reverse` the applied file"
        raise Refused.of("patched-by-git", where, what, step)

    def verify(self) -> Report:
        """Every file against the tree's own listing; of a wheel without one, against RECORD."""
        here, about = self.here, _tree_record(self.here.site)
        listed = from_sha256sum(read(here.site, LISTING) or b"") or here.recorded()
        rest, present = about.get("rest"), here.listing
        if rest:  # a branch's listing has the queue's files alone, and one hash of the others
            present = {
                path: digest
                for path, digest in present.items()
                if path in listed or path.startswith(PACKAGE)
            }
        differ = names(between(listed, present, whole=self.wheel).paths)
        if rest and own_changes.rest(own_listing(here.listing), listed) != rest:
            differ += (REST,)
        if not listed:
            differ = (LISTING.removeprefix(PREFIX),)
        made = "wheel" if self.wheel else "branch or the file"
        step = f"apply the {made} again; keep a copy of edits of yours"
        own = {each["path"].removeprefix(PREFIX) for each in self.record["overlay"]}
        whose = attribute(here.site, differ, own, about)
        return Report(
            here.site,
            Outcome.TREE_MISMATCH if whose.ours else Outcome.APPLIED,
            self.record,
            faults=whose.ours,
            others=tuple(sorted((*whose.others, *whose.both))),
            before=edited_before(about),
            next_step=step,
        )


def find_other_install(here: Installed) -> Patched | None:
    """The queue that an sglang carries by other means; None for none. Raises Refused where an
    install in place did, and the journal of that is gone: nothing can be taken back then."""
    try:
        file = here.info / wheels.PROVENANCE if here.info else None
        record = json.loads(file.read_text(encoding="utf-8")) if file else None
    except (OSError, ValueError):
        record = None
    if record and f"+{wheels.LABEL}." not in here.version:
        what = f"is patched in place, but {undo.FOLDER}/ is gone: it cannot be taken back"
        step = f"{_reinstall(here)}; keep a copy of edits of yours first"
        raise Refused.of("no-journal", str(here), what, step)
    if record:
        return Patched(here, True, record)
    try:
        record = json.loads(read(here.site, PROVENANCE) or b"")
        return Patched(here, False, record | {"tree": {"after": named_tree(here.site)}})
    except (ValueError, TypeError):
        return None


def _reinstall(here: Installed) -> str:
    public = here.version.partition(f"+{wheels.LABEL}.")[0]
    return f"`pip install --force-reinstall --no-deps sglang=={public}`"
