"""Pull requests: for each Pending patch a branch on a user's checkout of upstream, and a text.

The folder of a pull request, pull-requests/TOPIC/PATCH/, is laid out as upstream's tree is. It
holds tests at the places where upstream keeps them, and, under python/, files in place of the
overlay's, which know more releases than upstream needs. A change@VERSION.patch there replaces the
series' text from that release up to the next one: the series hooks upstream's code where a pull
request mends it.

A folder without a patch in the series is a step: what a reviewer is sent before a large change. Its
text names the patch that the step leads to, and that patch's text has the step `below` it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import Struct
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..applying.apply import load_queue
from ..applying.matching import Read, apply_patch, in_front, listing_with
from ..applying.selection import passes
from ..files import record
from ..outcome import Outcome, Refused
from ..queue import patchfile
from ..queue.header import TREE_PATH, Header
from ..queue.patchfile import Patch
from ..queue.series import Entry, Queue, read_overlay
from ..upstream.pins import Pin, Pins
from .backport import PACKAGE, date_of, release_of, text_of
from .repository import Commit, open_repository

BRANCHES = "prefill-graph/"


@dataclass(frozen=True)
class PullRequest:
    """A branch. name: of its patch (breakable/keep-break-tensors); outcome: APPLIED made,
    ALREADY_APPLIED there; base, tip: full hashes; text: None where none is written."""

    name: str
    branch: str
    outcome: Outcome
    base: str
    tip: str
    parts: tuple[Part, ...]
    text: Text | None = field(repr=False, default=None)


@dataclass(frozen=True)
class Made:
    """pin: the release whose patches were taken; exact: the base is that release itself.

    merged: patches that the base has already.
    """

    pin: Pin
    exact: bool
    base: str
    requests: tuple[PullRequest, ...]
    merged: tuple[str, ...]


@dataclass(frozen=True)
class Ground:
    """What branches are made from. patches: those that the release gets and upstream lacks, by
    their base name, with their replacements for pull requests; read: a file of the base."""

    root: Path
    queue: Queue
    pin: Pin
    patches: dict[str, Patch]
    read: Read

    def is_pending(self, patch: Patch) -> bool:
        return self.queue.header(patch.name).get(STATUS) == PENDING


def make(root: Path, pins: Pins, onto: str, words: Iterable[str], base: str) -> Made:
    """Make a branch for each patch that `words` name (a topic, or one patch or step of it as
    topic/verb-object; all where none is named).

    base: a commit of the repository at `onto`; where it is no pinned release, the newest pin's
    patches are applied to it, each hunk at the one place where its text matches. Raises Refused,
    with no branch made, where a patch does not fit, the base has a file of the pull request's
    already, or a branch of that name is another.
    """
    queue, repository = load_queue(root), open_repository(onto)
    repository.refuse_edits(base)
    author, start = repository.author(), repository.commit(base)
    files = repository.contents(start, "python", "test")
    if f"{PACKAGE}/version.py" not in files and f"{PACKAGE}/__init__.py" not in files:
        what, step = f"holds no {PACKAGE} at {base}", "give a git checkout of sglang: --onto PATH"
        raise Refused.of("no-sglang", repository.shown, what, step)
    exact = release_of(pins, listing_with({}, files))
    pin, read = exact or pins.all[-1], files.get
    ground, merged = _ground(root, with_steps(root, queue, pin), pin, base, read)
    day = date_of(pin, repository, start)
    built = []  # every one, before the first branch
    for patch in requested(ground, words):
        parts = _parts(ground, patch)
        commits = [Commit(_message(ground, part), part.files) for part in parts]
        tip = repository.build(start, commits, author, day)[-1]
        name = stem(ground.queue, patch)
        branch, text = BRANCHES + name.replace("/", "-"), read_text(root, name)
        built.append(PullRequest(name, branch, Outcome.APPLIED, start, tip, parts, text))
    outcomes = repository.publish({request.branch: request.tip for request in built})
    requests = (replace(each, outcome=outcome) for each, outcome in zip(built, outcomes))
    return Made(pin, bool(exact), start, tuple(requests), merged)


def _ground(
    root: Path, queue: Queue, pin: Pin, base: str, read: Read
) -> tuple[Ground, tuple[str, ...]]:
    """(the ground, the base names of the Pending patches that upstream has by now). Raises Refused
    where no Pending patch is left."""
    ground = Ground(root, queue, pin, {}, read)
    selected = queue.select(pin.version)
    merged = tuple(
        queue.base(patch.name)
        for patch in selected
        if ground.is_pending(patch)
        and any(passes(line, read) for line in queue.header(patch.name).probes)
    )
    left = [patch for patch in selected if queue.base(patch.name) not in merged]
    pending = [patch for patch in left if ground.is_pending(patch)]
    if not pending:
        what = f"no patch for it is {PENDING} that {base} lacks"
        raise Refused.of("nothing-pending", pin.tag, what, "see Upstream-Status in patches/")
    replaced = changes(root, queue, pending, pin)
    patches = {queue.base(patch.name): replaced.get(patch.name, patch) for patch in left}
    return replace(ground, patches=patches), merged


def requested(ground: Ground, words: Iterable[str]) -> list[Patch]:
    """The patches to be sent, in the order of words and then of the series. Raises Refused for a
    word that names none."""
    stems = {
        name.removesuffix(".patch"): patch
        for name, patch in ground.patches.items()
        if ground.is_pending(patch)
    }
    topics = dict.fromkeys(name.partition("/")[0] for name in stems)
    chosen: dict[str, Patch] = {}
    for word in list(words) or topics:
        named = {
            name: patch for name, patch in stems.items() if word in (name, name.partition("/")[0])
        }
        if not named:
            what = f"names no patch that is {PENDING}; topics are {' '.join(topics)}"
            step = f"or one patch of a topic: {' '.join(stems)}"
            raise Refused.of("unknown-topic", repr(word), what, step)
        chosen |= named
    return list(chosen.values())


def _parts(ground: Ground, patch: Patch) -> tuple[Part, ...]:
    """A commit for each patch that `patch` needs, and one for it. Raises Refused where one does not
    fit."""
    laid: dict[str, bytes] = {}
    parts = []
    for each in _with_needs(ground, patch):
        name = stem(ground.queue, each)
        changed = _changed(ground, each, name, in_front(laid, ground.read))
        files = {**changed, **_new_files(ground, each, name, laid)}
        laid |= files
        text = read_text(ground.root, name)
        subject = (text.title if text else "") or ground.queue.header(each.name).get("Subject")
        parts.append(Part(name, subject, each is patch, files))
    return tuple(parts)


def _changed(ground: Ground, patch: Patch, name: str, read: Read) -> dict[str, bytes]:
    """The files that a patch changes, where its text matches; without upstream's tests on a base
    that has none, as a wheel's. Raises Refused where the text matches at no place or at several."""
    known = (file for file in patch.files if not file.path.startswith("test/") or read(file.path))
    row = apply_patch(replace(patch, files=tuple(known)), read)
    if row.outcome is not Outcome.CONFLICT:
        return dict(row.after)
    file = change(ground.root, name, ground.pin) or ground.root / "patches" / patch.name
    step = (
        "name what it stands on in `below` of its text, write a variant that fits this base, or"
        " name another: --base COMMIT"
    )
    raise Refused.of(str(row.outcome), str(file.relative_to(ground.root)), row.why, step)


