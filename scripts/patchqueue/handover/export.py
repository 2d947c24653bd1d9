"""Pull requests: for each patch that is Pending a branch on a user's checkout of upstream, or for
each topic, where that is asked for.

A branch has what its patch needs and no more (drafts.py). Everything is put into upstream's own
format, and held to upstream's linters and written rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..laying.apply import load_queue
from ..laying.selection import passes
from ..outcome import Outcome, Problem, Refused
from ..queue.patchfile import Patch
from ..queue.series import Queue
from ..upstream.pins import Pin, Pins
from . import additions, conventions, formatting, prtext
from .additions import PENDING
from .backport import PACKAGE, date_of, put, refuse_folder, release_of, text_of, write_mails
from .drafts import Draft, Ground, Part, Read, draft
from .repository import Commit, Person, Repository, open_repository

BRANCHES = "prefill-graph/"
TEMPLATE = ".github/pull_request_template.md"


@dataclass(frozen=True)
class PullRequest:
    """A branch. name: of its patch (breakable/keep-break-tensors), or of a topic; outcome: APPLIED
    made, ALREADY_APPLIED there; base, tip: full hashes; mails: name -> content.

    texts: what it says, by patch, where that is written; warnings: upstream's rules that may be
    broken.
    """

    name: str
    branch: str
    outcome: Outcome
    base: str
    tip: str
    parts: tuple[Part, ...]
    mails: dict[str, bytes] = field(repr=False, default_factory=dict)
    texts: Mapping[str, prtext.Text] = field(repr=False, default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """What its runs are known by: see prtext.branch_hash."""
        files = {path: text for part in self.parts for path, text in part.files.items()}
        return prtext.branch_hash(files)


@dataclass(frozen=True)
class Exported:
    """pin: the release whose patches were taken; exact: the base is that release itself.

    merged: patches that the base has already; tidied: overlay and patch files whose form had to be
    changed; template: upstream's text to fill in, None where the base has none; kept: the patches
    that wait to be sent and that the release does not get, with the reason.
    """

    pin: Pin
    exact: bool
    base: str
    requests: tuple[PullRequest, ...]
    merged: tuple[str, ...]
    tidied: tuple[str, ...]
    template: str | None = None
    kept: tuple[tuple[str, str], ...] = ()


def export(
    root: Path,
    pins: Pins,
    onto: str,
    words: Iterable[str],
    base: str,
    out: Path | None = None,
    together: bool = False,
) -> Exported:
    """Make a branch for each patch that `words` name (a topic, or one patch or step of it as
    topic/verb-object; all where none is named); together: one for each topic.

    base: a commit of the repository at `onto`; where it is no pinned release, the newest pin's
    patches are laid on it, each hunk at the one place where its text stands. Raises Refused, with
    no branch made, where a patch does not fit, the base has a file of the pull request's already,
    upstream's linters or rules complain, a branch of that name is another, or the folders below
    `out` cannot take the mails.
    """
    queue, repository = _sendable(root, pins), open_repository(onto)
    repository.refuse_edits(base)
    person, start = repository.person(), repository.commit(base)
    exact = release_of(repository, start, pins)
    pin = exact or pins.all[-1]
    queue = additions.with_steps(root, queue, pin)
    rules, read = formatting.rules(root, pin.version), _reader(repository, start, base)
    pending, selected, merged = _to_send(root, queue, pin, base, read)
    chosen = requested(queue, pending, words, together)
    drafts = [
        draft(Ground(root, queue, pin, selected, read), name, patches)
        for name, patches in chosen.items()
    ]
    texts = {part.patch: additions.text(root, part.patch) for one in drafts for part in one.parts}
    drafts, tidied = _in_form([_titled(one, texts) for one in drafts], read, rules)
    warnings = _by_convention(drafts, read, repository.folders(start, f"{PACKAGE}/srt"))
    day = date_of(pin, repository, start)
    # every one, before the first branch
    built = [_build(repository, start, person, day, queue, one, texts) for one in drafts]
    built = [replace(request, warnings=warnings[request.name]) for request in built]
    done, left = _published(repository, built, out), kept(queue, pin)
    return Exported(pin, bool(exact), start, done, merged, tidied, _template(read), left)


def _template(read: Read) -> str | None:
    text = read(TEMPLATE)
    return text.decode("utf-8", "replace") if text else None


def _sendable(root: Path, pins: Pins) -> Queue:
    """The queue. Raises Refused where a patch of it waits in vain."""
    queue = load_queue(root)
    if wrong := never_sent(queue, pins.all):
        raise Refused(wrong)
    return queue


def kept(queue: Queue, pin: Pin) -> tuple[tuple[str, str], ...]:
    """The patches that are Pending and that a release does not get: (name, why not)."""
    got = {queue.base(patch.name) for patch in queue.select(pin.version)}
    names = dict.fromkeys(entry.base for entry in queue.entries if entry.base in queue.patches)
    found = []
    for name in names:
        header = queue.header(name)
        if name in got or header.get("Upstream-Status") != PENDING:
            continue
        gaps = [gap for gap in header.gaps if gap.releases.contains(pin.version, prereleases=True)]
        why = gaps[0].reason if gaps else "its guard leaves it out"
        found.append((name.removesuffix(".patch"), why))
    return tuple(found)


def never_sent(queue: Queue, pins: Iterable[Pin]) -> list[Problem]:
    """The patches that are Pending, and that the newest release the queue is carried to does not
    get: no pull request can ever be made of them."""
    carried = [pin for pin in pins if pin.patched]
    if not carried:
        return []
    newest = max(carried, key=lambda pin: pin.version)
    step = "say so in its header: `Upstream-Status: Inappropriate: REASON`"
    return [
        Problem(
            "never-sent",
            f"patches/{name}.patch",
            f"is {PENDING}, and {newest.tag} does not get it, so that it can never be sent: {why}",
            step,
        )
        for name, why in kept(queue, newest)
    ]


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
        found = {stem: patch for stem, patch in stems.items() if word in (stem, _topic(stem))}
        if not found:
            what = f"names no patch that is {PENDING}; topics are {' '.join(topics)}"
            step = f"or one patch of a topic: {' '.join(stems)}"
            raise Refused.of("unknown-topic", repr(word), what, step)
        if together:
            chosen[word] = [*found.values()]
        else:
            chosen |= {stem: [patch] for stem, patch in found.items()}
    return chosen


def _topic(stem: str) -> str:
    return stem.partition("/")[0]


def _in_form(
    drafts: list[Draft], read: Read, rules: formatting.Rules
) -> tuple[list[Draft], tuple[str, ...]]:
    """The drafts in upstream's format, and the files which that changed. A file that upstream
    itself has in another form is left.

    Raises Refused with what upstream's linters would say about the files, new complaints alone.
    """
    key = "{}/{}/{}".format
    after = {
        key(d, n, path): content
        for d, one in enumerate(drafts)
        for n, part in enumerate(one.parts)
        for path, content in part.files.items()
    }
    paths = {name.split("/", 2)[2] for name in after}
    before = {path: content for path in paths if (content := read(path)) is not None}
    formed = formatting.tidy(
        {**after, **{f"base/-/{path}": content for path, content in before.items()}}, rules
    )
    odd = {path for path, content in before.items() if formed[f"base/-/{path}"] != content}
    tidied = {name.split("/", 2)[2] for name in after if formed[name] != after[name]} - odd
    made = {name: after[name] if name.split("/", 2)[2] in odd else formed[name] for name in after}
    wrong, step = [], "correct the patch, the overlay file, or what lies below pull-requests/"
    again = []
    for d, one in enumerate(drafts):
        parts = tuple(
            replace(part, files={path: made[key(d, n, path)] for path in part.files})
            for n, part in enumerate(one.parts)
        )
        again.append(replace(one, parts=parts))
        last = {path: content for part in parts for path, content in part.files.items()}
        said = formatting.complaints(before, last, rules)
        wrong += [Problem("upstream-lint", one.name, complaint, step) for complaint in said]
    if wrong:
        raise Refused(wrong)
    return again, tuple(sorted(tidied))


def _by_convention(
    drafts: list[Draft], read: Read, packages: frozenset[str]
) -> dict[str, tuple[str, ...]]:
    """What upstream's written rules may have against each draft, by its name. Raises Refused with
    what they have against it for sure."""
    wrong, warnings = [], {}
    for one in drafts:
        after = {path: text for part in one.parts for path, text in part.files.items()}
        before = {path: text for path in after if (text := read(path)) is not None}
        found = conventions.findings(before, after, packages)
        step = f"correct it below {additions.FOLDER}/"
        wrong += [
            Problem(f"upstream-{each.rule}", each.where, each.what, step)
            for each in found
            if each.refused
        ]
        warnings[one.name] = tuple(str(each) for each in found if not each.refused)
    if wrong:
        raise Refused(wrong)
    return warnings


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
    branch, mails = BRANCHES + one.name.replace("/", "-"), repository.mails(start, tip)
    own = {part.patch: text for part in one.parts if part.own and (text := texts[part.patch])}
    return PullRequest(one.name, branch, Outcome.APPLIED, start, tip, one.parts, mails, own)


def _message(queue: Queue, patch: Patch, part: Part, text: prtext.Text | None) -> str:
    """A commit's message: what the pull request says, or the patch's header."""
    if text is None:
        return text_of(queue, patch) + "\n"
    return "\n\n".join([part.subject, text.motivation.strip(), text.modifications.strip()]) + "\n"


def _published(
    repository: Repository, built: list[PullRequest], out: Path | None
) -> tuple[PullRequest, ...]:
    """The branches, made. Raises Refused, before any is, for branches of these names that are
    others, and for folders that cannot take the mails."""
    before = {request.branch: repository.branch(request.branch) for request in built}
    for request in built:
        if before[request.branch] not in (None, request.tip):
            put(repository, request.branch, before[request.branch], request.tip)
    for request, folder in [(request, _folder(request, out)) for request in built if out]:
        refuse_folder(folder, request.mails)
    outcomes = (put(repository, one.branch, before[one.branch], one.tip) for one in built)
    return tuple(replace(one, outcome=outcome) for one, outcome in zip(built, outcomes))


def _folder(request: PullRequest, out: Path) -> Path:
    return out / request.name.replace("/", "-")


def write(request: PullRequest, texts: Mapping[str, str], out: Path) -> tuple[Path, ...]:
    """The texts by their file names, as OUT/TOPIC-PATCH/body.md, and the mails beside them. Raises
    Refused where other mails are there."""
    folder = _folder(request, out)
    mails = write_mails(folder, request.mails)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return (*(folder / name for name in texts), *mails)


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
