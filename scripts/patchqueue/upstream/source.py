"""Where a pristine release comes from: its wheel, or its git tag, checked, cached read-only, and
read from there.

Only whole archives are cached, under their own sha256: an entry is good or it is not, and every use
looks.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..files import run
from ..files.atomic import locked
from ..files.tree import hash_python, is_part_of_tree, sha256
from ..outcome import Outcome, Refused, disk_step
from . import index
from .pins import Pin, Wheel

LOG = logging.getLogger(__name__)

# a backslash, or a part that is empty, . or ..
LEAVES_THE_TREE = re.compile(r"\\|(?:^|/)\.{0,2}(?:/|$)")
# a plain file, as `git ls-tree` lists it: links and submodules are left out
LISTED = re.compile(r"(?s)100\d+ blob (?P<blob>[0-9a-f]+)\t(?P<path>.+)")
SHORT = 12  # hex digits of a commit, in the name of an archive
CACHE_README = """Upstream release archives, kept by the sglang patch queue under their own sha256.
Everything here can be deleted; it is fetched again when it is needed.
"""


def cache_folder() -> Path:
    """PATCHQUEUE_CACHE, else sglang-patch-queue/ in the user's cache folder (XDG)."""
    named = os.environ.get("PATCHQUEUE_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(named) if named else Path(home).expanduser() / "sglang-patch-queue"


@dataclass
class Archive:
    """A release's files in a zip archive. kind: "wheel" or "git"; name: its file, or its commit."""

    archive: Path
    kind: str
    name: str

    @cached_property
    def _zip(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self.archive)
        except zipfile.BadZipFile as error:
            what = f"is no zip archive: {error}"
            step = "do not use this archive"
            raise Refused.of("bad-archive", self.archive.name, what, step) from None

    @cached_property
    def _members(self) -> dict[str, zipfile.ZipInfo]:
        return members(self._zip, self.kind, self.archive.name)

    def read(self, path: str) -> bytes | None:
        """A file of the pristine tree, by its path in git's layout, or None where the release has
        none."""
        member = self._members.get(path)
        return self._zip.read(member) if member else None

    def listing(self) -> dict[str, str]:
        """The tree's listing, read from the archive alone."""
        return {path: sha256(self._zip.read(member)) for path, member in self._members.items()}

    def contents(self) -> dict[str, bytes]:
        """Every file, by its path in git's layout, sorted."""
        return {path: self.read(path) or b"" for path in self.paths}

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(sorted(self._members))


@dataclass
class Source(Archive):
    """A pinned release's pristine files, in an archive that was checked."""

    pin: Pin
    sha256: str

    @property
    def origin(self) -> dict[str, str]:
        """The source, as a tree's record names it."""
        return {"kind": self.kind, "name": self.name, "sha256": self.sha256}

    def unpack(self, folder: Path) -> dict[str, str]:
        """Write the pristine tree into `folder` and return its listing.

        Raises Refused when it is not the pinned tree.
        """
        listing = {}
        for path, member in self._members.items():
            content, target = self._zip.read(member), folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            listing[path] = sha256(content)
        self.verify(listing)
        return listing

    def verify(self, listing: dict[str, str]) -> None:
        """Raise Refused unless the listing is what the pin says."""
        tree, pinned = hash_python(listing), self.pin.tree
        if tree != pinned:
            what = f"its tree is {tree}, pinned is {pinned}"
            step = "it is not the release; take another source"
            raise Refused.of(
                str(Outcome.TREE_MISMATCH), f"{self.pin.tag} from {self.name}", what, step
            )


def members(archive: zipfile.ZipFile, kind: str, name: str) -> dict[str, zipfile.ZipInfo]:
    """The archive's members that belong to the tree, by their path in git's layout.

    A wheel's `sglang/` lies under `python/` in git. Raises Refused for a name that would leave the
    tree, and for a link in a wheel (git archives may hold links; no patch can touch one, so they
    are left out).
    """
    by_path: dict[str, zipfile.ZipInfo] = {}

    def bad(what: str) -> Refused:
        return Refused.of("bad-member", name, what, "do not use this archive")

    for member in archive.infolist():
        path = member.filename
        if LEAVES_THE_TREE.search(path.removesuffix("/")) or "\0" in member.orig_filename:
            raise bad(f"has a member called {member.orig_filename!r}")
        is_link = stat.S_ISLNK(member.external_attr >> 16)
        if is_link and kind == "wheel":
            raise bad(f"{path} is a link")
        if kind == "wheel":
            path = f"python/{path}" if path.startswith("sglang/") else ""
        is_ours = path.startswith(("python/sglang/", "test/")) and not path.endswith("/")
        if not is_ours or is_link or not is_part_of_tree(path):
            continue
        if path in by_path:
            raise bad(f"has two members called {member.filename!r}")
        by_path[path] = member
    return by_path


def fetch(pin: Pin, origin: str | None, wheel_only: bool = False) -> Source:
    """The release's pristine source: from `origin` where it is given.

    Else a wheel in the cache, else the archive that an earlier `--from CHECKOUT` left there, else
    the package index that pip is configured for.

    origin: a wheel of the release, a folder of wheels, or a git repository that has its tag, by
    path or address. wheel_only: take no git archive out of the cache.
    Raises Refused when none can be had, or when what was had is not what is pinned.
    """
    cache = cache_folder()
    if origin:
        path = Path(origin)
        if path.is_file():
            return _from_wheel_file(pin, path, cache)
        if wheel_only and not path.exists():
            step = "name a wheel, or a folder of wheels"
            raise Refused.of("not-fetched", origin, "there is no such file or folder", step)
        local = [path / wheel.file for wheel in pin.wheels if (path / wheel.file).is_file()]
        if not local and any(path.glob("*.whl")) and not (path / ".git").exists():
            what = f"holds wheels, but none is {_preferred(pin.wheels)[0].file}"
            raise Refused.of(
                "not-fetched", origin, what, f"give a folder with a wheel of {pin.tag}"
            )
        if local:
            return _from_wheel_file(pin, local[0], cache)
        with _workspace(cache) as space:
            file, commit = archive_of_tag(pin.tag, origin, space)
            return _keep(Source(file, "git", commit, pin, file_sha256(file)), file.name, cache)
    for wheel in _preferred(pin.wheels):
        if source := _cached(pin, wheel, cache):
            return source
    if not wheel_only and (archived := next(_kept_from_git(pin, cache), None)):
        return archived
    with _workspace(cache) as space:
        wheel = _preferred(pin.wheels)[0]
        # another run may have it by now
        return _cached(pin, wheel, cache) or _from_index(pin, wheel, cache, space)


def kept(pin: Pin, digest: str) -> Source | None:
    """The git archive of the release that a tree was made of, by its sha256; None where the cache
    has it no more."""
    archives = _kept_from_git(pin, cache_folder())
    return next((archive for archive in archives if archive.sha256 == digest), None)


def is_cached(pin: Pin) -> bool:
    """Whether the cache has an archive of the release. It is looked at when it is taken."""
    cache = cache_folder()
    wheels = any(_entry(cache, wheel.sha256, wheel.file).is_file() for wheel in pin.wheels)
    return wheels or bool(_git_archives(pin, cache))


def _preferred(wheels: tuple[Wheel, ...]) -> list[Wheel]:
    """The wheels, best first. All have the same tree; this machine's own also has compiled parts
    that run here."""
    here = f"_{platform.machine()}."
    by = {wheel: (here not in wheel.file, "-cp311-" not in wheel.file) for wheel in wheels}
    return sorted(wheels, key=lambda wheel: (*by[wheel], wheel.file))


def _entry(cache: Path, digest: str, name: str) -> Path:
    return cache / "archives" / digest / name


def _cached(pin: Pin, wheel: Wheel, cache: Path) -> Source | None:
    path = _entry(cache, wheel.sha256, wheel.file)
    return Source(path, "wheel", wheel.file, pin, wheel.sha256) if _is_whole(path) else None


def _is_whole(path: Path) -> bool:
    """Whether an archive is in the cache as it was kept. A damaged one is removed."""
    if not path.is_file():
        return False
    if file_sha256(path) == path.parent.name:
        return True
    LOG.info(f"the cached {path.name} is damaged; it is fetched again")
    shutil.rmtree(path.parent, ignore_errors=True)
    return False


def _git_archives(pin: Pin, cache: Path) -> list[Path]:
    """The archives of the release's tag that are in the cache, the last one first."""
    archives = cache.glob(f"archives/*/sglang-{pin.tag}-{'[0-9a-f]' * SHORT}.zip")
    return sorted(archives, key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)


def _kept_from_git(pin: Pin, cache: Path) -> Iterator[Source]:
    """Those of them that are whole and that hold the pinned tree.

    No pin names such an archive, so that its tree is looked at in every use. git writes the commit
    into the archive, as its comment.
    """
    for path in filter(_is_whole, _git_archives(pin, cache)):
        with zipfile.ZipFile(path) as archive:
            commit = archive.comment.decode("ascii", "replace")
        if hash_python(Archive(path, "git", commit).listing()) == pin.tree:
            # not open: check sends it to a process
            yield Source(path, "git", commit, pin, path.parent.name)


def _keep(checked: Source, name: str, cache: Path) -> Source:
    """Move an archive that holds the pinned tree into the cache, read-only.

    It is renamed last, so that a half one is never seen. Raises Refused for another tree.
    """
    checked.verify(checked.listing())
    path = _entry(cache, checked.sha256, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    (cache / "README").write_text(CACHE_README)
    checked.archive.chmod(0o444)
    os.replace(checked.archive, path)
    return Source(path, checked.kind, checked.name, checked.pin, checked.sha256)


def _checked(pin: Pin, file: Path, cache: Path) -> Source:
    digest = file_sha256(file)
    wheel = next((wheel for wheel in pin.wheels if wheel.sha256 == digest), None)
    if wheel is None:
        pinned = {wheel.file: wheel.sha256 for wheel in pin.wheels}
        what = f"its sha256 is {digest}, pinned is {pinned.get(file.name, 'another file name')}"
        step = "do not use it; see where your package index gets it from"
        raise Refused.of("wrong-sha256", file.name, what, step)
    return _keep(Source(file, "wheel", wheel.file, pin, digest), wheel.file, cache)


def _from_wheel_file(pin: Pin, path: Path, cache: Path) -> Source:
    with _workspace(cache) as space:
        copy = space / path.name
        shutil.copyfile(path, copy)
        return _checked(pin, copy, cache)


def _from_index(pin: Pin, wheel: Wheel, cache: Path, space: Path) -> Source:
    LOG.info(f"fetching {wheel.file}")
    done = index.download(str(pin.version), wheel.file, space)
    file = space / wheel.file
    if done.returncode or not file.is_file():
        step = disk_step(done.stderr) or index.STEP
        raise Refused.of("not-fetched", wheel.file, index.why(done, space), step)
    return _checked(pin, file, cache)


def archive_of_tag(tag: str, origin: str, space: Path) -> tuple[Path, str]:
    """A zip of what a tag of the repository `origin` holds, written into `space`, and its commit.

    This is what `--from REPOSITORY` means in every command: the files that are checked out there
    are not read. Raises Refused where there is no such repository or tag.
    """
    repository = Path(origin)
    if not repository.is_dir() and ":" not in origin:
        step = "name a wheel, a folder of wheels, or a git repository"
        raise Refused.of("not-fetched", origin, "there is no such file or folder", step)
    if not repository.is_dir():
        LOG.info(f"cloning {tag} of {origin}")
        repository = space / "clone"
        clone = ["clone", "-q", "--bare", "--depth=1", f"--branch={tag}"]
        _git(origin, tag, *clone, "--", origin, str(repository))

    def ask(*words: str, stdin: bytes = b"") -> bytes:
        return _git(origin, tag, "-C", str(repository), *words, stdin=stdin)

    commit = ask("rev-parse", "--verify", "-q", f"refs/tags/{tag}^{{commit}}").decode().strip()
    LOG.info(
        f"{tag} from {origin}: the commit of that tag, {commit[:SHORT]}; what is checked out is not"
        " read"
    )
    listed = ask("ls-tree", "-r", "-z", "--full-tree", commit, "--", "python/sglang", "test")
    rows = [
        LISTED.match(entry.decode("utf-8", "backslashreplace")) for entry in listed.split(b"\0")
    ]
    names = {row["path"]: row["blob"] for row in rows if row}
    # Blobs as they were committed: `git archive` runs the programs that the repository's own
    # settings name as filters.
    blobs = "".join(f"{blob}\n" for blob in names.values()).encode()
    contents = run.blobs(ask("cat-file", "--batch", stdin=blobs))
    file = space / f"sglang-{tag}-{commit[:SHORT]}.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = commit.encode()
        for name, content in zip(names, contents):
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return file, commit


def _git(origin: str, tag: str, *arguments: str, stdin: bytes = b"") -> bytes:
    """git's output: by SETTINGS, and by the user's configuration, which may name a proxy."""
    try:
        return run.git(None, *arguments, stdin=stdin, more=run.NO_SYSTEM).stdout
    except run.Failed as failure:
        last = str(failure) if failure.done.stderr else f"it has no tag {tag}"
        step = disk_step(last) or f"give a wheel, or a git repository that has the tag {tag}"
        raise Refused.of("not-fetched", origin, f"no {tag} to be had: {last}", step) from None


@contextmanager
def _workspace(cache: Path) -> Iterator[Path]:
    """A folder of this run's own in the cache, which nobody else fills meanwhile; what a killed run
    left is removed."""
    with locked(cache / ".lock"):
        for left in cache.glob("tmp-*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="tmp-") as name:
            yield Path(name)


def file_sha256(path: Path) -> str:
    """The sha256 of a file on disk, 64 hex digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
