"""Change files of a folder so that a kill at any moment can be made good, and take every change
back to the last byte.

Beside what is changed lies the journal's own folder. It is made aside and renamed into place before
the first file is touched, and then holds all that is needed to go on or back: every file as it was,
every file as it will be, their sha256, and the state. Files are never written in place: each is
renamed over its forerunner, so that a reader sees the one or the other, and a hard link elsewhere
(uv links from its cache) keeps the old bytes. The file as it was is kept twice: as a hard link
where that can be, so that it comes back itself, with mode, owner, times and links; and as a copy,
should somebody write to it.

planned (aside) -> INSTALLING (renamed into place) -> each file renamed -> INSTALLED -> REMOVING ->
each file renamed back -> REMOVED -> gone
"""

from __future__ import annotations

import enum
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..files import atomic, disk
from ..files.tree import sha256
from ..hint import some, to_type
from ..outcome import Refused
from ..upstream.source import LEAVES_THE_TREE

# beside sglang/; the dot keeps Python from importing it, and a person finds it
FOLDER = "sglang.patch-queue"
_PREPARING = f".{FOLDER}.preparing"
RECORD, STATE, README, BEFORE, LINKS, AFTER, MERGED = (
    "journal.json",
    "state",
    "README",
    "before",
    "links",
    "after",
    "merged",
)
ABOUT = """The sglang beside this folder has been patched in place by the sglang patch queue. This folder takes that back.
before/ holds each file as it was (links/ the file itself), journal.json what was changed (sha256). state says how far it got.
merged/, where it is there, holds files that somebody edited since, with that edit and without the patches.
    {uninstall}
Deleting this folder makes the patches permanent; reinstalling sglang also removes them.
"""  # noqa: E501


class State(str, enum.Enum):
    """How far the work on a folder has got."""

    INSTALLING = "installing"  # any number of files are as they will be, the others as they were
    INSTALLED = "installed"
    REMOVING = "removing"  # the same, on the way back
    REMOVED = (  # every file is as it was, or another's; only the journal itself has still to go
        "removed"
    )

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Change:
    """One file, by its path below the folder. before, after: the sha256 in hex, "" where there is
    no file."""

    path: str
    before: str
    after: str

    @property
    def is_byte_code(self) -> bool:
        return self.path.endswith(".pyc")


@dataclass(frozen=True)
class Journal:
    """The journal of one folder. folders: those that the changes make, parents first; record: what
    its maker says of it."""

    site: Path
    state: State
    changes: tuple[Change, ...]
    folders: tuple[str, ...]
    record: dict[str, Any]

    @property
    def path(self) -> Path:
        return self.site / FOLDER

    def way_out(self) -> str:
        """A path of the journal that leads, or could lead, out of the folder that it lies in; empty
        where none does. Who may write that folder need not be who takes the changes back."""
        paths = [*(change.path for change in self.changes), *self.folders]
        named = next((path for path in paths if LEAVES_THE_TREE.search(path)), None)
        if named is not None:
            return repr(named)
        tops = [self.site, *(self.path / name for name in (BEFORE, LINKS, AFTER, MERGED))]
        inside = {parent for path in paths for parent in Path(path).parents}
        inside |= set(map(Path, self.folders))
        folders = [self.path, *sorted(top / each for top in tops for each in inside)]
        links = (path for path in folders if path != self.site and path.is_symlink())
        return next((f"{path.relative_to(self.site)} is a link" for path in links), "")

    def faults(self) -> list[str]:
        """The files that are not as the state INSTALLED has them. Byte code does not count: Python
        writes it at will."""
        return [
            change.path
            for change in self.changes
            if not change.is_byte_code and digest(self.site / change.path) != change.after
        ]

    def untracked(self) -> list[str]:
        """Files in the folders that the changes made which no change put there."""
        known = {change.path for change in self.changes}
        found = (
            path
            for folder in self.folders
            for path in (self.site / folder).rglob("*")
            if not path.is_dir() and path.suffix != ".pyc"
        )
        return sorted({path.relative_to(self.site).as_posix() for path in found} - known)


def digest(path: Path) -> str:
    """The sha256 of a file (a link counts by its target's name, as in a tree), "" where there is
    none, else what it is."""
    if path.is_symlink():
        return sha256(b"link to " + os.fsencode(path.readlink()))
    if not path.exists():
        return ""
    return sha256(path.read_bytes()) if path.is_file() else "no plain file"


