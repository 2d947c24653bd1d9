"""Cut a release of the queue: its record, the heading of its changes, the commit and the tag. And
begin the next one."""

from __future__ import annotations

import datetime
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from .. import RELEASE
from ..files import atomic, run
from ..files.locking import locked
from ..hint import some, to_type
from ..laying.apply import finish_writing
from ..laying.check import check
from ..outcome import Problem, Refused
from ..queue import released
from ..queue.released import NUMBERED, Release, Revision
from ..upstream.pins import Pins
from ..wheels.build import LABEL
from . import assets, changelog
from .assets import Choice, Made

PAGES = ("README.md", "docs/*.md")
TITLE = f"Release {RELEASE} of the queue"  # of the commit and the tag


@dataclass(frozen=True)
class Cut:
    """A release that was cut. commit: full hash; tag: as git has it."""

    made: Made
    commit: str
    tag: str


def rebuild(root: Path, choice: Choice) -> tuple[Made, Release | None]:
    """Build what is chosen, and compare it with the release where that was cut.

    Of a release that was cut with some wheels alone, no others are made. Raises Refused where a
    file is not the one that was published; dist/release-N/ is then removed.
    """
    finish_writing(root)
    found = released.read(root, RELEASE)
    choice = replace(choice, among=frozenset(found.assets)) if found else choice
    changes = changelog.entry(changelog.read(root), RELEASE, cut=found is not None)
    made = assets.make(root, choice, changes)
    problems = released.mismatches(found, made.assets) if found else []
    if problems:
        shutil.rmtree(made.folder)
        raise Refused(problems)
    return made, found


def refuse_tag(root: Path, tag: str) -> None:
    """Raise Refused unless `tag` is that of the release in this tree, and it was cut."""
    finish_writing(root)
    if tag != released.tag(RELEASE):
        what = f"is not the tag of this tree, whose release is {RELEASE}"
        raise Refused.of("other-tag", tag, what, f"check out {tag}")
    if released.read(root, RELEASE) is None:
        what = f"names a release that was not cut: there is no {released.file(RELEASE)}"
        raise Refused.of("not-cut", tag, what, f"{to_type('release', '--cut')} makes the tag")


def cut(root: Path, pins: Pins, choice: Choice, day: datetime.date) -> Cut:
    """Build the release, write what it is made of, and commit and tag it in the queue's repository.

    Killed, or failed, the same call goes on from what is written, and from what is committed.
    Raises Refused, with nothing committed, where the queue has a problem, the release was cut
    already, its changes or the queue's address are not written, or the repository has edits.
    """
    finish_writing(root)
    begun = _begun(root)
    if not begun:
        _refuse_unready(root)
    report = check(root, pins.all, None)
    if report.all_problems:
        raise Refused(report.all_problems)
    try:
        made = rebuild(root, choice)[0] if begun else _written(root, pins, choice, day)
        return Cut(made, *_recorded(root))
    except KeyboardInterrupt:
        if not released.read(root, RELEASE):
            raise
        what = f"release {RELEASE} may lack its commit or its tag;"
        raise KeyboardInterrupt(f"{what} {to_type('release', '--cut')} makes them") from None


def _written(root: Path, pins: Pins, choice: Choice, day: datetime.date) -> Made:
    """Build the release, and write its record and the heading of its changes."""
    text = changelog.named(changelog.read(root), RELEASE, day)
    made = assets.make(root, choice, changelog.entry(text, RELEASE, cut=True))
    revisions = tuple(_revisions(root, pins, made))
    release = Release(RELEASE, day, zlib.ZLIB_RUNTIME_VERSION, revisions)
    record = released.text(release, to_type("release", "--cut"))
    _write(root, dict(zip(_files(), (text.encode(), record))))
    return made


def _recorded(root: Path) -> tuple[str, str]:
    """Commit what is written where that is not done, and tag the commit; its hash, and the tag."""
    tag = released.tag(RELEASE)
    if _edits(root):
        _git(root, "add", "--", *_files())
        _git(root, "commit", "--quiet", "--message", TITLE, "--", *_files())
    commit = _git(root, "rev-parse", "HEAD").strip()
    message = f"{TITLE}\n\n{changelog.entry(changelog.read(root), RELEASE, cut=True)}"
    _git(root, "tag", "--annotate", "--cleanup=verbatim", "--message", message, tag)
    return commit, tag


