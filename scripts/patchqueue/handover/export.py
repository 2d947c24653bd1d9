"""Pull requests: for each topic a branch on a user's checkout of upstream, one commit for each
patch that is Pending.

What a pull request brings beside its patch lies below pull-requests/TOPIC/PATCH/, laid out as
upstream's tree is: tests at the places where upstream keeps them, and, under python/, files in
place of the overlay's, which know more releases than upstream needs. A change@VERSION.patch there
is laid in place of the series' text, from that release on up to the next one: the series hooks
upstream's code where a pull request mends it. No file of the overlay goes along. Everything is put
into upstream's own format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.version import Version

from ..laying.apply import load_queue
from ..laying.place import Row, lay_patch
from ..laying.probe import passes
from ..outcome import Outcome, Problem, Refused
from ..queue import patchfile
from ..queue.patchfile import Patch
from ..queue.series import Queue, read_overlay
from ..upstream.pins import Pin, Pins
from . import formatting
from .backport import date_of, put, refuse_folder, release_of, text_of, write_mails
from .repository import Commit, Person, Repository, open_repository

ADDITIONS = Path("pull-requests")
BRANCHES = "prefill-graph/"
PENDING = "Pending"
Read = Callable[[str], "bytes | None"]


@dataclass(frozen=True)
class Part:
    """One commit of a pull request. own: not one that only has to be below it; row: how its patch
    was laid.

    files: path -> content as committed; added: those of them that upstream does not have; subject:
    of its commit.
    """

    patch: str
    subject: str
    own: bool
    row: Row
    added: frozenset[str]
    files: dict[str, bytes] = field(repr=False)

    @property
    def tests(self) -> list[str]:
        """Its new test files."""
        return sorted(path for path in self.files if path.startswith("test/"))


@dataclass(frozen=True)
class PullRequest:
    """One topic's branch. outcome: APPLIED made, ALREADY_APPLIED there; base, tip: full hashes;
    mails: name -> content."""

    topic: str
    branch: str
    outcome: Outcome
    base: str
    tip: str
    parts: tuple[Part, ...]
    mails: dict[str, bytes] = field(repr=False, default_factory=dict)


@dataclass(frozen=True)
class Exported:
    """pin: the release whose patches were taken; exact: the base is that release itself.

    merged: patches that the base has already; tidied: overlay and patch files whose form had to be
    changed.
    """

    pin: Pin
    exact: bool
    base: str
    requests: tuple[PullRequest, ...]
    merged: tuple[str, ...]
    tidied: tuple[str, ...]


def export(
    root: Path, pins: Pins, onto: str, words: Iterable[str], base: str, out: Path | None = None
) -> Exported:
    """Make a branch for each topic that `words` name (a topic, or one patch of it as
    topic/verb-object; all where none is named).

    base: a commit of the repository at `onto`; where it is no pinned release, the newest pin's
    patches are laid on it, each hunk at the one place where its text stands. Raises Refused, with
    no branch made, where a patch does not fit, the base has a file of the pull request's already,
    upstream's linters complain, a branch of that name is another, or the folders below `out` cannot
    take the mails.
    """
    queue = load_queue(root)
    repository = open_repository(onto)
    repository.refuse_edits(base)
    person, start = repository.person(), repository.commit(base)
    exact = release_of(repository, start, pins)
    pin = exact or pins.all[-1]
    rules, read = formatting.rules(root, pin.version), _reader(repository, start)
    if read("python/sglang/version.py") is None and read("python/sglang/__init__.py") is None:
        what, step = (
            f"holds no python/sglang at {base}",
            "give a git checkout of sglang: --onto PATH",
        )
        raise Refused.of("no-sglang", repository.shown, what, step)
    pending, selected, merged = _to_send(root, queue, pin, base, read)
    drafts = [
        _draft(root, queue, pin, topic, chosen, selected, read)
        for topic, chosen in topics(queue, pending, words).items()
    ]
    drafts, tidied = _in_form(drafts, read, rules)
    # every one, before the first branch
    day = date_of(pin, repository, start)
    built = [_build(repository, start, person, day, queue, draft) for draft in drafts]
    before = {request.branch: repository.branch(request.branch) for request in built}
    _refuse_others(repository, built, before)
    for request, folder in [(request, _folder(request, out)) for request in built if out]:
        refuse_folder(folder, request.mails)
    done = tuple(_put(repository, request, before[request.branch]) for request in built)
    return Exported(pin, exact is not None, start, done, merged, tidied)


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
    mended = changes(root, queue, pending, pin)
    kept = [patch for patch in patches if queue.base(patch.name) not in merged]
    own, every = ([mended.get(one.name, one) for one in each] for each in (pending, kept))
    return own, every, merged


def topics(queue: Queue, pending: list[Patch], words: Iterable[str]) -> dict[str, list[Patch]]:
    """The patches of each pull request, by its topic, in the series' order. Raises Refused for a
    word that names none."""
    names = {_stem(queue, patch): patch for patch in pending}
    all_topics = dict.fromkeys(name.partition("/")[0] for name in names)
    chosen = {}
    for word in list(words) or all_topics:
        found = [patch for name, patch in names.items() if word in (name, name.partition("/")[0])]
        if not found:
            what = f"names no patch that is {PENDING}; topics are {' '.join(all_topics)}"
            step = f"or one patch of a topic: {' '.join(names)}"
            raise Refused.of("unknown-topic", repr(word), what, step)
        chosen[word] = found
    return chosen


@dataclass(frozen=True)
class _Draft:
    """A pull request before its format is seen to. patches: as the queue has them, one for each
    part."""

    topic: str
    parts: tuple[Part, ...]
    patches: tuple[Patch, ...]


def _draft(
    root: Path,
    queue: Queue,
    pin: Pin,
    topic: str,
    chosen: list[Patch],
    selected: list[Patch],
    read: Read,
) -> _Draft:
    """A topic's commits, in no particular format yet. On an older release a patch may stand on
    others of the same files that its header does not name, since later ones have them: then these
    come too."""
    try:
        return _laid(root, queue, pin, topic, chosen, _standing(queue, chosen, selected), read)
    except Refused as refusal:
        more = _same_files(chosen, selected)
        if len(more) == len(_standing(queue, chosen, selected)) or refusal.problems[0].name != str(
            Outcome.CONFLICT
        ):
            raise
    return _laid(root, queue, pin, topic, chosen, more, read)


def _laid(
    root: Path,
    queue: Queue,
    pin: Pin,
    topic: str,
    chosen: list[Patch],
    patches: list[Patch],
    read: Read,
) -> _Draft:
    laid: dict[str, bytes] = {}
    parts = []
    for patch in patches:
        row = lay_patch(patch, _over(laid, read))
        if row.outcome is Outcome.CONFLICT:
            text = change(root, _stem(queue, patch), pin) or root / "patches" / patch.name
            step = "write a variant that fits this base, or name another: --base COMMIT"
            raise Refused.of(str(row.outcome), str(text.relative_to(root)), row.why, step)
        added = additions(root, queue, patch, pin)
        new = {path: content for path, content in added.items() if path not in laid}
        taken = [path for path in new if read(path) is not None]
        if taken:
            what = "the base has a file of this name, and the pull request would add one"
            step = f"rename it below {ADDITIONS}/{_stem(queue, patch)}/"
            raise Refused.of("file-exists", taken[0], what, step)
        files = {**row.after, **new}
        laid |= files
        subject, own = queue.header(patch.name).get("Subject"), patch in chosen
        parts.append(Part(_stem(queue, patch), subject, own, row, frozenset(new), files))
    return _Draft(topic, tuple(parts), tuple(patches))


def _standing(queue: Queue, chosen: list[Patch], selected: list[Patch]) -> list[Patch]:
    """The chosen patches and those that their headers need, in the series' order."""
    wanted = {queue.base(patch.name) for patch in chosen}
    while (
        more := {
            need
            for patch in selected
            if queue.base(patch.name) in wanted
            for need in queue.header(patch.name).needs
        }
        - wanted
    ):
        wanted |= more
    return [patch for patch in selected if queue.base(patch.name) in wanted]


