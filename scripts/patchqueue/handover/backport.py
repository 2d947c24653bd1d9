"""The queue on a release, or on a fork of one: as a branch of a user's checkout, a commit for each
patch, the same hashes every time; and as one patch file, for `git apply` and `patch -p1`, with the
hashes that `git apply --3way` needs."""

from __future__ import annotations

import calendar
import logging
import os
import re
import shutil
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from .. import RELEASE
from ..applying.apply import NO_EDITS, in_git, load_queue
from ..applying.matching import in_front, listing_with, replay
from ..applying.selection import Selection, select, settle
from ..files import atomic, run
from ..files.tree import hash_python, sglang_part, sha256
from ..outcome import Outcome, Refused, counted, some, to_type
from ..queue.patchfile import CONTEXT, Patch
from ..queue.series import PROVENANCE, Queue
from ..upstream import pins as pinning
from ..upstream.pins import Pin, Pins
from ..upstream.release import Edits, between, of_folder, refuse_other
from ..upstream.source import fetch, file_sha256
from ..wheels import build, local_version
from .repository import Commit, Repository, open_repository

PACKAGE = "python/sglang"
WIDTH = 72
REPORT = ("prefill-graph/report-verdict", "prefill-graph/count-prefills", "prefill-graph/log-tree")
HARNESS = "revision/conftest.py revision/host/**/*.py models/*.json gpu/*.py"
IMPORTED = re.compile(r"(?m)^ *(?:import|from) (test_\w+)")  # tests, for what they define
PACKAGES = re.compile(r"(?m)^ *from (sglang\.srt\.prefill_graph[\w.]*) import")
BESIDE = "its lines stand beside those of a patch that is left out: leave it out too, or neither"
TESTS = """Add the tests of the patches, which need pytest and no GPU

PYTHONPATH=python PATCHQUEUE_TREE=. PATCHQUEUE_REVISION={} python -m pytest tests/revision
"""
MERGE = "begins at the release; `git merge BRANCH` in the fork merges both sides"
LOG = logging.getLogger(__name__)
LINKS, SUMS = "index.html", "SHA256SUMS"
TAG = f"pcg-{RELEASE}"
QUEUE = ("overlay", "patches", "series", "upstream/pins.toml")  # what the tag fixes
EITHER = "change one of the two so that both fit, or merge a branch of backport into it"


@dataclass(frozen=True)
class Base:
    """What the queue is applied to. edits: what it has besides the release; step: for a
    conflict."""

    where: str
    files: Mapping[str, bytes] = field(repr=False)
    edits: Edits = NO_EDITS
    step: str = BESIDE

    @cached_property
    def listing(self) -> dict[str, str]:
        return sglang_part(listing_with({}, self.files))


@dataclass(frozen=True)
class Branch:
    """A branch that was made, or was there. base, commits: full hashes; tree: of the last."""

    name: str
    outcome: Outcome
    pin: Pin
    base: str
    commits: tuple[str, ...]
    subjects: tuple[str, ...]
    edits: Edits
    tree: str


def backport(
    root: Path,
    onto: str,
    name: str,
    base: str,
    release: str = "",
    without: Sequence[str] = (),
    only: str = "",
    tests: bool = False,
) -> Branch:
    """Make the branch `name` in the repository at `onto`: the commit `base`, a pinned release or a
    fork of one, with the queue on it.

    release: the one that a fork is made of, where its tags do not say; without: patches that are
    left out, and those of REPORT that the release gets; only: the profile, "" for every patch;
    tests: with the patches' tests. Raises Refused, with no branch made. A branch of that name is
    left alone.
    """
    queue, pins, repository = load_queue(root, only), pinning.load(root), open_repository(onto)
    repository.branch(name)  # refused before the work
    repository.refuse_edits(base)
    author, start = repository.author(), repository.commit(base)
    found = Base(f"{repository.shown}: {base}", repository.contents(start, PACKAGE))
    pin = pins.with_tree(hash_python(found.listing))
    pin = pin or _forked(repository, start, pins, release, found.where)
    released = {queue.base(patch.name) for patch in queue.select(pin.version)}
    left_out = [stem for stem in without if stem not in REPORT or f"{stem}.patch" in released]
    selection = select(queue, pin, left_out)
    again = to_type("backport", f"--onto {onto} --base {pin.tag} BRANCH")
    fork = _compared(found, selection, f"{again} {MERGE}")
    selection = settle(selection, fork.files.get, fork.where, fork.step)
    wanted = [*commits(selection, fork), *([tests_of(root, selection)] if tests else [])]
    made = repository.build(start, wanted, author, date_of(pin, repository, start))
    (outcome,) = repository.publish({name: made[-1]})
    subjects = tuple(commit.message.partition("\n")[0] for commit in wanted)
    tree = hash_python(listing_with(fork.listing, changed_by(wanted)))
    return Branch(name, outcome, pin, start, tuple(made), subjects, fork.edits, tree)


