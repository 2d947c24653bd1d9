"""The queue on an installed sglang, by an install in place, a patched wheel or git: whether all of
it is there, which edits are of others, and the files without its changes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..applying.apply import rows_in, undone
from ..applying.matching import inverted, match, text_of
from ..applying.selection import Selection
from ..files import tree as trees
from ..files.tree import LAID, LISTING, PREFIX, names
from ..outcome import Outcome, Problem, Refused, to_type
from ..queue.patchfile import parse_diff
from ..queue.series import PACKAGE, PROVENANCE
from ..wheels import LABEL
from ..wheels import PROVENANCE as IN_DIST_INFO
from . import undo
from .installed import Installed, Report, read
from .undo import Journal


class Differing(NamedTuple):
    """Files that are not as they were left. ours: a change of the queue is not in place any more;
    others: every one still is."""

    ours: tuple[str, ...]
    others: tuple[str, ...]


def attribute(
    site: Path, paths: Collection[str], own: Collection[str], about: Mapping[str, Any]
) -> Differing:
    """The paths by who made the difference. own: changed by the queue; about: laid.json."""
    rows = rows_in(about)

    def is_ours(name: str) -> bool:
        if name in rows and (site / name).is_file():
            return bool(undone((site / name).read_bytes(), rows[name]))
        return name in own or name in rows or f"{PREFIX}{name}".startswith(PACKAGE)

    ours = {name for name in paths if is_ours(name)}
    return Differing(tuple(sorted(ours)), tuple(sorted({*paths} - ours)))


@dataclass(frozen=True)
class InPlace:
    """The queue of an install in place, by its journal."""

    journal: Journal

    @property
    def record(self) -> dict[str, Any]:
        return self.journal.record

    @cached_property
    def differing(self) -> Differing:
        """The files that are not those of the patched tree, or not as RECORD was left."""
        journal = self.journal
        own = {PREFIX + each.path: each.after for each in journal.changes if is_own(each.path)}
        wanted = journal.notes["found"] | own
        for path in (LISTING, LAID):  # a tree does not list them, the journal does
            wanted.pop(path, None)
        differ = {
            *names(trees.differing(wanted, trees.list_package(journal.site))),
            *journal.faults(),
        }
        changed = {change.path for change in journal.changes}
        return attribute(journal.site, differ, changed, journal.notes["laid"])

    def is_of(self, selection: Selection) -> bool:
        """Whether it is this very queue, with every change in place."""
        return selection.made(self.record) and not self.differing.ours

    def report(self, outcome: Outcome) -> Report:
        others, before = self.differing.others, edited_before(self.record)
        numbers = counts(self.journal)
        return Report(
            self.journal.site, outcome, self.record, *numbers, others=others, before=before
        )

    def without_changes(self) -> dict[str, bytes]:
        """The files that others edited since, without the queue's changes. Raises Refused."""
        site, problems = self.journal.site, list[Problem]()
        changed = rows_in(self.journal.notes["laid"])
        edited = [name for name in self.differing.others if name in changed]
        files = {name: read(site, PREFIX + name) or b"" for name in edited}
        for patch in reversed(self.journal.notes["texts"]):
            for file in parse_diff(patch["forms"][0]):
                name = file.path.removeprefix(PREFIX)
                if name not in files:
                    continue
                without, places = match(text_of(files[name]), inverted(file))
                if all(len(each) == 1 for each in places):
                    files[name] = without.encode("utf-8", "surrogateescape")
                    continue
                what = "lines were edited since beside those of the queue, or among them"
                step = "remove that edit, run the same command again, then make the edit again"
                at = f"patches/{patch['name']} on {site}: {name}"
                problems.append(Problem(str(Outcome.CONFLICT), at, what, step))
        if problems:
            raise Refused(problems)
        return files


@dataclass(frozen=True)
class HandedOn:
    """The queue of a patched wheel; else that of a branch or file, by git."""

    here: Installed
    is_wheel: bool
    record: dict[str, Any]

    def is_of(self, selection: Selection) -> bool:
        """Whether it is this very queue."""
        if self.is_wheel:
            return selection.made(self.record)
        return read(self.here.site, PROVENANCE) == selection.overlay.get(PROVENANCE)

    def report(self, outcome: Outcome) -> Report:
        how = "installed from the patched wheel" if self.is_wheel else "patched by git"
        before = edited_before(_tree_record(self.here.site))
        notes = (f"it was {how}",)
        return Report(self.here.site, outcome, self.record, notes=notes, before=before)

    def refusal(self, tag: str = "") -> Refused:
        """Why an install in place cannot take it off. tag: the release that gets another queue."""
        if self.is_wheel:
            what, step = "installed from a patched wheel", reinstall(self.here)
            step += "; keep a copy of edits of yours first"
            again = f"{to_type('build', tag)}, and install that wheel"
        else:
            what = "patched by git"
            step = "switch to the branch before it; or `git apply --reverse` the applied file"
            again = f"remove that one with git, then apply what {to_type('patches', tag)} writes"
        name = "patched-wheel" if self.is_wheel else "patched-by-git"
        if tag:
            return Refused.of(name, str(self.here), f"was {what}, with another queue", again)
        return Refused.of(name, str(self.here), f"was {what}, not in place", step)


def find_handed_on(here: Installed) -> HandedOn | None:
    """The queue that a wheel or git applied, if any. Raises Refused for one in place without a
    journal."""
    try:
        file = here.info / IN_DIST_INFO if here.info else None
        record = json.loads(file.read_text(encoding="utf-8")) if file else None
    except (OSError, ValueError):
        record = None
    if record and f"+{LABEL}." not in here.version:
        what = f"is patched in place, but {undo.FOLDER}/ is gone: it cannot be taken back"
        step = f"{reinstall(here)}; keep a copy of edits of yours first"
        raise Refused.of("no-journal", str(here), what, step)
    if record:
        return HandedOn(here, True, record)
    try:
        record = json.loads(read(here.site, PROVENANCE) or b"")
        return HandedOn(here, False, record | {"tree": {"after": named_tree(here.site)}})
    except (ValueError, TypeError):
        return None


def reinstall(here: Installed) -> str:
    public = here.version.partition(f"+{LABEL}.")[0]
    return f"`pip install --force-reinstall --no-deps sglang=={public}`"


def _tree_record(site: Path) -> dict[str, Any]:
    """laid.json of the tree itself; empty where it has none, or it cannot be read."""
    try:
        return dict(json.loads(read(site, LAID) or b""))
    except (ValueError, TypeError):
        return {}


def named_tree(site: Path) -> str:
    """The tree as a server's first line has it, "sha256:<hex>"; "" without a queue."""
    return str(_tree_record(site).get("tree", ""))


def edited_before(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The files that others had edited before the queue was applied, by the record of it."""
    try:
        return tuple(sorted(name for paths in record["edits"].values() for name in paths))
    except (KeyError, TypeError, AttributeError):
        return ()


def is_own(name: str) -> bool:
    """Whether it is a file of the package itself, and not byte code."""
    return name.startswith("sglang/") and not name.endswith(undo.PYC)


def counts(journal: Journal) -> tuple[int, int]:
    """How many files of the package an install changed, and how many it added."""
    changed = [bool(each.before) for each in journal.changes if is_own(each.path)]
    return sum(changed), len(changed) - sum(changed)