def read(site: Path) -> Journal | None:
    """The folder's journal, or None where it has none. Raises Refused where there is one that
    cannot be understood."""
    folder = site / FOLDER
    if not folder.exists() and not folder.is_symlink():
        return None
    try:
        written = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        state = State((folder / STATE).read_text(encoding="utf-8").strip())
        changes = tuple(Change(**change) for change in written["changes"])
        found = Journal(site, state, changes, tuple(written["folders"]), written["record"])
        if way := found.way_out():
            what = f"could change files outside of {site}: {way}"
            step = "find out who wrote that; else reinstall sglang, then delete that folder"
            raise Refused.of("bad-journal", str(folder), what, step)
        return found
    except PermissionError as error:  # whole, as it seems: nothing to delete
        raise Refused(disk.no_access(error, disk.Place(folder, "run it as root"))) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"is no journal that this tool can read ({type(error).__name__})"
        step = "reinstall sglang, then delete that folder"
        raise Refused.of("bad-journal", str(folder), what, step) from None


def own_names(
    changes: Mapping[str, bytes | None], site: Path, notes: Mapping[str, bytes]
) -> list[str]:
    """The files that a finished journal consists of, by their paths below the folder: a RECORD
    lists them, so that pip removes them with the package."""
    kept = [
        f"{folder}/{path}" for folder in (BEFORE, LINKS) for path in changes if digest(site / path)
    ]
    return [f"{FOLDER}/{name}" for name in [RECORD, STATE, README, *notes, *kept]]


def prepare(
    site: Path,
    changes: Mapping[str, bytes | None],
    record: dict[str, Any],
    notes: Mapping[str, bytes],
) -> Journal:
    """Write the journal of these changes (path below `site` -> content, or None to remove it; in
    the order in which they are to be made). The last act puts it in its place, in state INSTALLING;
    up to then nothing outside of it has been touched.

    notes: further files for the journal's folder. Raises OSError.
    """
    aside = site / _PREPARING
    listed = tuple(
        Change(path, digest(site / path), "" if content is None else sha256(content))
        for path, content in changes.items()
    )
    folders = tuple(_missing_folders(site, changes))
    journal = Journal(site, State.INSTALLING, listed, folders, record)
    if way := journal.way_out():
        what = f"would change files outside of it: {way}"
        raise Refused.of("linked-install", str(site), what, "reinstall sglang without links")
    _make_folder(aside, site)
    for change in listed:
        if change.before:
            _keep(aside, site, change)
        content = changes[change.path]
        if content is not None:
            _stage(aside / AFTER / change.path, content, site / change.path, site)
    for name, content in {**notes, **_own_files(journal)}.items():
        _stage(aside / name, content, aside / name, site)
    for folder in [path for path in aside.rglob("*") if path.is_dir()] + [aside]:
        atomic.sync(folder)
    os.rename(aside, journal.path)
    atomic.sync(site)
    return journal


def _own_files(journal: Journal) -> dict[str, bytes]:
    """What the journal's folder says of it."""
    written = {
        "changes": [asdict(change) for change in journal.changes],
        "folders": journal.folders,
        "record": journal.record,
    }
    uninstall = to_type("uninstall", "--site-packages", journal.site).strip("`")
    return {
        RECORD: (json.dumps(written, indent=1) + "\n").encode(),
        STATE: f"{journal.state}\n".encode(),
        README: ABOUT.format(uninstall=uninstall).encode(),
    }


def forward(journal: Journal) -> Journal:
    """Make every change that is not made yet. Raises Refused where a file is neither as it was nor
    as it will be."""
    for folder in journal.folders:
        if not (journal.site / folder).is_dir():
            _make_folder(journal.site / folder, journal.site)
    for change in journal.changes:
        _place(journal, change)
    for touched in _touched(journal):
        atomic.sync(touched)
    if journal.faults():
        what = f"was changed while it was being patched: {some(journal.faults())}"
        step = "run it again when nobody else writes there"
        raise Refused.of("edited-install", str(journal.site), what, step)
    return finish(_set_state(journal, State.INSTALLED))


def finish(journal: Journal) -> Journal:
    """Remove what an installed journal needs no longer."""
    shutil.rmtree(journal.path / AFTER, ignore_errors=True)
    return journal


