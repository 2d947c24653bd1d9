"""What is pinned of the queue on each release (upstream/placed.toml): found anew, and planned as changes to the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.version import Version

from ..files import atomic
from ..files.locking import locked
from ..files.tree import hash_listing, sha256
from ..outcome import Outcome, Problem, Refused
from ..queue import placed, series
from ..queue.edit import Change, with_changes
from ..queue.lint import lint
from ..queue.patchfile import Patch
from ..queue.placed import Placed
from ..queue.series import PROVENANCE, Queue
from ..upstream import source
from ..upstream.pins import Pin, Pins
from .apply import QUEUE_LOCK, finish_writing
from .place import Files, Read, Row, lay_patch, lines_of, shared, widened
from .replay import replay

Say = Callable[[str], None]
ITS_OWN = ("bad-placement", "stale-placement")  # what is wrong with the file that is written here


@dataclass(frozen=True)
class Found:
    """One release: where each of its patches stands, a line for each hunk, and the hash of what is laid ("" to pin none).

    texts: the patches as this release's own tree has them, with three lines of its context.
    """

    lines: Mapping[str, tuple[int, ...]]
    tree: str = ""
    texts: Mapping[str, Patch] = field(default_factory=dict)


def laid_hash(files: Files) -> str:
    """The hash of what the queue lays on a release: the files it changes and adds, provenance aside, which names their makers."""
    return hash_listing({path: sha256(content) for path, content in files.items() if path != PROVENANCE})


def rows_on(queue: Queue, version: Version, read: Read) -> tuple[list[Row], dict[str, bytes]]:
    """Each patch that is for a release, laid wherever its text stands at one place; and all files that are laid."""
    patches = queue.select(version)
    files = queue.overlay_for(patches)
    rows = []
    for patch in patches:
        row = lay_patch(patch, lambda path: files[path] if path in files else read(path))
        rows.append(row)
        files |= row.after
    return rows, files


def find(queue: Queue, version: Version, read: Read, tag: str) -> Found:
    """Where the queue stands on a release. Raises Refused, in the replay's words, where a text has no one place."""
    rows, files = rows_on(queue, version, read)
    lines = {row.patch: row.lines for row in rows if row.lines is not None}
    texts = {row.patch: widened(placed.at(queue.patches[row.patch], row.lines), row.before) for row in rows if row.lines is not None}
    if any(row.outcome is Outcome.CONFLICT for row in rows):
        patches = queue.select(version)
        replayed = replay(patches, queue.overlay_for(patches), read, tag)
        bad = [step for step in replayed.steps if step.outcome not in (Outcome.APPLIED, Outcome.NEEDS_REFRESH)]
        raise Refused(problem for step in bad for problem in step.problems)
    return Found(lines, laid_hash(files), texts)


def plan(queue: Queue, versions: Iterable[Version], found: Mapping[Version, Found]) -> list[Change]:
    """What makes the queue stand where it was found: its texts, with the lines of the oldest release that each is for and with
    the context on which its releases agree, and the file of all other lines.

    versions: every pinned release. Releases that are not in `found` keep the lines and the tree that they have.
    """
    known = sorted({*versions, *found, *queue.placed})
    here = {version: _lines(queue, version) | dict(found[version].lines if version in found else {}) for version in known}
    changes, texts = [], dict(queue.patches)
    for name, patch in queue.patches.items():
        served = [version for version in known if name in here[version]]
        own = [found[version].texts.get(name) if version in found else None for version in served]
        whole = [text for text in own if text is not None]
        text = shared(whole) if whole and len(whole) == len(own) else None
        if text is not None:
            texts[name] = placed.of_files(patch, text.files)
            for version in served:
                here[version][name] = lines_of(text, found[version].texts[name])
        elif served and len(here[served[0]][name]) == len(placed.own_lines(patch)):
            texts[name] = placed.at(patch, here[served[0]][name])
        if texts[name].content != patch.content:
            changes.append(Change(f"patches/{name}", texts[name].content, "its lines and context"))
    pinned = {}
    for version in known:
        others = {name: lines for name, lines in here[version].items() if lines != placed.own_lines(texts[name])}
        tree = found[version].tree if version in found else queue.placed.get(version, Placed()).tree
        if others or tree:
            pinned[version] = Placed(tree, others)
    if dict(queue.placed) != pinned:
        changes.append(Change(str(placed.FILE), placed.text(pinned), "lines and trees"))
    return changes


