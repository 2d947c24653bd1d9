"""A release branch: one commit for each patch on a user's checkout of a pinned release, the same
hashes every time."""

from __future__ import annotations

import datetime
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..applying.apply import load_queue
from ..applying.matching import in_front, replay
from ..applying.own_changes import NONE, in_git
from ..applying.selection import Selection, select, settle
from ..files.tree import hash_python, sha256
from ..outcome import Outcome, Problem, Refused, to_type
from ..queue.header import Header
from ..queue.patchfile import Patch
from ..queue.series import PROVENANCE, Queue
from ..upstream import source
from ..upstream.pins import Pin, Pins
from ..upstream.release import Edits, between, refuse_other
from ..wheels import local_version
from .repository import Commit, Repository, open_repository

Read = Callable[[str], "bytes | None"]
PACKAGE = "python/sglang"
WIDTH = 72
REPORT = ("prefill-graph/report-verdict", "prefill-graph/count-prefills", "prefill-graph/log-tree")
BESIDE = "its lines stand beside those of a patch that is left out: leave it out too, or neither"


@dataclass(frozen=True)
class Branch:
    """A branch that was made, or was there. base, commits: full hashes; subjects: one for each
    commit; edits: what the base has besides the release; tree: of its last commit."""

    name: str
    outcome: Outcome
    pin: Pin
    base: str
    commits: tuple[str, ...]
    subjects: tuple[str, ...]
    edits: Edits = NONE
    tree: str = ""


def backport(
    root: Path,
    pins: Pins,
    onto: str,
    name: str,
    base: str,
    release: str = "",
    without: Sequence[str] = (),
    only: str = "",
) -> Branch:
    """Make the branch `name` in the repository at `onto`: the commit `base`, a pinned release or a
    fork of one, with the queue on it.

    release: the one that a fork is made of, where its tags do not say; without: patches that are
    left out, as breakable/keep-break-tensors, and those of REPORT that the release gets; only: the
    profile whose patches the branch gets, "" for every patch.

    A branch of that name is left alone: it is ALREADY_APPLIED where it is this very one, else
    Refused. Refused too, with no branch made, for a tree that is no pinned release, uncommitted
    edits where `base` is HEAD, no author, and patches that do not fit or cannot be left out.
    """
    queue = load_queue(root, only)
    repository = open_repository(onto)
    before = repository.branch(name)
    repository.refuse_edits(base)
    person, start = repository.person(), repository.commit(base)
    pin = release_of(repository, start, pins) or _forked(repository, start, pins, release)
    if pin is None:
        raise Refused(_no_release(repository, start, base, pins))
    released = {queue.base(patch.name) for patch in queue.select(pin.version)}
    left_out = [stem for stem in without if stem not in REPORT or f"{stem}.patch" in released]
    selection = select(queue, pin, left_out)
    wanted, edits = _wanted(repository, selection, start, f"{repository.shown}: {base}")
    made = repository.build(start, wanted, person, date_of(pin, repository, start))
    outcome = repository.put(name, before, made[-1])
    subjects = tuple(commit.message.partition("\n")[0] for commit in wanted)
    tree = hash_python(repository.listing(made[-1], PACKAGE))
    return Branch(name, outcome, pin, start, tuple(made), subjects, edits, tree)


def _wanted(
    repository: Repository, selection: Selection, start: str, where: str
) -> tuple[list[Commit], Edits]:
    """The commits to make, and what the base has besides the release. Raises Refused where a patch
    does not fit."""
    pin, listing = selection.pin, repository.listing(start, PACKAGE)
    edits, read = _edits(repository, selection, listing, where), partial(repository.read, start)
    if edits.paths or not selection.queue.whole:  # patches stand at other lines
        branch = to_type("backport", f"--onto {repository.shown} --base {pin.tag} BRANCH")
        merge = "`git merge BRANCH` in the fork merges both sides"
        step = f"{branch} begins at the release; {merge}" if edits.paths else BESIDE
        selection = settle(selection, read, where, step)
    return list(commits(selection, listing, read, edits)), edits


def _forked(repository: Repository, commit: str, pins: Pins, release: str) -> Pin | None:
    """The release that a commit is a fork of: the one that is named, else the newest pinned tag
    that it comes from."""
    if release:
        return pins.find(release)
    tagged = (pin for pin in reversed(pins.all) if repository.has_tag(pin.tag))
    return next((pin for pin in tagged if repository.comes_from(commit, pin.tag)), None)


