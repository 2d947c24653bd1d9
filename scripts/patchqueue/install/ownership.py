"""Whose change it is: of the files that are not as an install left them, those of the queue and
those that others edited; and the queue's changes taken off a file that others edited since."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..files.tree import LAID
from ..hint import in_clone
from ..laying import own_changes as laid
from ..laying.matching import Read, inverted, lay
from ..laying.selection import Selection
from ..outcome import Outcome, Problem, Refused
from ..queue.patchfile import FileDiff, parse_diff
from ..queue.series import PACKAGE

PREFIX = "python/"


@dataclass(frozen=True)
class Differing:
    """Files that are not as they were left, by their names below the folder.

    ours: the queue's, or with a change of the queue that is not in place any more; others: of
    others alone; both: of others, and every change of the queue is still there.
    """

    ours: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    both: tuple[str, ...] = ()


def split(site: Path, names: Iterable[str], own: Collection[str], text: bytes) -> Differing:
    """Whose the differences are. own: files that the queue changed or added; text: laid.json."""
    rows, kinds = laid.rows_in(text), Differing()
    found: dict[str, list[str]] = {name: [] for name in vars(kinds)}
    for name in sorted(names):
        file = site / name
        if name in rows and file.is_file() and not laid.undone(file.read_bytes(), rows[name]):
            found["both"].append(name)
        elif name in own or name in rows or f"{PREFIX}{name}".startswith(PACKAGE):
            found["ours"].append(name)
        else:
            found["others"].append(name)
    return Differing(**{kind: tuple(names) for kind, names in found.items()})


def laid_in(site: Path) -> bytes:
    """laid.json of the tree itself; empty where it has none."""
    file = site / LAID.removeprefix(PREFIX)
    return file.read_bytes() if file.is_file() else b""


def edited_before(site: Path) -> tuple[str, ...]:
    """The files that others had edited before the queue was laid, as the tree itself says."""
    try:
        edits = json.loads(laid_in(site))["edits"]
        return tuple(sorted(name for names in edits.values() for name in names))
    except (ValueError, KeyError, TypeError):
        return ()


def texts(selection: Selection, stack: Mapping[str, bytes]) -> bytes:
    """The patches as they were laid, for a journal: each with its own context, and with three lines
    of the tree's."""
    written = [
        {"name": patch.name, "forms": [_diff(stack[patch.name]), patch.diff]}
        for patch in selection.patches
    ]
    return (json.dumps(written, indent=1) + "\n").encode()


def _diff(content: bytes) -> str:
    text = content.decode("utf-8")
    return text[text.index("--- a/") :]


def taken_off(text: bytes, names: Collection[str], read: Read, where: str) -> dict[str, bytes]:
    """Files without the queue's changes, and with all that others made of them since.

    text: what `texts` wrote; names: below the folder; read: the files as they are, in git's layout.
    Raises Refused, naming patch and file, where a change has no one place from which to take it.
    """
    now = {name: read(PREFIX + name) or b"" for name in names}
    problems: list[Problem] = []
    for patch in reversed(json.loads(text)):
        forms = [{file.path: file for file in parse_diff(form)} for form in patch["forms"]]
        for path in forms[0]:
            name = path.removeprefix(PREFIX)
            if name not in now:
                continue
            done = next(_without(now[name], [form[path] for form in forms]), None)
            if done is None:
                what = "lines were edited since beside those of the queue, or among them"
                step = (
                    "what was laid last comes off first: take that edit off, then the same again,"
                    " and lay it anew"
                )
                at = f"patches/{patch['name']} on {where}: {name}"
                problems.append(Problem(str(Outcome.CONFLICT), at, what, step))
            else:
                now[name] = done
    if problems:
        raise Refused(problems)
    return now


def _without(content: bytes, forms: Sequence[FileDiff]) -> Iterator[bytes]:
    text = content.decode("utf-8", "surrogateescape")
    for form in forms:
        done = lay(text, inverted(form))
        if all(len(spot.lines) == 1 for spot in done.spots):
            yield done.text.encode("utf-8", "surrogateescape")


def resolve(tag: str) -> str:
    """What to do about a conflict with the edits of others: both are kept."""
    branch = in_clone("backport", f"--onto CHECKOUT --base {tag} BRANCH")
    return f"change one side so that both fit; or {branch}, and `git merge BRANCH` lays both out"