def _new_files(ground: Ground, patch: Patch, name: str, laid: dict[str, bytes]) -> dict[str, bytes]:
    """The files that come with a patch. Raises Refused for one that the base has."""
    new: dict[str, bytes] = {}
    for path, content in files(ground.root, ground.queue, patch, ground.pin).items():
        if path in laid:
            continue
        if ground.read(path) is not None:
            what = "the base has a file of this name, and the pull request would add one"
            step = f"rename it below {FOLDER}/{name}/"
            raise Refused.of("file-exists", path, what, step)
        new[path] = content
    return new


def _with_needs(ground: Ground, patch: Patch) -> list[Patch]:
    """The patch and those that it needs, each behind what it needs, and else in the series'
    order."""
    order = [*ground.patches]
    begun: set[str] = set()
    ordered: list[Patch] = []

    def add(name: str) -> None:
        begun.add(name)
        needs = {*_needs(ground, ground.patches[name])}.intersection(order)
        for need in sorted(needs, key=order.index):
            if need not in begun:
                add(need)
        ordered.append(ground.patches[name])

    add(ground.queue.base(patch.name))
    return ordered


def _needs(ground: Ground, patch: Patch) -> tuple[str, ...]:
    """The patches that a patch's branch contains: by its header, and by the text of its pull
    request. Raises Refused where the text names no patch."""
    name = stem(ground.queue, patch)
    text = read_text(ground.root, name)
    below = tuple(f"{each}.patch" for each in text.below) if text else ()
    for each in below:
        if each not in ground.queue.patches:
            where = f"{FOLDER}/{name}/{NAME}"
            what = f"below names no patch: {each.removesuffix('.patch')!r}"
            raise Refused.of(BAD, where, what, "name it as TOPIC/PATCH")
    return (*ground.queue.header(patch.name).needs, *below)


