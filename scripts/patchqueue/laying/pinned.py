"""What is pinned of the queue on each release, in upstream/placed.toml: found anew, and planned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.version import Version

from ..files import atomic
from ..files.locking import locked
from ..files.tree import hash_listing, sha256
from ..hint import to_type
from ..outcome import Outcome, Problem, Refused
from ..queue import placed, series
from ..queue.edit import Change, with_changes
from ..queue.lint import lint
from ..queue.patchfile import Patch
from ..queue.placed import Placed
from ..queue.series import PROVENANCE, Queue
from ..upstream import source
from ..upstream.pins import Pin, Pins
from .apply import finish_writing
from .place import Files, Read, Row, in_front, lay_patch, lines_of, shared, widened
from .replay import replay

LAID = (Outcome.APPLIED, Outcome.NEEDS_REFRESH)
ITS_OWN = ("bad-placement", "stale-placement")  # what is wrong with the file that is written here


@dataclass(frozen=True)
class Found:
    """What was found on one release.

    lines: where each of its patches stands, a line for each hunk; tree: the hash of what is laid,
    "" to pin none; texts: the patches as its own tree has them, with three lines of context.
    """

    lines: Mapping[str, tuple[int, ...]]
    tree: str = ""
    texts: Mapping[str, Patch] = field(default_factory=dict)


def laid_hash(files: Files) -> str:
    """The hash of the files that the queue changes and adds on a release.

    The record of what they were made of is not in it: it names texts, not what they do.
    """
    laid = {path: sha256(content) for path, content in files.items() if path != PROVENANCE}
    return hash_listing(laid)


def rows_on(queue: Queue, version: Version, read: Read) -> tuple[list[Row], dict[str, bytes]]:
    """Each patch for a release, laid wherever its text is at one place; and all files laid."""
    patches = queue.select(version)
    files = queue.overlay_for(patches)
    rows = []
    for patch in patches:
        row = lay_patch(patch, in_front(files, read))
        rows.append(row)
        files |= row.after
    return rows, files


def find(queue: Queue, version: Version, read: Read, tag: str) -> Found:
    """Where the queue stands on a release.

    Raises Refused, in the replay's words, where a text has no one place.
    """
    rows, files = rows_on(queue, version, read)
    lines = {row.patch: row.lines for row in rows if row.lines is not None}
    if len(lines) < len(rows):
        patches = queue.select(version)
        steps = replay(patches, queue.overlay_for(patches), read, tag).steps
        bad = [step for step in steps if step.outcome not in LAID]
        raise Refused(problem for step in bad for problem in step.problems)
    here = {row.patch: placed.at(queue.patches[row.patch], lines[row.patch]) for row in rows}
    texts = {row.patch: widened(here[row.patch], row.before) for row in rows}
    return Found(lines, laid_hash(files), texts)


def plan(queue: Queue, versions: Iterable[Version], found: Mapping[Version, Found]) -> list[Change]:
    """What makes the queue stand where it was found.

    Its texts get the lines of the oldest release that each is for, and the context on which its
    releases agree; the file gets all other lines, and the trees. versions: every pinned release.
    Those that are not in `found` keep the lines and the tree that they have.
    """
    known = sorted({*versions, *found, *queue.placed})
    here = {version: _lines(queue, version, found.get(version)) for version in known}
    changes, texts = [], {}
    for name, patch in queue.patches.items():
        served = [version for version in known if name in here[version]]
        text = agreed(name, served, {version: each.texts for version, each in found.items()})
        if text is not None:
            for version in served:
                here[version][name] = lines_of(text, found[version].texts[name])
            text = placed.of_files(patch, text.files)
        elif served and len(here[served[0]][name]) == len(placed.own_lines(patch)):
            text = placed.at(patch, here[served[0]][name])
        texts[name] = text or patch
        if texts[name].content != patch.content:
            changes.append(Change(f"patches/{name}", texts[name].content, "its lines and context"))
    pinned = {}
    for version in known:
        own = {name: placed.own_lines(texts[name]) for name in here[version]}
        others = {name: lines for name, lines in here[version].items() if lines != own[name]}
        tree = (found.get(version) or queue.placed.get(version, Placed())).tree
        if others or tree:
            pinned[version] = Placed(tree, others)
    if dict(queue.placed) != pinned:
        changes.append(Change(str(placed.FILE), placed.text(pinned), "lines and trees"))
    return changes


def _lines(queue: Queue, version: Version, found: Found | None) -> dict[str, tuple[int, ...]]:
    """Where the queue's texts stand on a release: as was found there, else as they say."""
    own = {patch.name: placed.own_lines(patch) for patch in queue.select(version)}
    return own | dict(found.lines if found else {})


