"""Pull requests: for each Pending patch a branch on a user's checkout of upstream, and a text.

The folder pull-requests/TOPIC/PATCH/ is laid out as upstream's tree is. It holds tests, and, under
python/, files in place of the overlay's. A change@VERSION.patch there replaces the series' text
from that release up to the next one.

A folder without a patch in the series is a draft of upstream's code alone. Its text has a title and
a probe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import Struct
from packaging.version import Version

from ..applying.apply import load_queue
from ..applying.matching import Read, apply_patch, in_front, listing_with
from ..applying.selection import passes
from ..files import record
from ..files.tree import hash_python
from ..outcome import Outcome, Refused
from ..queue import patchfile
from ..queue.header import TREE_PATH, Header
from ..queue.patchfile import Patch
from ..queue.series import Queue, read_overlay
from ..upstream.pins import Pin, Pins
from .backport import PACKAGE, date_of, description
from .repository import Commit, open_repository

BRANCHES = "prefill-graph/"
FOLDER = Path("pull-requests")
NAME = "pull-request.toml"
BAD = "bad-pull-request"
STATUS, PENDING = "Upstream-Status", "Pending"
PROBE = re.compile(rf"{TREE_PATH} :: \S[^\n]*")


class Text(Struct, frozen=True, forbid_unknown_fields=True):
    """pull-request.toml. body: Markdown; title: where it is not the patch's subject; below: patches
    that its branch contains besides those that the header needs; probe: of a draft without a
    patch."""

    body: str
    title: str = ""
    below: tuple[str, ...] = ()
    probe: str = ""


@dataclass(frozen=True)
class Draft:
    """A patch, or a draft without one, as it is sent: one commit. source: the file that has its
    text, in messages; files: those that come along; below: names of drafts that its branch
    contains."""

    name: str
    source: str
    patch: Patch
    header: Header
    description: str
    files: Mapping[str, bytes]
    below: tuple[str, ...]
    text: Text

    @property
    def is_pending(self) -> bool:
        return self.header.get(STATUS) == PENDING

    @property
    def title(self) -> str:
        return self.text.title or self.header.get("Subject")


@dataclass(frozen=True)
class PullRequest:
    """A branch. tip: full hash; parts: its commits, of which the last is the draft's own."""

    branch: str
    outcome: Outcome
    tip: str
    parts: tuple[Draft, ...]

    @property
    def draft(self) -> Draft:
        return self.parts[-1]


@dataclass(frozen=True)
class Made:
    """pin: whose patches were taken; exact: it is the base; merged: drafts that that has."""

    pin: Pin
    exact: bool
    base: str
    requests: tuple[PullRequest, ...]
    merged: tuple[str, ...]


def make(root: Path, pins: Pins, onto: str, words: Iterable[str], base: str) -> Made:
    """Make a branch for each patch that `words` name (a topic, or TOPIC/PATCH; all where none is
    named).

    base: a commit of the repository at `onto`; where it is no pinned release, the newest pin's
    patches are applied to it. Raises Refused, with no branch made.
    """
    queue, repository = load_queue(root), open_repository(onto)
    repository.refuse_edits(base)
    author, start = repository.author(), repository.commit(base)
    files = repository.contents(start, "python", "test")
    if f"{PACKAGE}/version.py" not in files and f"{PACKAGE}/__init__.py" not in files:
        what, step = f"holds no {PACKAGE} at {base}", "give a git checkout of sglang: --onto PATH"
        raise Refused.of("no-sglang", repository.shown, what, step)
    exact = pins.with_tree(hash_python(listing_with({}, files)))
    pin, read = exact or pins.all[-1], files.get
    every = drafts(root, queue, pin)
    probed = {name: draft.header.probes for name, draft in every.items() if draft.is_pending}
    merged = [name for name, probes in probed.items() if any(passes(line, read) for line in probes)]
    if len(merged) == len(probed):
        what = f"no patch for it is {PENDING} that {base} lacks"
        raise Refused.of("nothing-pending", pin.tag, what, "see Upstream-Status in patches/")
    left = {name: draft for name, draft in every.items() if name not in merged}
    day, tips, stacks = date_of(pin, repository, start), {}, []
    for name in requested(left, words):
        stacks.append(tuple(_stack(left, name, set())))
        branch = BRANCHES + name.replace("/", "-")
        tips[branch] = repository.build(start, _commits(stacks[-1], read), author, day)[-1]
    outcomes = repository.publish(tips)  # every one is built before the first branch
    made = zip(tips, outcomes, tips.values(), stacks)
    return Made(pin, bool(exact), start, tuple(PullRequest(*each) for each in made), tuple(merged))


def requested(every: Mapping[str, Draft], words: Iterable[str]) -> list[str]:
    """The drafts to be sent, in the order of words. Raises Refused for one that names none."""
    pending = [name for name, draft in every.items() if draft.is_pending]
    topics = dict.fromkeys(name.partition("/")[0] for name in pending)
    chosen: dict[str, None] = {}
    for word in list(words) or topics:
        named = [name for name in pending if word in (name, name.partition("/")[0])]
        if not named:
            what = f"names no patch that is {PENDING}; topics are {' '.join(topics)}"
            step = f"or one patch of a topic: {' '.join(pending)}"
            raise Refused.of("unknown-topic", repr(word), what, step)
        chosen |= dict.fromkeys(named)
    return list(chosen)