def _same_files(chosen: list[Patch], selected: list[Patch]) -> list[Patch]:
    """The chosen patches and every earlier one that changes a file of theirs, or of those before
    them."""
    kept: list[Patch] = []
    files: set[str] = set()
    for patch in reversed(selected):
        paths = {file.path for file in patch.files}
        if patch in chosen or paths & files:
            kept.append(patch)
            files |= paths
    return kept[::-1]


def change(root: Path, stem: str, pin: Pin) -> Path | None:
    """The text of a patch's pull request on a release, where that is not the series' own."""
    found = {
        Version(file.stem.partition("@")[2]): file
        for file in (root / ADDITIONS / stem).glob("change@*.patch")
    }
    fitting = [version for version in found if version <= pin.version]
    return found[max(fitting)] if fitting else None


def changes(root: Path, queue: Queue, patches: Iterable[Patch], pin: Pin) -> dict[str, Patch]:
    """Those of `patches` that have a text of their own for pull requests, with it, by name. Raises
    Refused for a bad one."""
    found: dict[str, Patch] = {}
    wrong: list[Problem] = []
    for patch in patches:
        if file := change(root, _stem(queue, patch), pin):
            made, said = patchfile.read(patch.name, file.read_bytes())
            wrong += [replace(problem, where=str(file.relative_to(root))) for problem in said]
            found |= {patch.name: made} if made else {}
    if wrong:
        raise Refused(wrong)
    return found


