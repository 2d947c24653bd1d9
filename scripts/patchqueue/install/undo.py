"""An undo log for changes of a folder: after a kill at any moment the next call completes or undoes
the changes, and every change can be undone to the last byte.

The log is a folder beside what is changed, made aside and renamed into place before the first
change. It holds every file as it was and as it will be, and one state file. Each file is renamed
over its forerunner, so that a reader sees the one or the other, and a hard link elsewhere (uv links
from its cache) keeps the old bytes. The file as it was is kept twice: as a hard link where one can
be made, so that it comes back itself; and as a copy, should somebody write to it.

INSTALLING -> each file renamed -> INSTALLED -> REMOVING -> each file renamed back -> REMOVED ->
gone
"""

from __future__ import annotations

import enum
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..files import atomic
from ..files.tree import digest, sha256
from ..outcome import Refused, some, system_problem, to_type
from ..upstream.source import LEAVES_THE_TREE

# beside sglang/; the dot keeps Python from importing it, and a person finds it
FOLDER = "sglang.patch-queue"
PREPARING = f".{FOLDER}.preparing"
STATE, README, BEFORE, LINKS, AFTER = "journal.json", "README", "before", "links", "after"
NOTES = ("found", "texts", "laid")  # see inplace._plan
PYC = ".pyc"
UNINSTALL = partial(to_type, "uninstall", "--site-packages")
BY_HAND = "reinstall sglang, then delete that folder"
ABOUT = """The sglang beside this folder has been patched in place by the sglang patch queue. This folder takes that back.
before/ holds each file as it was (links/ the file itself), journal.json what was changed (sha256), and how far that got.
    {uninstall}
Deleting this folder makes the patches permanent; reinstalling sglang also removes them.
"""  # noqa: E501


class State(str, enum.Enum):
    """How far the work on a folder has got."""

    INSTALLING = "installing"  # any number of files are as they will be, the others as they were
    INSTALLED = "installed"
    REMOVING = "removing"  # the same, on the way back
    REMOVED = "removed"  # every file is as it was, or another's; the journal has still to go


@dataclass(frozen=True)
class Change:
    """One file, by its path. before, after: its sha256, "" where there is none."""

    path: str
    before: str
    after: str


@dataclass(frozen=True)
class Journal:
    """The journal of one folder. folders: those that the changes make, parents first; record: the
    patched tree's; notes: what the caller needs to undo the changes."""

    site: Path
    state: State
    changes: tuple[Change, ...]
    folders: tuple[str, ...]
    record: dict[str, Any]
    notes: dict[str, Any]

    @property
    def path(self) -> Path:
        return self.site / FOLDER

    def encoded(self) -> bytes:
        """The state file."""
        written = asdict(self)
        del written["site"]  # the folder may be moved
        return (json.dumps(written, indent=1) + "\n").encode()

    def way_out(self) -> str:
        """A path of the journal that leads, or could lead, out of its folder; "" for none. Who may
        write that folder need not be who takes the changes back."""
        paths = [*(change.path for change in self.changes), *self.folders]
        named = next((path for path in paths if LEAVES_THE_TREE.search(path)), None)
        if named is not None:
            return repr(named)
        tops = [self.site, *(self.path / name for name in (BEFORE, LINKS, AFTER))]
        parents = {(top / path).parent for top in tops for path in paths}
        folders = sorted({self.path, *parents, *(self.site / path for path in self.folders)})
        links = (each for each in folders if os.path.realpath(each) != str(each))
        return next((f"{each.relative_to(self.site)} is a link" for each in links), "")

    def faults(self) -> list[str]:
        """The files that are not as the state INSTALLED has them. Byte code does not count."""
        return _unlike(self.site, self.installed)

    @property
    def installed(self) -> dict[str, str]:
        """By path, the sha256 that a file has in the state INSTALLED; without byte code."""
        return {each.path: each.after for each in self.changes if not each.path.endswith(PYC)}

    def untracked(self) -> list[str]:
        """Files in the folders that the changes made which no change put there."""
        inside = (path for folder in self.folders for path in (self.site / folder).rglob("*"))
        files = (path for path in inside if not path.is_dir() and path.suffix != PYC)
        names = {path.relative_to(self.site).as_posix() for path in files}
        return sorted(names.difference(change.path for change in self.changes))


def state_of(site: Path) -> str:
    """How far the work on a folder has got; "" where no journal says so."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((site / FOLDER / STATE).read_text(encoding="utf-8"))["state"])
    return ""


def read(site: Path) -> Journal | None:
    """The folder's journal, or None. Raises Refused for one that cannot be understood."""
    folder = site / FOLDER
    if not folder.exists() and not folder.is_symlink():
        return None
    try:
        written = json.loads((folder / STATE).read_text(encoding="utf-8"))
        changes = tuple(Change(**change) for change in written["changes"])
        state, folders = State(written["state"]), tuple(written["folders"])
        notes = {name: written["notes"][name] for name in NOTES}
        journal = Journal(site, state, changes, folders, dict(written["record"]), notes)
        way = journal.way_out()
    except PermissionError as error:  # whole, as it seems: nothing to delete
        raise Refused(system_problem(error, [folder])) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"is no journal that this tool can read ({type(error).__name__})"
        raise Refused.of("bad-journal", str(folder), what, BY_HAND) from None
    if way:
        what = f"could change files outside of {site}: {way}"
        raise Refused.of(
            "bad-journal", str(folder), what, f"find out who wrote that; else {BY_HAND}"
        )
    return journal