def _forked(repository: Repository, commit: str, pins: Pins, release: str, where: str) -> Pin:
    """The release that a commit is a fork of: as named, else its newest pinned tag."""
    if release:
        return pins.find(release)
    known, tags = repository.tags(), repository.tags("--merged", commit)
    newest = [pin for pin in reversed(pins.all) if pin.tag in known]
    if merged := [pin for pin in newest if pin.tag in tags]:
        return merged[0]
    hint = f"`git -C {repository.shown} fetch --tags`, then name a release: --base"
    hint = f"name a release: --base {newest[0].tag}" if newest else f"{hint} {pins.default.tag}"
    what = f"{commit[:12]} has the {PACKAGE} of no pinned release, and comes from no tag of one"
    step = f"{hint}; or the one that it is made of: --release RELEASE"
    raise Refused.of("no-pinned-release", where, what, step)


def _compared(found: Base, selection: Selection, step: str) -> Base:
    """A tree with its edits of the release. Raises Refused where the tree is another release."""
    pin = selection.pin
    if hash_python(found.listing) == pin.tree:
        return found
    release = sglang_part(fetch(pin, None).listing())
    edits = between(release, found.listing, whole=False)
    refuse_other(found.where, pin, release, edits, selection.touched)
    return replace(found, edits=edits, step=step)


def commits(selection: Selection, base: Base) -> Iterator[Commit]:
    """One for each patch, in the series' order. An overlay file comes with the first patch that
    needs it; the tree's records come with the last: only there are they true."""
    laid: dict[str, bytes] = {}
    queue, pin, patches = selection.queue, selection.pin, selection.patches
    record = {path: text for path, text in selection.overlay.items() if path == PROVENANCE}
    for patch in patches:
        needed = queue.overlay_for([patch]) | (record if patch is patches[-1] else {})
        new = {path: content for path, content in needed.items() if path not in laid}
        done = replay([patch], new, in_front(laid, base.files.get), pin.tag)
        laid.update(done.files)
        listing: dict[str, bytes] = {}
        if patch is patches[-1]:
            listing = in_git(laid, base.files.get, listing_with(base.listing, laid), base.edits)
        yield Commit(message(queue, patch, pin), done.files | listing)


def tests_of(root: Path, selection: Selection) -> Commit:
    """The commit that adds the tests of a selection's patches, but those of what it lacks."""
    queue, named = load_queue(root), (set[str](), set[str]())  # by left out, brought
    for patch in (every := queue.select(selection.pin.version)):
        named[patch in selection.patches].update(queue.header(patch.name).tests)
    files = {file for each in HARNESS.split() for file in (root / "tests").glob(each)}
    absent = queue.overlay_for(every).keys() - selection.overlay.keys()
    for test in named[True] - named[False]:
        needed, packages = [test], set[str]()
        for name in needed:  # and those that it imports
            text = (root / name).read_text("utf-8")
            packages |= {
                f"python/{at.replace('.', '/')}/__init__.py" for at in PACKAGES.findall(text)
            }
            others = (f"tests/revision/{one}.py" for one in IMPORTED.findall(text))
            needed += [path for path in others if path not in needed]
        if named[False].isdisjoint(needed) and absent.isdisjoint(packages):
            files |= {root / name for name in needed}
    tests = {file.relative_to(root).as_posix(): file.read_bytes() for file in files}
    return Commit(TESTS.format(selection.pin.version), tests)


def changed_by(wanted: Iterable[Commit]) -> dict[str, bytes]:
    """The files that commits change or add, as they are after the last."""
    return {path: content for commit in wanted for path, content in commit.files.items()}


def message(queue: Queue, patch: Patch, pin: Pin) -> str:
    """A commit's message: subject, description, and trailers that say which patch it is."""
    header = queue.header(patch.name)
    trailers = {
        "Queue-Patch": patch.name,
        "Queue-Patch-Sha256": sha256(patch.content),
        "Queue-Release": local_version(pin, queue.profile),
        "Origin": header.get("Origin"),
        "Upstream-Status": header.get("Upstream-Status"),
    }
    last = "".join(f"{name}: {value}\n" for name, value in trailers.items())
    return "\n\n".join([header.get("Subject"), description(queue, patch), last])