def _message(ground: Ground, part: Part) -> str:
    """A commit's message: the title, and the description of the patch's header; a step has none."""
    described = text_of(ground.queue, ground.patches[f"{part.patch}.patch"]).partition("\n\n")[2]
    return "\n\n".join(filter(None, [part.subject, described])) + "\n"


def write(queue: Queue, request: PullRequest, out: Path) -> Path:
    """Write OUT/TOPIC-PATCH/title.txt and body.md; the path of the body."""
    folder = out / request.name.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "title.txt").write_text(f"{request.parts[-1].subject}\n", encoding="utf-8")
    text = request.text
    body = text.body if text else body_of(queue.header(f"{request.name}.patch"))
    (folder / "body.md").write_text(body, encoding="utf-8")
    return folder / "body.md"


FOLDER = Path("pull-requests")
NAME = "pull-request.toml"
BAD = "bad-pull-request"
STATUS, PENDING = "Upstream-Status", "Pending"
PROBE = re.compile(rf"{TREE_PATH} :: \S[^\n]*")


class Text(Struct, frozen=True, forbid_unknown_fields=True):
    """pull-request.toml. body: Markdown, with the sections of upstream's template; title: where it
    is not the patch's subject; below: patches that its branch contains, besides those that the
    patch's header needs; step_to: the patch that a step leads to; probe: how to see that upstream
    has the step."""

    body: str
    title: str = ""
    below: tuple[str, ...] = ()
    step_to: str = ""
    probe: str = ""


def stem(queue: Queue, patch: Patch) -> str:
    """A patch's name without variant and suffix: breakable/keep-break-tensors."""
    return queue.base(patch.name).removesuffix(".patch")


def read_text(root: Path, name: str) -> Text | None:
    """The text of a patch's pull request, None where there is none. Raises Refused where it is
    wrong."""
    where = f"{FOLDER}/{name}/{NAME}"
    try:
        content = (root / where).read_bytes()
    except FileNotFoundError:
        return None
    text = record.toml(content, Text, where, BAD, "CONTRIBUTING.md says what stands in it")
    if text.step_to and not (text.title and PROBE.fullmatch(text.probe)):
        what, step = "a step has a title and a probe", "write the probe as `PATH :: TEXT`"
        raise Refused.of(BAD, where, what, step)
    return text