def additions(root: Path, queue: Queue, patch: Patch, pin: Pin) -> dict[str, bytes]:
    """The new files of a patch's pull request: those below pull-requests/, and the overlay's where
    it has none under python/.

    A text of its own for pull requests needs no file but those beside it.
    """
    stem = _stem(queue, patch)
    own = {
        path: content
        for path, content in read_overlay(root / ADDITIONS / stem).items()
        if "/" in path
    }
    alone = change(root, stem, pin) or any(path.startswith("python/") for path in own)
    return own if alone else queue.overlay_for([patch]) | own


def _in_form(
    drafts: list[_Draft], read: Read, rules: formatting.Rules
) -> tuple[list[_Draft], tuple[str, ...]]:
    """The drafts in upstream's format, and the files which that changed. A file that upstream
    itself has in another form is left.

    Raises Refused with what upstream's linters would say about the files, new complaints alone.
    """
    key = "{}/{}/{}".format
    after = {
        key(d, n, path): content
        for d, draft in enumerate(drafts)
        for n, part in enumerate(draft.parts)
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
    for d, draft in enumerate(drafts):
        parts = tuple(
            replace(part, files={path: made[key(d, n, path)] for path in part.files})
            for n, part in enumerate(draft.parts)
        )
        again.append(replace(draft, parts=parts))
        last = {path: content for part in parts for path, content in part.files.items()}
        said = formatting.complaints(before, last, rules)
        wrong += [Problem("upstream-lint", draft.topic, complaint, step) for complaint in said]
    if wrong:
        raise Refused(wrong)
    return again, tuple(sorted(tidied))


def _build(
    repository: Repository, start: str, person: Person, date: int, queue: Queue, draft: _Draft
) -> PullRequest:
    commits = [
        Commit(text_of(queue, patch) + "\n", part.files)
        for patch, part in zip(draft.patches, draft.parts)
    ]
    tip = repository.build(start, commits, person, date)[-1]
    branch, mails = BRANCHES + draft.topic.replace("/", "-"), repository.mails(start, tip)
    return PullRequest(draft.topic, branch, Outcome.APPLIED, start, tip, draft.parts, mails)


def _refuse_others(
    repository: Repository, built: list[PullRequest], before: dict[str, str | None]
) -> None:
    """Raise Refused for branches of these names that are others, before any is made."""
    for request in built:
        if before[request.branch] not in (None, request.tip):
            put(repository, request.branch, before[request.branch], request.tip)


def _put(repository: Repository, request: PullRequest, before: str | None) -> PullRequest:
    outcome = put(repository, request.branch, before, request.tip)
    return replace(request, outcome=outcome)


def _folder(request: PullRequest, out: Path) -> Path:
    return out / request.topic.replace("/", "-")


def write(request: PullRequest, body: str, out: Path) -> tuple[Path, ...]:
    """The body as OUT/TOPIC/body.md and the mails beside it. Raises Refused where other mails are
    there."""
    folder = _folder(request, out)
    mails = write_mails(folder, request.mails)
    (folder / "body.md").write_text(body, encoding="utf-8")
    return (folder / "body.md", *mails)


def _reader(repository: Repository, commit: str) -> Read:
    known: dict[str, bytes | None] = {}

    def read(path: str) -> bytes | None:
        if path not in known:
            known[path] = repository.read(commit, path)
        return known[path]

    return read


def _over(laid: dict[str, bytes], read: Read) -> Read:
    return lambda path: laid[path] if path in laid else read(path)


def _stem(queue: Queue, patch: Patch) -> str:
    """A patch's name without variant and suffix: breakable/keep-break-tensors."""
    return queue.base(patch.name).removesuffix(".patch")