def agreed(
    name: str, served: Iterable[Version], texts: Mapping[Version, Mapping[str, Patch]]
) -> Patch | None:
    """A patch's text as it is written: with the context on which all its releases agree.

    served: them all, oldest first; texts: what each one's own tree has. None where one is missing.
    """
    own = [texts.get(version, {}).get(name) for version in served]
    known = [text for text in own if text is not None]
    return shared(known) if known and len(known) == len(own) else None


def write(root: Path, pins: Pins, chosen: Iterable[Pin], origin: str | None) -> list[Change]:
    """Pin the lines and trees that the queue has now on these releases: for a change that is meant.

    Raises Refused, with nothing written, for a broken queue, and for a text that has no one place.
    """
    finish_writing(root)
    with locked(root / atomic.QUEUE_LOCK):
        queue, problems = series.read(root)
        wrong = [each for each in (*problems, *lint(root, queue)) if each.name not in ITS_OWN]
        if wrong:
            raise Refused(wrong)
        versions = [pin.version for pin in pins.all]
        good = {v: each for v, each in queue.placed.items() if v in versions or not queue.stale(v)}
        queue, found = replace(queue, placed=good), {}
        for pin in chosen:
            pristine = source.fetch(pin, origin)
            found[pin.version] = find(queue, pin.version, pristine.read, pin.tag)
        changes = changed(root, plan(queue, versions, found))
        if wrong := lint(root, with_changes(queue, changes)):
            raise Refused(wrong)
        put(root, changes)
        return changes


def changed(root: Path, changes: Iterable[Change]) -> list[Change]:
    """Those that a file of the project does not hold yet; of one file the last."""
    last = {change.path: change for change in changes}.values()
    return [each for each in last if _content(root / each.path) != each.content]


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def put(root: Path, changes: Iterable[Change]) -> None:
    """Write them, all or none."""
    files = {change.path: change.content for change in changes}
    if files:
        atomic.write_all(root, files, root / atomic.JOURNAL)


def misshapen(
    queue: Queue, versions: Iterable[Version], texts: Mapping[Version, Mapping[str, Patch]]
) -> list[Problem]:
    """Texts that have not the lines of their oldest release, or not the context they are to have.

    texts: what each release's own tree has; a text that is for one of `versions` besides is left.
    """
    found = []
    for entry in (entry for entry in queue.entries if entry.name in queue.patches):
        served = [version for version in sorted(versions) if entry.is_for(version)]
        patch, text = queue.patches[entry.name], agreed(entry.name, served, texts)
        if text is None or text.diff == patch.diff:
            continue
        where = f"patches/{entry.name}"
        if _context(patch) != _context(text):
            what = "has not the context on which its releases agree, three lines at most"
            found.append(Problem("unequal-context", where, what, placed.WRITE))
        else:
            what = f"has not the lines of sglang {served[0]}, the oldest that it is for"
            found.append(Problem("stale-placement", where, what, placed.WRITE))
    return found


def _context(patch: Patch) -> list[tuple[int, int]]:
    return [(hunk.leading, hunk.trailing) for file in patch.files for hunk in file.hunks]


def problem_of(queue: Queue, pin: Pin, files: Files) -> Problem | None:
    """What is wrong with the tree that the queue makes of a pinned release; None where nothing is.

    files: all that is laid there.
    """
    pinned, made = queue.placed.get(pin.version, Placed()).tree, laid_hash(files)
    where, pin_it = f"{placed.FILE}: {pin.version}", f"{to_type('check', '--write')} pins it"
    if not pinned:
        what = f"names no tree; the queue makes {made} there"
        return Problem("no-tree-pinned", where, what, pin_it)
    if pinned != made:
        what = f"the queue lays {made} there, pinned is {pinned}"
        hint = f"where that is meant, {pin_it}; else `git diff` shows what changed"
        return Problem(str(Outcome.TREE_MISMATCH), where, what, hint)
    return None