def _lines(queue: Queue, version: Version) -> dict[str, tuple[int, ...]]:
    """Where the queue says that its texts stand on a release."""
    return {patch.name: placed.own_lines(patch) for patch in queue.select(version)}


def write(root: Path, pins: Pins, chosen: Iterable[Pin], origin: str | None, say: Say) -> list[Change]:
    """Pin the lines and the tree that the queue has now on these releases: for a change of it that is meant.

    Raises Refused, with nothing written, for a broken queue, and for a text that has no one place.
    """
    finish_writing(root)
    with locked(root / QUEUE_LOCK, say):
        queue, problems = series.read(root)
        if wrong := [problem for problem in (*problems, *lint(root, queue)) if problem.name not in ITS_OWN]:
            raise Refused(wrong)
        queue = replace(queue, placed={version: each for version, each in queue.placed.items() if version in {pin.version for pin in pins.all}})
        found = {}
        for pin in chosen:
            pristine = source.fetch(pin, origin, say)
            found[pin.version] = find(queue, pin.version, pristine.read, pin.tag)
        changes = plan(queue, [pin.version for pin in pins.all], found)
        changed = [change for change in changes if not (root / change.path).is_file() or (root / change.path).read_bytes() != change.content]
        if wrong := lint(root, with_changes(queue, changes)):
            raise Refused(wrong)
        if changed:
            atomic.write_all(root, {change.path: change.content for change in changed}, root / atomic.OF_QUEUE)
        return changed


def misshapen(queue: Queue, versions: Iterable[Version], texts: Mapping[Version, Mapping[str, Patch]]) -> list[Problem]:
    """Texts that are not as they are written: with the lines of their oldest release and the context on which all agree.

    texts: what each release's own tree has; a text that is for another pinned release too is not looked at.
    """
    found = []
    for name, patch in queue.patches.items():
        entry = next(entry for entry in queue.entries if entry.name == name)
        served = [version for version in sorted(versions) if entry.is_for(version)]
        own = [texts.get(version, {}).get(name) for version in served]
        whole = [text for text in own if text is not None]
        text = shared(whole) if whole and len(whole) == len(own) else None
        if text is not None and text.diff != patch.diff:
            old, new = ([(hunk.leading, hunk.trailing) for file in each.files for hunk in file.hunks] for each in (patch, text))
            name_of = "unequal-context" if old != new else "stale-placement"
            what = "has not the context on which its releases agree, three lines at most" if old != new else f"has not the lines of sglang {served[0]}, the oldest that it is for"
            found.append(Problem(name_of, f"patches/{name}", what, placed.WRITE))
    return found


def problem_of(queue: Queue, pin: Pin, files: Files) -> Problem | None:
    """What is wrong with the tree that the queue makes of a pinned release, or None where it is the one that is pinned."""
    pinned, made = queue.placed.get(pin.version, Placed()).tree, laid_hash(files)
    where = f"{placed.FILE}: {pin.version}"
    if not pinned:
        return Problem("no-tree-pinned", where, f"names no tree; the queue makes {made} there", "`nox -s check -- --write` pins it")
    if pinned != made:
        return Problem(str(Outcome.TREE_MISMATCH), where, f"the queue lays {made} there, pinned is {pinned}", "where that is meant, `nox -s check -- --write` pins it; else `git diff` shows what changed")
    return None