def description(queue: Queue, patch: Patch) -> str:
    """What a header says below the subject, and a variant's own header behind it."""
    header = queue.header(patch.name)
    texts = dict.fromkeys(each.get("Description") for each in (header, patch.header))
    paragraphs = re.split(r"\n\s*\n", "\n\n".join(filter(None, texts)))
    whole = textwrap.TextWrapper(WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n\n".join(whole.fill(part) for part in paragraphs)


def date_of(pin: Pin, repository: Repository, base: str) -> int:
    """When the commits say they were made: the release's day, or the base's, if later."""
    return max(calendar.timegm(pin.released.timetuple()), repository.date(base))


@dataclass(frozen=True)
class PatchFile:
    """The written file, with numbers of files; tree: the hash of the tree with it."""

    path: Path
    sha256: str
    patches: int
    changed: int
    added: int
    edited: int
    tree: str


def write_patch(
    root: Path, pin: Pin, base: Path | None, out: Path, only: str = "", without: Sequence[str] = ()
) -> PatchFile:
    """Write the file `out`. base: a tree with this release and edits of others. Raises Refused."""
    selection = select(load_queue(root, only), pin, without)
    if base:
        found = Base(str(base), of_folder(pin.version, base).files)
        onto = _compared(found, selection, EITHER)
    else:
        onto = Base(pin.tag, fetch(pin, None).contents())
    selection = settle(selection, onto.files.get, onto.where, onto.step)
    after = changed_by(commits(selection, onto))
    before = {path: onto.files[path] for path in after if path in onto.files}
    content = _head(selection).encode() + diff(before, after)
    atomic.write(out, content)
    counts = len(selection.patches), len(before), len(after) - len(before), len(onto.edits.paths)
    return PatchFile(out, sha256(content), *counts, hash_python(listing_with(onto.listing, after)))


def _head(selection: Selection) -> str:
    """What stands before the first file: git and patch pass over it."""
    pin, queue = selection.pin, selection.queue
    names = {each.name: queue.header(each.name).get("Subject") for each in selection.patches}
    rows = (f"  {name.removesuffix('.patch')}: {subject}\n" for name, subject in names.items())
    count, version = counted(len(names), "patch", "patches"), local_version(pin, queue.profile)
    how = "In the root of a checkout: git apply FILE; elsewhere: patch -p1 < FILE."
    title = f"The prefill graph queue for sglang {pin.version}, {version}: {count}."
    return f"{title}\n{how}\n\n{''.join(rows)}\n"


def diff(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> bytes:
    """What makes these files of those before, in git's form, sorted by path."""
    with tempfile.TemporaryDirectory(prefix="patchqueue-diff-") as space:
        repository = Repository(Path(space), space, own=True)
        repository.git("init", "-q", "--bare")
        sides = [Commit("before", before), Commit("after", after)]
        ends = repository.build("", sides, "patch queue <>", 0)
        words = ("--patch", "--full-index", "--no-renames", "--text", f"-U{CONTEXT}")
        return repository.git("diff-tree", *words, *ends)


def make_release(root: Path, chosen: Sequence[Pin]) -> Path:
    """Build wheels and patch files into dist/release-N/, whole or not at all. Raises Refused."""
    _refuse_other_content(root)
    folder = root / "dist" / f"release-{RELEASE}"
    unfinished = folder.with_name(f".{folder.name}.new")
    with atomic.locked(folder.with_name(f".{folder.name}.lock")):
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for pin in chosen:
            patch = unfinished / f"sglang-{local_version(pin)}.patch"
            write_patch(root, pin, None, patch)
            for wheel in pin.wheels:
                build(root, pin, wheel, None, unfinished)
            LOG.info(f"{pin.tag}: {counted(len(pin.wheels), 'wheel')} and {patch.name}")
        (unfinished / LINKS).write_text(_links(unfinished), encoding="utf-8")
        files = sorted(unfinished.iterdir(), key=lambda path: path.name)
        sums = "".join(f"{file_sha256(path)}  {path.name}\n" for path in files)
        (unfinished / SUMS).write_text(sums, encoding="utf-8")  # as `sha256sum *` prints them
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(unfinished, folder)
    return folder


def _refuse_other_content(root: Path) -> None:
    """Raise Refused if this number is tagged, and the queue was changed since."""
    if not (root / ".git").exists() or not run.git(root, "tag", "--list", TAG).stdout:
        return
    changed = run.git(root, "diff", "--name-only", "-z", TAG, "--", *QUEUE).stdout
    added = run.git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *QUEUE).stdout
    names = (changed + added).decode("utf-8", "replace").split("\0")[:-1]
    if names:
        step = f"check out {TAG}, or raise RELEASE in scripts/patchqueue/__init__.py"
        what = f"was tagged with another content of {some(names)}"
        raise Refused.of("released", f"release {RELEASE}", what, step)


def _links(folder: Path) -> str:
    """A page with a link to each wheel beside it, and its sha256, which pip and uv compare."""
    rows = [
        f'<a href="{quote(path.name)}#sha256={file_sha256(path)}">{path.name}</a><br>\n'
        for path in sorted(folder.glob("*.whl"))
    ]
    title = f"sglang, release {RELEASE} of the patch queue"
    return f"<!DOCTYPE html>\n<title>{title}</title>\n{''.join(rows)}"