def _stack(every: Mapping[str, Draft], name: str, begun: set[str]) -> Iterator[Draft]:
    """The draft, and those that it needs in front."""
    begun.add(name)
    for need in sorted(every.keys() & {*every[name].below}, key=list(every).index):
        if need not in begun:
            yield from _stack(every, need, begun)
    yield every[name]


def _commits(stack: Iterable[Draft], read: Read) -> Iterator[Commit]:
    """A commit for each draft. Raises Refused for a text that does not match, and for a new file
    that the base has."""
    laid: dict[str, bytes] = {}
    for draft in stack:
        below = in_front(laid, read)
        # upstream's tests are edited where the base has them: a wheel's has none
        diffs = (file for file in draft.patch.files if file.path[:5] != "test/" or below(file.path))
        row = apply_patch(replace(draft.patch, files=tuple(diffs)), below)
        if row.outcome is Outcome.CONFLICT:
            step = (
                "name what it stands on in `below` of its text, write a variant that fits this"
                " base, or name another: --base COMMIT"
            )
            raise Refused.of(str(row.outcome), draft.source, row.why, step)
        new = {path: content for path, content in draft.files.items() if path not in laid}
        if taken := [path for path in new if read(path) is not None]:
            what = "the base has a file of this name, and the pull request would add one"
            step = f"rename it below {FOLDER}/{draft.name}/"
            raise Refused.of("file-exists", taken[0], what, step)
        changed = {**row.after, **new}
        laid |= changed
        message = "\n\n".join(filter(None, [draft.title, draft.description]))
        yield Commit(f"{message}\n", changed)


def write(request: PullRequest, out: Path) -> Path:
    """Write OUT/TOPIC-PATCH/title.txt and body.md; the path of the body."""
    folder = out / request.draft.name.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "title.txt").write_text(f"{request.draft.title}\n", encoding="utf-8")
    (folder / "body.md").write_text(request.draft.text.body, encoding="utf-8")
    return folder / "body.md"


def drafts(root: Path, queue: Queue, pin: Pin) -> dict[str, Draft]:
    """A draft for each patch that a release gets, by name, in the series' order; then those without
    a patch. Raises Refused for a bad text."""
    files = sorted((root / FOLDER).glob(f"*/*/{NAME}"))
    texts = {file.parent.relative_to(root / FOLDER).as_posix(): read_text(file) for file in files}
    every: dict[str, Draft] = {}
    for patch in queue.select(pin.version):
        header, name = queue.header(patch.name), queue.base(patch.name).removesuffix(".patch")
        overlay, text = queue.overlay_for([patch]), texts.get(name, Text(""))
        draft = _draft(root, pin, patch, header, overlay, text)
        every[name] = replace(draft, description=description(queue, patch))
    known = {entry.base.removesuffix(".patch") for entry in queue.entries}
    for name, text in texts.items():
        if name in known:
            continue
        if not (text.title and PROBE.fullmatch(text.probe)):
            what = f"no patch of the series is named {name!r}, and it lacks a title or a probe"
            step = "name the folder as its patch, or write the probe as `PATH :: TEXT`"
            raise Refused.of(BAD, f"{FOLDER}/{name}/{NAME}", what, step)
        words = (("Subject", text.title), (STATUS, PENDING), ("Probe", text.probe))
        begun = Patch(f"{name}.patch", b"", Header(words), ())
        draft = _draft(root, pin, begun, begun.header, {}, text)
        if draft.patch.files or any(path.startswith("python/") for path in draft.files):
            every[name] = draft
    for draft in every.values():
        if unknown := {*draft.text.below} - known - texts.keys():
            what = f"below names no patch: {min(unknown)!r}"
            raise Refused.of(BAD, f"{FOLDER}/{draft.name}/{NAME}", what, "name it as TOPIC/PATCH")
    return every


def _draft(
    root: Path, pin: Pin, patch: Patch, header: Header, overlay: Mapping[str, bytes], text: Text
) -> Draft:
    """A patch with what its folder in pull-requests/ has in place of its text and of the overlay's
    files."""
    name = re.sub(r"(@.*)?\.patch$", "", patch.name)
    changes = {
        Version(file.stem.partition("@")[2]): file
        for file in (root / FOLDER / name).glob("change@*.patch")
    }
    fitting = [version for version in changes if version <= pin.version]
    source = f"patches/{patch.name}"
    if fitting:
        file = changes[max(fitting)]
        source = str(file.relative_to(root))
        made, problems = patchfile.read(patch.name, file.read_bytes())
        if made is None or problems:
            raise Refused(replace(problem, where=source) for problem in problems)
        patch = made
    own = read_overlay(root / FOLDER / name).items()
    files = {path: content for path, content in own if "/" in path}
    if not fitting and not any(path.startswith("python/") for path in files):
        files = {**overlay, **files}
    below = (*(need.removesuffix(".patch") for need in header.needs), *text.below)
    return Draft(name, source, patch, header, "", files, below, text)


def read_text(file: Path) -> Text:
    """The text of a pull request. Raises Refused where it is wrong."""
    where, step = "/".join(file.parts[-4:]), "CONTRIBUTING.md says what stands in it"
    return record.toml(file.read_bytes(), Text, where, BAD, step)
