"""An sglang that was patched by other means than an install in place: known by what these leave.

A patched wheel has the queue's record in its .dist-info. A branch, and the file for `git apply`,
leave the tree's own record alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..files.tree import LISTING, from_sha256sum, own_listing
from ..hint import to_type
from ..laying import own_changes as laid
from ..laying.selection import select
from ..outcome import Outcome, Refused
from ..queue.series import PACKAGE, PROVENANCE, Queue
from ..upstream.edits import between
from ..upstream.pins import Pins
from ..wheels import build
from . import installed, journal, ownership
from .changes import PREFIX, named_tree, names, read
from .installed import Installed
from .report import Report

REST = "sglang/… (files that the queue leaves alone)"


@dataclass(frozen=True)
class Patched:
    """How it was patched. wheel: by a patched wheel; else by git, as a branch or from a file."""

    wheel: bool
    record: dict[str, Any]


def find(here: Installed) -> Patched | None:
    """What patched it, None where nothing did. Raises Refused where an install in place did, and
    the journal of that is gone: nothing can be taken back then."""
    file = here.info / build.PROVENANCE if here.info else None
    try:
        record = json.loads(file.read_text(encoding="utf-8")) if file else None
    except (OSError, ValueError):
        record = None
    if record and f"+{build.LABEL}." not in here.version:
        what = f"is patched in place, but {journal.FOLDER}/ is gone: it cannot be taken back"
        step = (
            f"`pip install --force-reinstall --no-deps sglang=={here.version}`; keep a copy of"
            " edits of yours first"
        )
        raise Refused.of("no-journal", str(here), what, step)
    if record:
        return Patched(True, record)
    try:
        record = json.loads(read(here.site, PROVENANCE) or b"")
        return Patched(False, record | {"tree": {"patched": named_tree(here.site)}})
    except (ValueError, TypeError):
        return None


def report(here: Installed, found: Patched, queue: Queue, pins: Pins) -> Report:
    """Of one that has this very queue. Raises Refused where it has another."""
    pin = pins.find(found.record["version"])
    selection = select(queue, pin)
    wanted = selection.stack_sha256 if found.wheel else selection.overlay_sha256
    if found.record["queue"] != wanted:
        how = "installed from a wheel" if found.wheel else "patched by git, with a branch or file"
        wheel = f"{to_type('build', pin.tag)}, and install that wheel"
        branch = f"take that one off by git, then lay what {to_type('patches', pin.tag)} writes"
        raise Refused.of(
            "patched-wheel" if found.wheel else "patched-by-git",
            str(here),
            f"was {how} of another queue",
            wheel if found.wheel else branch,
        )
    done = "installed from the patched wheel" if found.wheel else "patched by git"
    return Report(here.site, Outcome.ALREADY_APPLIED, found.record, notes=(f"it was {done}",))


def refuse_uninstall(here: Installed, found: Patched) -> None:
    """Raise Refused: what laid it has to take it off."""
    if found.wheel:
        what = "was installed from a patched wheel, not in place"
        step = (
            f"`pip install --force-reinstall --no-deps sglang=={here.version.partition('+')[0]}`;"
            " keep a copy of edits of yours first"
        )
        raise Refused.of("patched-wheel", str(here), what, step)
    what = "was patched by git, not in place"
    step = "switch to the branch before it; or `git apply --reverse` with the file that laid it"
    raise Refused.of("patched-by-git", str(here), what, step)


def _differ(here: Installed, listed: Mapping[str, str]) -> tuple[str, ...]:
    """The names of what is not as the listing has it; one for all that a branch's listing has not,
    and knows by one hash."""
    kept = laid.about(ownership.laid_in(here.site)).get("rest")
    if not kept:
        return names(between(listed, here.listing, whole=False).paths)
    ours = {
        path: digest
        for path, digest in here.listing.items()
        if path in listed or path.startswith(PACKAGE)
    }
    same = laid.rest(own_listing(here.listing), listed) == kept
    return names(between(listed, ours, whole=False).paths) + (() if same else (REST,))


def verify(here: Installed, found: Patched) -> Report:
    """Every file against what was laid: a wheel's RECORD, or the tree's own listing."""
    record, tag = found.record, f"v{found.record['version']}"
    if found.wheel:
        differ = installed.unlike_record(here)
        step = (
            f"{to_type('build', tag)}, then `pip install --force-reinstall --no-deps` with that"
            " wheel; keep a copy of edits of yours"
        )
    else:
        differ = _differ(here, from_sha256sum(read(here.site, LISTING) or b""))
        step = "`git diff` shows them; lay the branch or the file anew"
    own = {each["path"].removeprefix(PREFIX) for each in record["overlay"]}
    own |= {name for name in differ if ".dist-info/" in name}
    split = ownership.split(here.site, differ, own, ownership.laid_in(here.site))
    return Report(
        here.site,
        Outcome.TREE_MISMATCH if split.ours else Outcome.APPLIED,
        record,
        faults=split.ours,
        others=tuple(sorted((*split.others, *split.both))),
        before=ownership.edited_before(here.site),
        next_step=step,
    )