def with_steps(root: Path, queue: Queue, pin: Pin) -> Queue:
    """The queue with each step in front of the patch that it leads to, where the release gets that
    patch. Raises Refused for a step's bad text."""
    patches, entries = dict(queue.patches), [*queue.entries]
    selected = {queue.base(patch.name) for patch in queue.select(pin.version)}
    for name, text in _steps(root, queue).items():
        goal, own = f"{text.step_to}.patch", f"{name}.patch"
        words = (("Subject", text.title), (STATUS, queue.header(goal).get(STATUS)))
        # a step that is not applied has a name too: the goal's text has it below
        patches[own] = Patch(own, b"", Header((*words, ("Probe", text.probe))), ())
        brings = change(root, name, pin) or (root / FOLDER / name / "python").is_dir()
        if goal in selected and brings:
            at = next(n for n, entry in enumerate(entries) if entry.base == goal)
            entries.insert(at, Entry(own, SpecifierSet(), "", 0))
    return replace(queue, patches=patches, entries=tuple(entries))


def _steps(root: Path, queue: Queue) -> dict[str, Text]:
    """The texts of the folders without a patch, by their names in order. Raises Refused for a bad
    text, and for a folder that neither has a patch nor leads to one."""
    known = {entry.base.removesuffix(".patch") for entry in queue.entries}
    steps = {}
    for file in sorted((root / FOLDER).glob(f"*/*/{NAME}")):
        name = file.parent.relative_to(root / FOLDER).as_posix()
        text = read_text(root, name)
        if name in known or text is None:
            continue
        if text.step_to not in known:
            what = f"no patch of the series is named {name!r}, nor {text.step_to!r}, its step_to"
            step = "name the folder as its patch, or in step_to the patch that it is a step to"
            raise Refused.of(BAD, f"{FOLDER}/{name}/{NAME}", what, step)
        steps[name] = text
    return steps


def change(root: Path, name: str, pin: Pin) -> Path | None:
    """The patch that replaces the series' text in a pull request on a release; None where there is
    none."""
    found = {
        Version(file.stem.partition("@")[2]): file
        for file in (root / FOLDER / name).glob("change@*.patch")
    }
    fitting = [version for version in found if version <= pin.version]
    return found[max(fitting)] if fitting else None


def changes(root: Path, queue: Queue, patches: Iterable[Patch], pin: Pin) -> dict[str, Patch]:
    """Those of `patches` that have a replacement for pull requests, with it, by name. Raises
    Refused for a bad one."""
    replacements: dict[str, Patch] = {}
    for patch in patches:
        if file := change(root, stem(queue, patch), pin):
            made, problems = patchfile.read(patch.name, file.read_bytes())
            if made is None or problems:
                where = str(file.relative_to(root))
                raise Refused(replace(problem, where=where) for problem in problems)
            replacements[patch.name] = made
    return replacements


def files(root: Path, queue: Queue, patch: Patch, pin: Pin) -> dict[str, bytes]:
    """The files of a patch's pull request: those of its folder, and the overlay's where the folder
    has none under python/, and no replacement for the patch."""
    name = stem(queue, patch)
    own = {
        path: content for path, content in read_overlay(root / FOLDER / name).items() if "/" in path
    }
    alone = change(root, name, pin) or any(path.startswith("python/") for path in own)
    return own if alone else queue.overlay_for([patch]) | own


@dataclass(frozen=True)
class Part:
    """One commit of a pull request. patch: TOPIC/PATCH; own: the patch that is sent, not one that
    only has to be below it; files: path -> content as committed."""

    patch: str
    subject: str
    own: bool
    files: dict[str, bytes] = field(repr=False)


def body_of(header: Header) -> str:
    """The body for a patch whose pull request is not written."""
    paragraphs = re.split(r"\n\s*\n", header.get("Description"))
    # one line each: where it is read, a line end is a line's end
    described = "\n\n".join(" ".join(part.split()) for part in paragraphs)
    text = f"## Motivation\n\n{described}\n\n## Modifications\n\n{header.get('Subject')}.\n"
    return text.replace("sglang#", "#")
