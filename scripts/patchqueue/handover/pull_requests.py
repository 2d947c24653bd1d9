"""Pull requests: for each patch that is Pending a branch on a user's checkout of upstream, and a
text.

A branch has what its patch needs and no more. Upstream's own pre-commit formats and lints it, in
the checkout.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from ..applying.apply import load_queue
from ..applying.matching import apply_patch, in_front
from ..applying.selection import passes
from ..outcome import Outcome, Refused
from ..queue.patchfile import Patch
from ..queue.series import Queue
from ..upstream.pins import Pin, Pins
from . import additions
from .additions import PENDING, STATUS, Part, Text, stem
from .backport import PACKAGE, Read, date_of, release_of, text_of
from .repository import Commit, Repository, open_repository

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
    person, start = repository.person(), repository.commit(base)
    exact = release_of(repository, start, pins)
    pin = exact or pins.all[-1]
    read = _reader(repository, start, base)
    ground, merged = _ground(root, additions.with_steps(root, queue, pin), pin, base, read)
    day = date_of(pin, repository, start)
    built = []  # every one, before the first branch
    for patch in requested(ground, words):
        parts = _parts(ground, patch)
        commits = [Commit(_message(ground, part), part.files) for part in parts]
        tip = repository.build(start, commits, person, day)[-1]
        name = stem(ground.queue, patch)
        branch, text = BRANCHES + name.replace("/", "-"), additions.read_text(root, name)
        built.append(PullRequest(name, branch, Outcome.APPLIED, start, tip, parts, text))
    return Made(pin, bool(exact), start, _published(repository, built), merged)


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
    replaced = additions.changes(root, queue, pending, pin)
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
        new, renamed = _new_files(ground, each, name, laid)
        files = {**changed, **new}
        laid |= files
        text = additions.read_text(ground.root, name)
        subject = (text.title if text else "") or ground.queue.header(each.name).get("Subject")
        parts.append(Part(name, subject, each is patch, files, renamed))
    return tuple(parts)


def _changed(ground: Ground, patch: Patch, name: str, read: Read) -> dict[str, bytes]:
    """The files that a patch changes, where its text matches; without upstream's tests on a base
    that has none, as a wheel's. Raises Refused where the text matches at no place or at several."""
    known = (file for file in patch.files if not _is_test(file.path) or read(file.path))
    row = apply_patch(replace(patch, files=tuple(known)), read)
    if row.outcome is not Outcome.CONFLICT:
        return dict(row.after)
    file = additions.change(ground.root, name, ground.pin) or ground.root / "patches" / patch.name
    step = (
        "name what it stands on in `below` of its text, write a variant that fits this base, or"
        " name another: --base COMMIT"
    )
    raise Refused.of(str(row.outcome), str(file.relative_to(ground.root)), row.why, step)


def _is_test(path: str) -> bool:
    return path.startswith("test/")


def _new_files(
    ground: Ground, patch: Patch, name: str, laid: dict[str, bytes]
) -> tuple[dict[str, bytes], dict[str, str]]:
    """(the files that come with a patch; the new names of its tests whose own name upstream has, by
    that name). Raises Refused for another file that the base has."""
    new: dict[str, bytes] = {}
    renamed: dict[str, str] = {}
    for path, content in additions.files(ground.root, ground.queue, patch, ground.pin).items():
        there = laid.get(path, ground.read(path))
        if there is None:
            new[path] = content
        elif _is_test(path):
            file = f"test_{name.rpartition('/')[2].replace('-', '_')}.py"
            renamed[path] = f"{path.rpartition('/')[0]}/{file}"
            new[renamed[path]] = content
        elif path not in laid:
            what = "the base has a file of this name, and the pull request would add one"
            step = f"rename it below {additions.FOLDER}/{name}/"
            raise Refused.of("file-exists", path, what, step)
    return new, renamed


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
    text = additions.read_text(ground.root, name)
    below = tuple(f"{each}.patch" for each in text.below) if text else ()
    for each in below:
        if each not in ground.queue.patches:
            where = f"{additions.FOLDER}/{name}/{additions.NAME}"
            what = f"below names no patch: {each.removesuffix('.patch')!r}"
            raise Refused.of(additions.BAD, where, what, "name it as TOPIC/PATCH")
    return (*ground.queue.header(patch.name).needs, *below)


def _message(ground: Ground, part: Part) -> str:
    """A commit's message: the title, and the description of the patch's header; a step has none."""
    described = text_of(ground.queue, ground.patches[f"{part.patch}.patch"]).partition("\n\n")[2]
    return "\n\n".join(filter(None, [part.subject, described])) + "\n"


def _published(repository: Repository, built: list[PullRequest]) -> tuple[PullRequest, ...]:
    """The branches, made. Raises Refused, before any is, for branches of these names that are
    others."""
    before = {request.branch: repository.branch(request.branch) for request in built}
    for request in built:
        repository.refuse_taken(request.branch, before[request.branch], request.tip)
    outcomes = (repository.put(one.branch, before[one.branch], one.tip) for one in built)
    return tuple(replace(one, outcome=outcome) for one, outcome in zip(built, outcomes))


def write(queue: Queue, request: PullRequest, out: Path) -> Path:
    """Write OUT/TOPIC-PATCH/title.txt and body.md; the path of the body."""
    folder = out / request.name.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "title.txt").write_text(f"{request.parts[-1].subject}\n", encoding="utf-8")
    text = request.text
    body = text.body if text else additions.body_of(queue.header(f"{request.name}.patch"))
    (folder / "body.md").write_text(body, encoding="utf-8")
    return folder / "body.md"


def _reader(repository: Repository, commit: str, base: str) -> Read:
    """A function that reads a file of a commit. Raises Refused where the commit is none of
    sglang's."""
    read = cache(partial(repository.read, commit))
    if read(f"{PACKAGE}/version.py") is None and read(f"{PACKAGE}/__init__.py") is None:
        what, step = f"holds no {PACKAGE} at {base}", "give a git checkout of sglang: --onto PATH"
        raise Refused.of("no-sglang", repository.shown, what, step)
    return read
