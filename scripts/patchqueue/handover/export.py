"""Pull requests: for each patch that is Pending a branch on a user's checkout of upstream, or for
each topic, where that is asked for.

A branch has what its patch needs and no more (drafts.py). Upstream's own pre-commit formats and
lints it, in the checkout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..laying.apply import load_queue
from ..laying.selection import passes
from ..outcome import Outcome, Refused
from ..queue.patchfile import Patch
from ..queue.series import Queue
from ..upstream.pins import Pin, Pins
from . import additions, prtext
from .additions import PENDING
from .backport import PACKAGE, date_of, put, refuse_taken, release_of, text_of
from .drafts import Draft, Ground, Part, Read, draft
from .repository import Commit, Person, Repository, open_repository

BRANCHES = "prefill-graph/"
TEMPLATE = ".github/pull_request_template.md"


@dataclass(frozen=True)
class PullRequest:
    """A branch. name: of its patch (breakable/keep-break-tensors), or of a topic; outcome: APPLIED
    made, ALREADY_APPLIED there; base, tip: full hashes; texts: what it says, by patch, where that
    is written."""

    name: str
    branch: str
    outcome: Outcome
    base: str
    tip: str
    parts: tuple[Part, ...]
    texts: Mapping[str, prtext.Text] = field(repr=False, default_factory=dict)

    @property
    def hash(self) -> str:
        """What its runs are known by: see prtext.branch_hash."""
        files = {path: text for part in self.parts for path, text in part.files.items()}
        return prtext.branch_hash(files)


@dataclass(frozen=True)
class Exported:
    """pin: the release whose patches were taken; exact: the base is that release itself.

    merged: patches that the base has already; template: upstream's text to fill in, None where the
    base has none.
    """

    pin: Pin
    exact: bool
    base: str
    requests: tuple[PullRequest, ...]
    merged: tuple[str, ...]
    template: str | None = None


def export(
    root: Path, pins: Pins, onto: str, words: Iterable[str], base: str, together: bool = False
) -> Exported:
    """Make a branch for each patch that `words` name (a topic, or one patch or step of it as
    topic/verb-object; all where none is named); together: one for each topic.

    base: a commit of the repository at `onto`; where it is no pinned release, the newest pin's
    patches are laid on it, each hunk at the one place where its text stands. Raises Refused, with
    no branch made, where a patch does not fit, the base has a file of the pull request's already,
    or a branch of that name is another.
    """
    queue, repository = load_queue(root), open_repository(onto)
    repository.refuse_edits(base)
    person, start = repository.person(), repository.commit(base)
    exact = release_of(repository, start, pins)
    pin = exact or pins.all[-1]
    queue = additions.with_steps(root, queue, pin)
    read = _reader(repository, start, base)
    pending, selected, merged = _to_send(root, queue, pin, base, read)
    ground = Ground(root, queue, pin, selected, read)
    chosen = requested(queue, pending, words, together)
    drafts = [draft(ground, name, patches) for name, patches in chosen.items()]
    texts = {part.patch: additions.text(root, part.patch) for one in drafts for part in one.parts}
    day = date_of(pin, repository, start)
    # every one, before the first branch
    built = [
        _build(repository, start, person, day, queue, _titled(one, texts), texts) for one in drafts
    ]
    template = read(TEMPLATE)
    return Exported(
        pin,
        bool(exact),
        start,
        _published(repository, built),
        merged,
        template.decode("utf-8", "replace") if template else None,
    )


def _titled(one: Draft, texts: Mapping[str, prtext.Text | None]) -> Draft:
    """The draft with the subjects that its texts give."""
    parts = (
        replace(part, subject=text.title) if (text := texts[part.patch]) and text.title else part
        for part in one.parts
    )
    return replace(one, parts=tuple(parts))


def _to_send(
    root: Path, queue: Queue, pin: Pin, base: str, read: Read
) -> tuple[list[Patch], list[Patch], tuple[str, ...]]:
    """(the patches that are Pending, all that the release gets, those that upstream has by now).

    The first two have their texts for pull requests, and are without the third. Raises Refused
    where none is left.
    """
    patches = queue.select(pin.version)
    status = {patch.name: queue.header(patch.name).get("Upstream-Status") for patch in patches}
    pending = [patch for patch in patches if status[patch.name] == PENDING]
    merged = tuple(
        queue.base(patch.name)
        for patch in pending
        if any(passes(line, read) for line in queue.header(patch.name).probes)
    )
    pending = [patch for patch in pending if queue.base(patch.name) not in merged]
    if not pending:
        what = f"no patch for it is {PENDING} that {base} lacks"
        raise Refused.of("nothing-pending", pin.tag, what, "see Upstream-Status in patches/")
    mended = additions.changes(root, queue, pending, pin)
    kept = [patch for patch in patches if queue.base(patch.name) not in merged]
    own, every = ([mended.get(one.name, one) for one in each] for each in (pending, kept))
    return own, every, merged


def requested(
    queue: Queue, pending: list[Patch], words: Iterable[str], together: bool = False
) -> dict[str, list[Patch]]:
    """The patches of each pull request, by its name, in the series' order. Raises Refused for a
    word that names none.

    together: the patches of a topic are one pull request; else each is one.
    """
    stems = {additions.stem(queue, patch): patch for patch in pending}
    topics = dict.fromkeys(stem.partition("/")[0] for stem in stems)
    chosen: dict[str, list[Patch]] = {}
    for word in list(words) or topics:
        named = {
            stem: patch for stem, patch in stems.items() if word in (stem, stem.partition("/")[0])
        }
        if not named:
            what = f"names no patch that is {PENDING}; topics are {' '.join(topics)}"
            step = f"or one patch of a topic: {' '.join(stems)}"
            raise Refused.of("unknown-topic", repr(word), what, step)
        if together:
            chosen[word] = [*named.values()]
        else:
            chosen |= {stem: [patch] for stem, patch in named.items()}
    return chosen


def _build(
    repository: Repository,
    start: str,
    person: Person,
    date: int,
    queue: Queue,
    one: Draft,
    texts: Mapping[str, prtext.Text | None],
) -> PullRequest:
    commits = [
        Commit(_message(queue, patch, part, texts[part.patch]), part.files)
        for patch, part in zip(one.patches, one.parts)
    ]
    tip = repository.build(start, commits, person, date)[-1]
    branch = BRANCHES + one.name.replace("/", "-")
    own = {part.patch: text for part in one.parts if part.own and (text := texts[part.patch])}
    return PullRequest(one.name, branch, Outcome.APPLIED, start, tip, one.parts, own)


def _message(queue: Queue, patch: Patch, part: Part, text: prtext.Text | None) -> str:
    """A commit's message: what the pull request says, or the patch's header."""
    if text is None:
        return text_of(queue, patch) + "\n"
    return "\n\n".join([part.subject, text.motivation.strip(), text.modifications.strip()]) + "\n"


def _published(repository: Repository, built: list[PullRequest]) -> tuple[PullRequest, ...]:
    """The branches, made. Raises Refused, before any is, for branches of these names that are
    others."""
    before = {request.branch: repository.branch(request.branch) for request in built}
    for request in built:
        refuse_taken(repository, request.branch, before[request.branch], request.tip)
    outcomes = (put(repository, one.branch, before[one.branch], one.tip) for one in built)
    return tuple(replace(one, outcome=outcome) for one, outcome in zip(built, outcomes))


def write(request: PullRequest, texts: Mapping[str, str], out: Path) -> tuple[Path, ...]:
    """The texts by their file names, as OUT/TOPIC-PATCH/body.md."""
    folder = out / request.name.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return tuple(folder / name for name in texts)


def _reader(repository: Repository, commit: str, base: str) -> Read:
    """What reads a file of a commit. Raises Refused where it is none of sglang's."""
    known: dict[str, bytes | None] = {}

    def read(path: str) -> bytes | None:
        if path not in known:
            known[path] = repository.read(commit, path)
        return known[path]

    if read(f"{PACKAGE}/version.py") is None and read(f"{PACKAGE}/__init__.py") is None:
        what, step = f"holds no {PACKAGE} at {base}", "give a git checkout of sglang: --onto PATH"
        raise Refused.of("no-sglang", repository.shown, what, step)
    return read
