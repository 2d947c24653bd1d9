"""Write what a person did in work/<tag>/ back to the queue: edited patches, new ones, and the overlay.

The tree is copied, every patch is refreshed and popped, then pushed again one by one and written in one fixed form, so
the same edits give the same bytes whoever made them. A patch that another release shares and that no longer fits there
becomes a variant for this release alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..files.tree import differing, list_folder, sha256
from ..hint import to_type
from ..outcome import Outcome, Problem, Refused
from ..queue import patchfile, series
from ..queue.patchfile import Patch
from ..queue.series import OVERLAY_PATCH, PROVENANCE, Entry, Queue
from ..upstream import source
from ..upstream.pins import Pin, Pins
from ..upstream.source import Source
from . import quilt as quilts
from .apply import Report, apply, load_queue, replay_on, select, stack
from .replay import replay
from .worktree import State, WorkTree, write_patches

Say = Callable[[str], None]
TEMPLATE = """Subject: TODO
Description: TODO
Origin: own
Upstream-Status: Pending
Probe: TODO
Overlay: none
Test: TODO
"""


@dataclass(frozen=True)
class Written:
    """A file of the project that refresh wrote, and why."""

    path: str
    why: str


def new(root: Path, pin: Pin, name: str, say: Say) -> Path:
    """Start an empty patch on top of work/<tag>/ and return its file there. The series learns of it at refresh.

    Raises Refused for a name that is not topic/verb-object, or one that the series has.
    """
    patch = name.removesuffix(".patch") + ".patch"
    entries, _ = series.parse((root / series.FILE).read_text(encoding="utf-8"))
    if patch in (entry.name for entry in entries):
        raise Refused(Problem("duplicate", series.FILE.name, f"{patch} is listed already", "choose another name"))
    if "@" in patch or series.parse(f"{patch}  # >=0")[1]:
        raise Refused(Problem("bad-path", repr(name), "is not like topic/verb-object, in small letters", f"for example: {to_type('new', 'nsa/skip-pointer-check')}"))
    tree = WorkTree(root, pin.tag)
    if tree.inspect().state in (State.ABSENT, State.UNAPPLIED):
        apply(root, pin, None, say)
    with tree.locked(say) as lock:
        if tree.inspect().state is State.FOREIGN:
            raise Refused(Problem("foreign-tree", f"work/{pin.tag}", "this tool did not make it", "move it away"))
        quilts.find(source.cache_folder(), say).run(tree.path, "new", patch, lock=lock)
        file = tree.path / "patches" / patch
        file.parent.mkdir(parents=True, exist_ok=True)  # of a new topic: `quilt header -e` makes none
    return file


def refresh(root: Path, pins: Pins, pin: Pin, add: bool, say: Say) -> tuple[list[Written], Report | None]:
    """Write the edits of work/<tag>/ back; what was written, and the apply that followed (None where lint stopped it).

    Without such a tree (or with one that holds no edits), the queue itself is laid with quilt and written again: that
    is how a patch whose text has only moved gets its variant. add: edits of files that are in no patch go into the top one.
    """
    queue, problems = series.read(root)
    unreadable = [problem for problem in problems if problem.name in ("no-series", "missing-patch", "bad-guard", "empty-guard", "duplicate")]
    if unreadable:
        raise Refused(unreadable)
    pristine = source.fetch(pin, None, say)
    tree = WorkTree(root, pin.tag)
    quilt = quilts.find(source.cache_folder(), say)
    with tree.locked(say) as lock:
        found = tree.inspect()
        if found.state is State.FOREIGN:
            raise Refused(Problem("foreign-tree", f"work/{pin.tag}", "this tool did not make it", "move it away"))
        edited = found.state is State.CHANGED
        aside = tree.start(copy=edited)
        if edited:
            recorded = {patch["name"]: patch["sha256"] for patch in found.record["patches"]}
            stray = _take_off(aside, quilt, lock, pristine)
            if stray and not add:
                raise Refused(Problem("stray-edits", f"work/{pin.tag}", f"edited, but in no patch: {' '.join(stray)}", f"{to_type('refresh', pin.tag, '--add')} takes these into the top patch; {to_type('quilt', pin.tag, 'add FILE')} comes before an edit"))
            _lay(aside, quilt, lock, stray)
        else:
            recorded = {}
            pristine.unpack(aside)
            write_patches(aside, stack(queue, queue.select(pin.version), pin))
            _lay(aside, quilt, lock, {})
        written = list(_write_back(root, pins, pin, queue, aside, recorded, say))
        wanted = list_folder(aside)
    try:
        complete = load_queue(root)
    except Refused as refusal:
        for problem in refusal.problems:
            say(str(problem))
        return written, None
    laid = replay_on(complete, select(complete, pin), pristine)
    kept = pristine.listing() | {path: sha256(content) for path, content in laid.files.items()}
    lost = [path for path in differing(kept, wanted) if path in wanted and path not in _moved_on(complete, select(complete, pin), recorded)]
    if lost:  # the tree is about to be built anew from the queue: never when that would lose an edit
        raise Refused([*laid.problems, Problem("edits-not-kept", f"work/{pin.tag}", f"the queue does not make the tree's own {' '.join(lost[:5])}", "the tree stays as it is; say which patch should have the edit: " + to_type("quilt", pin.tag, "add FILE"))])
    return written, apply(root, pin, None, say, discard=True)


def _moved_on(queue: Queue, patches: list[Patch], recorded: dict[str, str]) -> set[str]:
    """Files that the queue changes otherwise than it did when the tree was made: there the tree is only older, not edited."""
    newer = [patch for patch in patches if recorded.get(patch.name) != sha256(patch.content)]
    return {PROVENANCE} | {file.path for patch in newer for file in patch.files}


def _take_off(aside: Path, quilt: quilts.Quilt, lock: int, pristine: Source) -> dict[str, bytes]:
    """Refresh and pop every patch, top first, so each edit ends in the topmost patch that has its file.

    Returns the edits that are in no patch, path -> content, and puts the pristine content back in their place.
    """
    while quilts.applied(aside):
        quilt.run(aside, "refresh", *quilts.FORM, lock=lock, check=False)
        quilt.run(aside, "pop", lock=lock)
    stray = {}
    for name in differing(list_folder(aside), pristine.listing()):
        path, original = aside / name, pristine.read(name)
        if not path.is_file() or path.suffix in (".orig", ".rej") or name.endswith("~"):
            raise Refused(Problem("stray-edits", name, "is missing, or left over from an editor or a failed push", "put it right in the tree, then refresh again"))
        stray[name] = path.read_bytes()
        path.unlink() if original is None else path.write_bytes(original)
    return stray


def _lay(aside: Path, quilt: quilts.Quilt, lock: int, added: dict[str, bytes]) -> None:
    """Push patch by patch and write each in the fixed form; `added` files go into the top one."""
    headers = _without_diff(aside)
    while quilt.run(aside, "push", "--fuzz=0", lock=lock).returncode == 0:
        top = quilts.applied(aside)[-1]
        if top in headers:
            (aside / "patches" / top).write_text(headers[top])
        quilt.run(aside, "refresh", *quilts.FORM, lock=lock, check=False)
    for name in added:
        quilt.run(aside, "add", name, lock=lock)
        (aside / name).parent.mkdir(parents=True, exist_ok=True)
        (aside / name).write_bytes(added[name])
    if added:
        quilt.run(aside, "refresh", *quilts.FORM, lock=lock)


def _without_diff(aside: Path) -> dict[str, str]:
    """Patches that have a header and no diff yet, which quilt cannot push: emptied here, with the text to put back."""
    files = (path for path in (aside / "patches").rglob("*.patch") if path.is_file())
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    empty = {path: text for path, text in texts.items() if not patchfile.split(text)[1]}
    for path in empty:
        path.write_text("")
    return {path.relative_to(aside / "patches").as_posix(): text for path, text in empty.items()}


def _write_back(root: Path, pins: Pins, pin: Pin, queue: Queue, aside: Path, recorded: dict[str, str], say: Say) -> Iterator[Written]:
    listed = {entry.name for entry in queue.entries}
    applied = quilts.applied(aside)
    for name in applied:
        file, kept = aside / "patches" / name, root / "patches" / name
        head, diff = patchfile.split(file.read_text(encoding="utf-8") if file.is_file() else "")
        if name == OVERLAY_PATCH:
            yield from _write_overlay(root, queue, diff)
        elif not diff:
            say(f"{name} changes nothing yet; it stays in the tree")
        elif name not in listed:
            below = [other for other in applied[: applied.index(name)] if other != OVERLAY_PATCH]
            _insert(root, below[-1] if below else "", f"{name}  # {_only(pin)}")
            yield _write(root, f"patches/{name}", _join(head or TEMPLATE, diff), f"new, for {pin.tag}")
        else:
            old = kept.read_bytes()
            if name not in recorded and not head:  # started in the tree, its header filled in in patches/
                head = patchfile.split(old.decode())[0]
            content = _join(head, diff)
            if recorded.get(name) == sha256(content):
                continue  # not edited in the tree: what the queue has by now stands
            if _make_the_same(name, old, content, aside / ".pc" / name, pin.tag):
                continue  # an insertion can begin at either of two equal lines: which one is diff's choice, and differs by its version
            if old != content and recorded.get(name, sha256(old)) != sha256(old):
                raise Refused(Problem("changed-twice", f"patches/{name}", f"was changed in the queue and in work/{pin.tag}", "keep one of the two: put the other aside, then refresh again"))
            if old != content:
                yield from _write_patch(root, pins, pin, queue, name, content, say)


def _make_the_same(name: str, old: bytes, new: bytes, before: Path, tag: str) -> bool:
    """Whether two texts of a patch have one header and, both strictly laid on the files in `before`, give the same files."""

    def read(path: str) -> bytes | None:
        return (before / path).read_bytes() if (before / path).is_file() else None

    heads, results = [], []
    for text in (old, new):
        patch, problems = patchfile.read(name, text)
        laid = replay([patch], {}, read, tag) if patch and not problems else None
        if laid is None or laid.problems:
            return False
        heads.append(patchfile.split(text.decode())[0].strip())
        results.append(laid.files)
    return heads[0] == heads[1] and results[0] == results[1]


def _join(head: str, diff: str) -> bytes:
    return f"{head.strip()}\n\n{diff}".encode()


def _write_patch(root: Path, pins: Pins, pin: Pin, queue: Queue, name: str, content: bytes, say: Say) -> Iterator[Written]:
    """The patch itself where it still fits every release it is for; else a variant for this one."""
    entry = next(entry for entry in queue.entries if entry.name == name)
    patch, problems = patchfile.read(name, content)
    others = [other for other in pins.all if other.version != pin.version and entry.is_for(other.version)]
    broken = [other.tag for other in others if patch and not _fits(queue, patch, other, say)]
    if not broken:
        yield _write(root, f"patches/{name}", content, "refreshed")
        return
    release = f"{pin.version.major}.{pin.version.minor}.{pin.version.micro}"
    variant = f"{entry.base.removesuffix('.patch')}@{release}.patch"
    if variant == name or variant in queue.patches:
        raise Refused(Problem("bad-variant", f"patches/{name}", f"as edited it no longer fits {' '.join(broken)}", f"narrow its guard in series to {pin.tag}, and give the others a variant"))
    _replace_guard(root, entry, f"{entry.text},!={release}.*")
    _insert(root, name, f"{variant}  # {_only(pin)}")
    diff = patchfile.split(content.decode())[1]
    yield _write(root, f"patches/{variant}", _join(f"Variant-Of: {entry.base}", diff), f"new variant: as it is on {pin.tag} it does not fit {' '.join(broken)}")


def _fits(queue: Queue, patch: Patch, pin: Pin, say: Say) -> bool:
    changed = replace(queue, patches=queue.patches | {patch.name: patch})
    steps = replay_on(changed, changed.select(pin.version), source.fetch(pin, None, say)).steps
    return all(step.outcome is Outcome.APPLIED for step in steps if step.patch == patch.name)


def _write_overlay(root: Path, queue: Queue, diff: str) -> Iterator[Written]:
    for file in patchfile.parse_diff(diff):
        text = "".join(line for hunk in file.hunks for line in hunk.new).encode()
        if file.path != PROVENANCE and queue.overlay.get(file.path) != text:
            yield _write(root, f"overlay/{file.path}", text, "refreshed" if file.path in queue.overlay else "new")


def _write(root: Path, name: str, content: bytes, why: str) -> Written:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(content)
    temporary.replace(path)
    return Written(name, why)


def _only(pin: Pin) -> str:
    """The guard for a release and its post releases."""
    return f"=={pin.version.major}.{pin.version.minor}.{pin.version.micro}.*"


def _insert(root: Path, after: str, line: str) -> None:
    """Put a line into the series behind the entry `after`, or before all entries."""
    lines = (root / series.FILE).read_text(encoding="utf-8").splitlines()
    names = [text.split(" #")[0].strip() if not text.startswith("#") else "" for text in lines]
    place = names.index(after) + 1 if after else next((number for number, name in enumerate(names) if name), len(lines))
    lines.insert(place, line)
    _write(root, str(series.FILE), ("\n".join(lines) + "\n").encode(), "")


def _replace_guard(root: Path, entry: Entry, guard: str) -> None:
    text = (root / series.FILE).read_text(encoding="utf-8")
    pattern = re.compile(rf"^({re.escape(entry.name)}\s+#).*$", re.MULTILINE)
    _write(root, str(series.FILE), pattern.sub(lambda match: f"{match.group(1)} {guard}", text).encode(), "")