def own_names(changes: Mapping[str, bytes | None], site: Path) -> list[str]:
    """The files of a finished journal, for RECORD: pip removes them, too."""
    there = [path for path in changes if digest(site / path)]
    kept = [f"{folder}/{path}" for folder in (BEFORE, LINKS) for path in there]
    return [f"{FOLDER}/{name}" for name in [STATE, README, *kept]]


def prepare(
    site: Path, changes: Mapping[str, bytes | None], record: dict[str, Any], notes: dict[str, Any]
) -> Journal:
    """Write the journal of these changes (path -> content, or None to remove it, in order) and put
    it in its place, INSTALLING. Raises OSError, and Refused for a link."""
    listed = tuple(
        Change(path, digest(site / path), "" if content is None else sha256(content))
        for path, content in changes.items()
    )
    parents = {folder for path in changes for folder in Path(path).parents}
    folders = sorted(path.as_posix() for path in parents if not (site / path).exists())
    journal = Journal(site, State.INSTALLING, listed, tuple(folders), record, notes)
    if way := journal.way_out():
        what = f"would change files outside of it: {way}"
        raise Refused.of("linked-install", str(site), what, "reinstall sglang without links")
    aside, about = site / PREPARING, ABOUT.format(uninstall=UNINSTALL(site).strip("`"))
    _make_folder(aside, site)
    for change in listed:
        if change.before:
            _keep(aside, site, change)
        if (content := changes[change.path]) is not None:
            _stage(aside / AFTER / change.path, content, site / change.path, site)
    for name, content in ((STATE, journal.encoded()), (README, about.encode())):
        _stage(aside / name, content, aside / name, site)
    for folder in [path for path in aside.rglob("*") if path.is_dir()] + [aside]:
        atomic.sync(folder)
    os.rename(aside, journal.path)
    atomic.sync(site)
    return journal


def forward(journal: Journal, discard: bool = False) -> Journal:
    """Make every change that is not made yet. discard, and Raises: as for `back`."""
    wanted = {change.path: change.after for change in journal.changes}
    step = f"{UNINSTALL(journal.site)} goes back to the release"
    _refuse_to_lose(journal, wanted, discard, step)
    for folder in journal.folders:
        if not (journal.site / folder).is_dir():
            _make_folder(journal.site / folder, journal.site)
    for path, after in wanted.items():
        _put(journal, path, after)
    _settle(journal, journal.installed, "patched")
    shutil.rmtree(journal.path / AFTER, ignore_errors=True)
    return _write(replace(journal, state=State.INSTALLED))


def back(
    journal: Journal, discard: bool = False, merged: Mapping[str, bytes] | None = None
) -> None:
    """Undo every change, then delete the journal.

    discard: also where a file has been edited since. merged: edited files by path, with the edits
    and without the changes. Raises Refused, before anything is touched, where an edit would be lost
    or the journal is damaged.
    """
    own = {change.path: change for change in reversed(journal.changes)}
    merged = {path: content for path, content in (merged or {}).items() if path in own}
    wanted = {path: change.before for path, change in own.items() if path not in merged}
    _refuse_to_lose(journal, wanted, discard, BY_HAND)
    if journal.untracked():
        what = f"holds files of yours where a folder must go: {some(journal.untracked())}"
        raise Refused.of("unknown-files", str(journal.site), what, "move them away")
    for path, content in merged.items():
        target = journal.site / path
        _stage(journal.path / AFTER / path, content, target, journal.site)
        own[path] = Change(path, sha256(content), digest(target))
    changes = tuple(reversed(own.values()))
    journal = _write(replace(journal, state=State.REMOVING, changes=changes))
    wanted = {path: change.before for path, change in own.items()}
    for path, before in wanted.items():
        _put(journal, path, before)
    for folder in reversed(journal.folders):
        # untracked files have been ruled out: only byte code can be left
        shutil.rmtree(journal.site / folder / "__pycache__", ignore_errors=True)
        if (journal.site / folder).is_dir():
            (journal.site / folder).rmdir()
    _settle(journal, wanted, "restored")
    forget(journal)


def kept(journal: Journal, path: str, wanted: str) -> Path | None:
    """The journal's file with this sha256: the original, else a copy."""
    places = (journal.path / name / path for name in (LINKS, BEFORE, AFTER))
    return next((file for file in places if wanted and digest(file) == wanted), None)