def _edits(
    repository: Repository, selection: Selection, listing: Mapping[str, str], where: str
) -> Edits:
    """What a commit has besides its release. Raises Refused where that is another release."""
    pin = selection.pin
    if hash_python(listing) == pin.tree:
        return NONE
    tag = f"refs/tags/{pin.tag}"
    whole = repository.has_tag(pin.tag) and pin == release_of(
        repository, tag, Pins((pin,), pin, ())
    )
    release = (
        repository.listing(tag, PACKAGE)
        if whole
        else {
            path: each
            for path, each in source.fetch(pin, None).listing().items()
            if path.startswith(f"{PACKAGE}/")
        }
    )
    edits = between(release, listing, whole)
    refuse_other(where, pin, release, edits, selection.touched)
    return edits


def release_of(repository: Repository, commit: str, pins: Pins) -> Pin | None:
    """The pinned release whose Python files a commit has, all of them and no other; None where it
    is none."""
    found = hash_python(repository.listing(commit, PACKAGE))
    return next((pin for pin in pins.all if pin.tree == found), None)


def commits(
    selection: Selection, before: Mapping[str, str], read: Read, edits: Edits = NONE
) -> Iterator[Commit]:
    """One for each patch, in the series' order, at exact lines. Raises Refused for the first that
    does not fit.

    before: the listing of the release's package; edits: what others made of it. An overlay file
    comes with the first patch that needs it. The record of what the tree was made of, and its
    listing, come with the last: only there are they true.
    """
    laid: dict[str, bytes] = {}
    queue, pin, patches = selection.queue, selection.pin, selection.patches
    record = {path: text for path, text in selection.overlay.items() if path == PROVENANCE}
    for patch in patches:
        new = {
            path: content
            for path, content in queue.overlay_for([patch]).items()
            if path not in laid
        }
        new |= record if patch is patches[-1] else {}
        done = replay([patch], new, in_front(laid, read), pin.tag)
        if done.problems:
            raise Refused(done.problems)
        laid.update(done.files)
        after = {**before, **{path: sha256(content) for path, content in laid.items()}}
        listing = in_git(laid, read, after, edits) if patch is patches[-1] else {}
        yield Commit(message(queue, patch, pin), done.files | listing)


def message(queue: Queue, patch: Patch, pin: Pin) -> str:
    """A commit's message: subject and description of the header, and trailers that say which patch
    it is."""
    header = queue.header(patch.name)
    trailers = {
        "Queue-Patch": patch.name,
        "Queue-Patch-Sha256": sha256(patch.content),
        "Queue-Release": local_version(pin, queue.profile),
        "Origin": header.get("Origin"),
        "Upstream-Status": _upstream_status(header),
    }
    return f"{text_of(queue, patch)}\n\n" + "".join(
        f"{name}: {value}\n" for name, value in trailers.items()
    )


def _upstream_status(header: Header) -> str:
    """The status; of a merged patch with the pull requests that its origin names."""
    status = header.get("Upstream-Status")
    pull_requests = re.findall(r"sglang#\d+", header.get("Origin"))
    return ", ".join([status, *pull_requests]) if status.startswith("Merged ") else status


def text_of(queue: Queue, patch: Patch) -> str:
    """Subject and description, of a variant with its own description behind; paragraphs as wide as
    git's log likes them."""
    header = queue.header(patch.name)
    own = [patch.header.get("Description")] if patch.header.is_variant else []
    paragraphs = [
        part
        for text in (header.get("Description"), *own)
        for part in re.split(r"\n\s*\n", text)
        if part.strip()
    ]
    whole = textwrap.TextWrapper(WIDTH, break_long_words=False, break_on_hyphens=False)
    filled = [whole.fill(part) for part in paragraphs]
    return "\n\n".join([header.get("Subject"), *filled])


def date_of(pin: Pin, repository: Repository, base: str) -> int:
    """When the commits say they were made: the release's day, or the base's own time where that is
    later."""
    day = datetime.datetime.combine(pin.released, datetime.time(), datetime.timezone.utc)
    return max(int(day.timestamp()), repository.date(base))


def _no_release(repository: Repository, commit: str, base: str, pins: Pins) -> Problem:
    """Why a commit is no base: it has no release's files, and comes from no release's tag."""
    tags = (f"refs/tags/{pin.tag}" for pin in reversed(pins.all) if repository.has_tag(pin.tag))
    here = [pin.tag for tag in tags if (pin := release_of(repository, tag, pins))]
    fetch = f"`git -C {repository.shown} fetch --tags`, then name a release: --base"
    hint = f"name a release: --base {here[0]}" if here else f"{fetch} {pins.default.tag}"
    what = f"{commit[:12]} has the {PACKAGE} of no pinned release, and comes from no tag of one"
    step = f"{hint}; or the one that it is made of: --release RELEASE"
    return Problem("no-pinned-release", f"{repository.shown}: {base}", what, step)