def adopt(journal: Journal, contents: Mapping[str, bytes]) -> Journal:
    """Take files that were edited since as what the changes made of them.

    contents: by path, the same file with those edits alone; it is what `back` then restores.
    Killed before its last act, a rename, the journal is as it was.
    """
    merged = tuple(
        replace(
            change,
            before=sha256(contents[change.path]),
            after=digest(journal.site / change.path),
        )
        if change.path in contents
        else change
        for change in journal.changes
    )
    for path in (change.path for change in merged if change.path in contents):
        _stage(journal.path / MERGED / path, contents[path], journal.site / path, journal.site)
    made = replace(journal, changes=merged)
    aside = journal.path / f"{RECORD}.new"
    atomic.put(aside, _own_files(made)[RECORD])
    shutil.copystat(journal.path / RECORD, aside)
    os.replace(aside, journal.path / RECORD)
    atomic.sync(journal.path)
    return made


def kept(journal: Journal, path: str) -> bytes | None:
    """A file as it was before the changes; None where there was none, or what was kept is lost."""
    change = next(change for change in journal.changes if change.path == path)
    file = _kept(journal, change)
    return file.read_bytes() if file else None


def back(journal: Journal, discard: bool = False) -> None:
    """Take every change back, and the journal away.

    discard: also where a file has been edited since. Raises Refused, before anything is touched,
    where a file was edited, where a folder that must go holds an untracked file, or where what was
    kept is damaged.
    """
    _refuse_to_lose(journal, discard)
    journal = _set_state(journal, State.REMOVING)
    for change in reversed(journal.changes):
        target = journal.site / change.path
        if digest(target) == change.before:
            continue
        drop_byte_code(target)
        if found := _kept(journal, change):
            os.replace(found, target)
        else:
            target.unlink()
    for folder in reversed(journal.folders):
        _remove_folder(journal.site / folder)
    for touched in _touched(journal):
        atomic.sync(touched)
    wrong = [
        change.path
        for change in journal.changes
        if digest(journal.site / change.path) != change.before
    ]
    if wrong:
        what = f"was changed while it was being restored: {some(wrong)}"
        step = "run it again when nobody else writes there"
        raise Refused.of("edited-install", str(journal.site), what, step)
    forget(journal)


def forget(journal: Journal) -> None:
    """Take the journal away, and leave the files as they are. Not by renaming it: overlayfs cannot
    rename a lower layer's folder."""
    _set_state(journal, State.REMOVED)
    sweep(journal.site)


def sweep(site: Path) -> None:
    """Remove what a killed run left behind that is of no use any more: a journal not yet in its
    place, or one that has done its work."""
    folder, preparing = site / FOLDER, site / _PREPARING
    if preparing.is_symlink():
        preparing.unlink()
    shutil.rmtree(preparing, ignore_errors=True)
    if folder.is_symlink():
        return  # what it leads to is not ours; `read` refuses it
    state = (
        (folder / STATE).read_text(encoding="utf-8").strip() if (folder / STATE).is_file() else None
    )
    if state == State.REMOVED:
        for path in folder.iterdir():
            if path.name != STATE:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        (folder / STATE).unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def byte_code(source: Path) -> list[Path]:
    """What Python has compiled of a module, for every interpreter and level of optimisation."""
    kept = source.parent / "__pycache__"
    if source.suffix != ".py" or kept.is_symlink():  # a link's files are not the package's
        return []
    return sorted(kept.glob(f"{source.stem}.*.pyc"))


def drop_byte_code(source: Path) -> None:
    """Byte code can outlive its source: where it is unchecked, or where size and second of the two
    sources are the same."""
    for path in byte_code(source):
        path.unlink(missing_ok=True)


def _place(journal: Journal, change: Change) -> None:
    target, staged = journal.site / change.path, journal.path / AFTER / change.path
    now = digest(target)
    if now == change.after:
        return
    if now != change.before and not change.is_byte_code:
        what = "was changed while it was being patched"
        step = (
            f"{to_type('uninstall', '--site-packages', journal.site, '--discard')} takes the"
            " rest back"
        )
        raise Refused.of("edited-install", change.path, what, step)
    if not change.after:
        target.unlink()
        return
    if digest(staged) != change.after:
        what = "is not the file that was written there"
        step = f"{to_type('uninstall', '--site-packages', journal.site)} goes back to the release"
        raise Refused.of("bad-journal", f"{FOLDER}/{AFTER}/{change.path}", what, step)
    drop_byte_code(target)
    os.replace(staged, target)