def forget(journal: Journal) -> None:
    """Delete the journal, and leave the files. overlayfs cannot rename a lower layer's folder."""
    _write(replace(journal, state=State.REMOVED))
    sweep(journal.site)


def sweep(site: Path) -> None:
    """Delete what a killed run left: a journal not in its place yet, or one that is undone."""
    folder, preparing = site / FOLDER, site / PREPARING
    if preparing.is_symlink():
        preparing.unlink()
    shutil.rmtree(preparing, ignore_errors=True)
    if folder.is_symlink() or not folder.is_dir():
        return  # what a link leads to is not ours; `read` refuses it
    if state_of(site) == State.REMOVED:
        # what says so goes last
        for path in sorted(folder.iterdir(), key=lambda path: path.name == STATE):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def byte_code(source: Path) -> list[Path]:
    """The byte code of a module, for every interpreter and level of optimisation."""
    cache = source.parent / "__pycache__"
    if source.suffix != ".py" or cache.is_symlink():  # a link's files are not the package's
        return []
    return sorted(cache.glob(f"{source.stem}.*.pyc"))


def _put(journal: Journal, path: str, wanted: str) -> None:
    """Rename the file with this sha256 over the path; for "", delete the path."""
    target = journal.site / path
    if digest(target) == wanted:
        return
    for compiled in byte_code(target):  # unchecked, or of two sources of one size and second
        compiled.unlink(missing_ok=True)
    if file := kept(journal, path, wanted):
        os.replace(file, target)
    else:
        target.unlink()


def _refuse_to_lose(journal: Journal, wanted: Mapping[str, str], discard: bool, step: str) -> None:
    """Raise Refused where edits would be lost, or where the journal lacks a file. wanted: by path,
    the sha256 that a file is to have."""
    unlike = _unlike(journal.site, wanted)
    lost = [path for path in unlike if wanted[path] and not kept(journal, path, wanted[path])]
    if lost:
        what = f"does not hold {some(lost)} as it was put there"
        raise Refused.of("bad-journal", str(journal.path), what, step)
    own = {change.path: (change.before, change.after) for change in journal.changes}
    edited = [
        path
        for path in unlike
        if not path.endswith(PYC) and digest(journal.site / path) not in own[path]
    ]
    if edited and not discard:
        what = f"has edits that would be lost: {some(edited)}"
        step = f"keep a copy of them; {UNINSTALL(journal.site, '--discard')} goes back without them"
        raise Refused.of("edited-install", str(journal.site), what, step)


def _settle(journal: Journal, wanted: Mapping[str, str], how: str) -> None:
    """Sync the changed folders to the disk. Raises Refused where a file is not as wanted."""
    folders = {(journal.site / change.path).parent for change in journal.changes}
    folders |= {(journal.site / folder).parent for folder in journal.folders}
    for folder in sorted(filter(Path.is_dir, folders)):
        atomic.sync(folder)
    if wrong := _unlike(journal.site, wanted):
        what = f"was changed while it was being {how}: {some(wrong)}"
        step = "run it again when nobody else writes there"
        raise Refused.of("edited-install", str(journal.site), what, step)


def _unlike(site: Path, wanted: Mapping[str, str]) -> list[str]:
    return [path for path, each in wanted.items() if digest(site / path) != each]


def _write(journal: Journal) -> Journal:
    """Write the state file, durable before this returns: what follows may rely on it."""
    file, aside = journal.path / STATE, journal.path / f"{STATE}.new"
    _stage(aside, journal.encoded(), file, journal.site)
    os.replace(aside, file)
    atomic.sync(journal.path)
    return journal


def _keep(aside: Path, site: Path, change: Change) -> None:
    """Keep the file as it was: a copy, and a hard link where links can be made."""
    original, copy, link = (top / change.path for top in (site, aside / BEFORE, aside / LINKS))
    _write_like(copy, original.read_bytes(), original)
    if digest(copy) != change.before:
        raise OSError(f"{original} changed while it was read")
    link.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        os.link(original, link, follow_symlinks=False)


def _stage(path: Path, content: bytes, forerunner: Path, site: Path) -> None:
    """A new file with the mode and owner of the one it follows, else of the package's own files."""
    likely = (forerunner, site / "sglang/__init__.py", site / "sglang")
    _write_like(path, content, next((each for each in likely if each.exists()), site))
    os.utime(path)


def _write_like(path: Path, content: bytes, like: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.put(path, content)
    _make_like(path, like)


def _make_folder(path: Path, site: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    _make_like(path, site / "sglang")


def _make_like(path: Path, like: Path) -> None:
    """Give a file or a folder the mode, owner, times and extended attributes of another one."""
    owner, now = like.stat(), path.stat()
    if os.geteuid() == 0 and (now.st_uid, now.st_gid) != (owner.st_uid, owner.st_gid):
        os.chown(path, owner.st_uid, owner.st_gid)
    shutil.copystat(like, path)