def _begun(root: Path) -> bool:
    """Whether a cut was written and not committed, or committed by the last commit and not tagged:
    killed there, it goes on."""
    found = released.read(root, RELEASE)
    if not found or _git(root, "tag", "--list", released.tag(RELEASE)).strip():
        return False
    edits = _edits(root)
    if not edits:
        return _git(root, "log", "-1", "--format=%s").strip() == TITLE
    before = _git(root, "show", f"HEAD:{changelog.FILE}")
    named = changelog.named(before, RELEASE, found.day)
    return {*edits} == {*_files()} and changelog.read(root) == named


def _files() -> tuple[str, str]:
    return str(changelog.FILE), str(released.file(RELEASE))


def _edits(root: Path) -> list[str]:
    """The paths that git has otherwise than its last commit."""
    words = ("status", "--porcelain", "--untracked-files=all", "--no-renames", "-z")
    return [line[3:] for line in _git(root, *words).split("\0") if line]


def _revisions(root: Path, pins: Pins, made: Made) -> Iterator[Revision]:
    """Every pinned release with its hashes: those that were built with their files too."""
    built = {each.version: each for each in made.revisions}
    for now in assets.today(root, pins):
        yield built.get(now.version, Revision(now.version, now.queue, now.changes))


def _refuse_unready(root: Path) -> None:
    problems = []
    where = str(released.file(RELEASE))
    if released.read(root, RELEASE):
        step = f"{to_type('release', '--next')} begins the next one"
        problems.append(Problem("cut-already", where, f"release {RELEASE} was cut already", step))
    if not released.repository(root):
        what = "has no repository: a patched wheel says where its users write to"
        step = 'write repository = "https://…", the address that users clone'
        problems.append(Problem("no-address", str(released.ABOUT), what, step))
    if edits := _edits(root):
        names = some(edits)
        step = "commit them, or put them away"
        problems.append(Problem("edited", "git status", f"has edits: {names}", step))
    if _git(root, "tag", "--list", released.tag(RELEASE)).strip():
        what, step = "is there already", "remove it, if it was not pushed"
        problems.append(Problem("tag-exists", released.tag(RELEASE), what, step))
    if problems:
        raise Refused(problems)


def begin(root: Path, number: int) -> list[str]:
    """Begin the release after `number`: RELEASE, an empty `## Next`, and the number on the pages;
    the paths that were written. Raises Refused where `number` was not cut."""
    finish_writing(root)
    if released.read(root, number) is None:
        what = f"is not cut, so that work goes on in it: there is no {released.file(number)}"
        step = f"{to_type('release', '--cut')} cuts it"
        raise Refused.of("not-cut", f"release {number}", what, step)
    files = {
        NUMBERED: re.sub(
            rf"(?m)^RELEASE = {number}$", f"RELEASE = {number + 1}", (root / NUMBERED).read_text()
        ),
        str(changelog.FILE): changelog.begun(changelog.read(root)),
    }
    for path in (path for pattern in PAGES for path in sorted(root.glob(pattern))):
        files[path.relative_to(root).as_posix()] = renumbered(
            path.read_text(encoding="utf-8"), number
        )
    changed = {
        name: text.encode()
        for name, text in files.items()
        if (root / name).read_text(encoding="utf-8") != text
    }
    _write(root, changed)
    return [*changed]


def _write(root: Path, files: Mapping[str, bytes]) -> None:
    """All of them or none, as everything that is written into the queue."""
    with locked(root / atomic.QUEUE_LOCK):
        atomic.write_all(root, files, root / atomic.JOURNAL)


def renumbered(page: str, number: int) -> str:
    """A page with the next number in the names of wheels, and in a server's first line."""
    page = re.sub(rf"\+{LABEL}\.{number}(?!\d)", f"+{LABEL}.{number + 1}", page)
    page = re.sub(rf"\brelease-{number}(?!\d)", f"release-{number + 1}", page)
    return re.sub(rf"\bqueue release {number}(?=, )", f"queue release {number + 1}", page)


def _git(root: Path, *words: str) -> str:
    """In the queue's own repository, by the user's name."""
    return run.git(root, *words, more=run.NO_SYSTEM).stdout.decode("utf-8", "replace")