def _refuse_to_lose(journal: Journal, discard: bool) -> None:
    now = {change.path: digest(journal.site / change.path) for change in journal.changes}
    edited = [
        change.path
        for change in journal.changes
        if not change.is_byte_code and now[change.path] not in (change.before, change.after)
    ]
    gone = [
        change.path
        for change in journal.changes
        if now[change.path] != change.before and change.before and not _kept(journal, change)
    ]
    if gone:
        what = f"does not hold {some(gone)} as it was"
        step = "reinstall sglang, then delete that folder"
        raise Refused.of("bad-journal", f"{FOLDER}/{BEFORE}", what, step)
    if edited and not discard:
        what = f"has edits that would be lost: {some(edited)}"
        step = "keep a copy of them, then the same again with --discard"
        raise Refused.of("edited-install", str(journal.site), what, step)
    if journal.untracked():
        what = f"holds files of yours where a folder must go: {some(journal.untracked())}"
        raise Refused.of("unknown-files", str(journal.site), what, "move them away")


def _set_state(journal: Journal, state: State) -> Journal:
    """Durable before it returns: what follows may rely on it."""
    file, aside = journal.path / STATE, journal.path / f"{STATE}.new"
    atomic.put(aside, f"{state}\n".encode())
    shutil.copystat(file, aside)
    os.replace(aside, file)
    atomic.sync(journal.path)
    return replace(journal, state=state)


def _keep(aside: Path, site: Path, change: Change) -> None:
    """The file as it was: a copy, and a hard link where links can be made (not across owners, nor
    on every file system)."""
    original, copy, link = (
        site / change.path,
        aside / BEFORE / change.path,
        aside / LINKS / change.path,
    )
    for kept in (copy, link):
        kept.parent.mkdir(parents=True, exist_ok=True)
    atomic.put(copy, original.read_bytes())
    _own_as(copy, original)
    shutil.copystat(original, copy)
    if digest(copy) != change.before:
        raise OSError(f"{original} changed while it was read")
    with suppress(OSError):
        os.link(original, link, follow_symlinks=False)


def _kept(journal: Journal, change: Change) -> Path | None:
    """Where the file is as it was: the file itself, unless somebody has written to it since, else
    the copy."""
    kept = (journal.path / folder / change.path for folder in (LINKS, BEFORE, MERGED))
    return next((path for path in kept if change.before and digest(path) == change.before), None)


def _stage(path: Path, content: bytes, forerunner: Path, site: Path) -> None:
    """A new file with the mode, owner and extended attributes of the one it follows, else those of
    the package's own files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.put(path, content)
    like = forerunner if forerunner.exists() and forerunner != path else _like(site)
    _own_as(path, like)
    shutil.copystat(like, path)
    os.utime(path)


def _like(site: Path) -> Path:
    return next(
        (path for path in (site / "sglang/__init__.py", site / "sglang") if path.exists()), site
    )


def _own_as(path: Path, like: Path) -> None:
    owner = like.stat()
    if os.geteuid() == 0 and (path.stat().st_uid, path.stat().st_gid) != (
        owner.st_uid,
        owner.st_gid,
    ):
        os.chown(path, owner.st_uid, owner.st_gid)


def _make_folder(path: Path, site: Path) -> None:
    like = site / "sglang"
    path.mkdir(parents=True, exist_ok=True)
    _own_as(path, like)
    shutil.copymode(like, path)


def _remove_folder(path: Path) -> None:
    """A folder that the changes made: untracked have been ruled out, so that only byte code can be
    left in it."""
    shutil.rmtree(path / "__pycache__", ignore_errors=True)
    if path.is_dir():
        path.rmdir()


def _missing_folders(site: Path, changes: Mapping[str, bytes | None]) -> Iterator[str]:
    parents = {
        parent.as_posix()
        for path in changes
        for parent in Path(path).parents
        if parent != Path(".")
    }
    yield from sorted(parent for parent in parents if not (site / parent).exists())


def _touched(journal: Journal) -> list[Path]:
    folders = {(journal.site / change.path).parent for change in journal.changes} | {
        (journal.site / folder).parent for folder in journal.folders
    }
    return sorted(folder for folder in folders if folder.is_dir())
