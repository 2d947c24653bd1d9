"""The files of any release, pinned or not: of a wheel, of a checkout, or as the package index has
them; and a release pinned by all its wheels, which must hold one and the same tree."""

from __future__ import annotations

import datetime
import logging
import re
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from ..files import run
from ..files.tree import (
    GENERATED,
    PREFIX,
    SGLANG,
    differing,
    hash_python,
    is_part_of_tree,
    sha256,
)
from ..hint import counted, some, to_type
from ..outcome import Outcome, Refused
from . import index, source
from . import pins as pinning
from .pins import Pin, Pins
from .source import Archive

LOG = logging.getLogger(__name__)
DAYS_TO_RESOLVE = 3  # dependencies that a release needs sometimes follow it by a day or two

WRITTEN = re.compile(
    r"^(?:__version__ = )?(?:version|__version__) = ['\"]([^'\"]+)['\"]", re.MULTILINE
)


@dataclass(frozen=True)
class Release:
    """read: a file's content by its path in git's layout, or None; paths: all of them, sorted;
    name: what was read."""

    version: Version
    name: str
    read: Callable[[str], bytes | None]
    paths: tuple[str, ...]

    def listing(self) -> dict[str, str]:
        """The listing (see files/tree.py) of its files."""
        return {path: sha256(self.read(path) or b"") for path in self.paths}

    @property
    def tree(self) -> str:
        """The tree hash (see files/tree.py) of its files."""
        return hash_python(self.listing())

    def keep(self, file: Path) -> None:
        """Write the release's files into a zip archive, in git's layout, for `kept`."""
        with zipfile.ZipFile(file, "w") as archive:
            for path in self.paths:
                archive.writestr(zipfile.ZipInfo(path), self.read(path) or b"")


@contextmanager
def find(pins: Pins, word: str, origin: str | None) -> Iterator[Release]:
    """The release that a user calls `word`.

    word: a version, or a wheel or checkout, whose files are taken as they are.
    origin: where a version is taken from, as `source.fetch` means it. A release that is not pinned
    may have no tag in a checkout yet: then its files are taken as they are.
    Raises Refused where that is none of these, or its files cannot be had.
    """
    is_path = origin is None and (Path(word).is_dir() or word.endswith(".whl"))
    version = version_of(Path(word), pins) if is_path else pinning.version(word)
    path = Path(word if is_path else origin or "")
    _names_it(str(path), version)
    pin = _pin_of(pins, version)
    if is_path and path.is_dir():
        yield _of_folder(version, path)
    elif pin:
        pristine = source.fetch(pin, str(path) if is_path else origin)
        yield _of_archive(version, pristine.name, pristine)
    elif origin and path.is_dir() and not _wheels(path, version) and not _has_tag(path, version):
        yield _of_folder(version, path)
    else:
        with tempfile.TemporaryDirectory(prefix="patchqueue-rebase-") as space:
            file, kind = _archive(version, str(path) if is_path else origin, Path(space))
            yield _of_archive(version, file.name, Archive(file, kind, file.name))


def refuse_other_tree(pins: Pins, release: Release, step: str = "") -> None:
    """Raise Refused for a release that is pinned and whose Python files are not the pinned ones."""
    pin = _pin_of(pins, release.version)
    if pin is None or release.tree == pin.tree:
        return
    fork = to_type("backport", f"--onto FORK --base {pin.tag} BRANCH")
    later = to_type("rebase", "RELEASE --from PATH")
    what = f"is pinned, and this is another tree, as {pin.tag} with edits is"
    step = step or f"{fork} makes a branch to merge; {later} takes it for a release to come"
    raise Refused.of(str(Outcome.TREE_MISMATCH), f"{pin.tag} from {release.name}", what, step)


def _pin_of(pins: Pins, version: Version) -> Pin | None:
    return next((pin for pin in pins.all if pin.version == version), None)


def _wheels(folder: Path, version: Version) -> list[Path]:
    return sorted(folder.glob(f"sglang-{version}-*.whl"))


def _has_tag(folder: Path, version: Version) -> bool:
    """Whether the folder is a git repository, not a part of one, that has the release's tag."""
    if not (folder / ".git").exists() and not (folder / "HEAD").is_file():
        return False
    tag = f"refs/tags/v{version}^{{commit}}"
    return bool(_asked(folder, "rev-parse", "--verify", "-q", tag))


def _archive(version: Version, origin: str | None, space: Path) -> tuple[Path, str]:
    """(an archive of a release that is not pinned, "wheel" or "git")."""
    path = Path(origin or "")
    if origin and (path.is_dir() or ":" in origin) and not _wheels(path, version):
        return source.archive_of_tag(f"v{version}", origin, space)[0], "git"
    wheels = [path] if origin and path.is_file() else _wheels(path, version) if origin else []
    file = wheels[0] if wheels else None if origin else next(_offered(version, space), None)
    if file is None or not file.is_file():
        step = "check the version and `pip config list`, or give a wheel or checkout: --from PATH"
        raise Refused.of("not-fetched", f"sglang {version}", "no wheel of it is available", step)
    return file, "wheel"


def kept(version: Version, name: str, file: Path) -> Release:
    """The release that `Release.keep` wrote."""
    return _of_archive(version, name, Archive(file, "git", file.name))


def newer(pins: Pins) -> list[Version]:
    """The releases that the package index has and that are newer than the newest pin, oldest first;
    no pre-releases."""
    with tempfile.TemporaryDirectory(prefix="patchqueue-watch-") as space:
        versions = map(Version, index.published(Path(space)))
    return sorted(
        version
        for version in versions
        if version > pins.all[-1].version and not version.is_prerelease
    )


def version_of(path: Path, pins: Pins) -> Version:
    """The version of a wheel, or of a checkout or unpacked wheel: its git tag, else the one written
    in its files.

    Commits on top of a tag that is pinned, or older than the newest pin, are a fork: that release
    with edits. On top of a newer tag they count as the next release: v0.5.24 and 692 commits is
    0.5.25. Raises Refused where no version is found.
    """
    if path.suffix == ".whl":
        try:
            return parse_wheel_filename(path.name)[1]
        except (InvalidWheelFilename, InvalidVersion):
            raise _nameless(path.name, "is not named as a wheel is") from None
    site = _site_in(path)
    tag, behind = described(path)
    files = [site / name.removeprefix(PREFIX) for name in (GENERATED, f"{SGLANG}version.py")]
    texts = [file.read_text("utf-8", "replace") for file in files if file.is_file()]
    written = [match[1] for match in map(WRITTEN.search, texts) if match]
    for text in [tag, *written]:
        try:
            version = Version(text)
        except InvalidVersion:
            continue
        forked = text == tag and version <= pins.all[-1].version
        if (behind and text == tag and not forked) or version.is_devrelease:
            step = 0 if version.is_prerelease else 1  # 0.5.24rc1 and 0.5.24.dev3 come before 0.5.24
            return Version(f"{version.major}.{version.minor}.{version.micro + step}")
        return Version(version.public)
    raise _nameless(str(path), "has no release's tag and no version written in sglang/")


def _nameless(where: str, what: str) -> Refused:
    step = f"say which release it is: {to_type('rebase', '0.5.24 --from PATH')}"
    return Refused.of("unknown-release", where, what, step)


def described(path: Path) -> tuple[str, int]:
    """(the release of the nearest tag, how many commits lie on top of it); ("", 0) without one."""
    if not (path / ".git").exists():
        return "", 0
    said = _asked(path, "describe", "--tags", "--long", "--match", "v[0-9]*")
    parts = re.fullmatch(r"v(.+)-(\d+)-g[0-9a-f]+", said)
    return (parts[1], int(parts[2])) if parts else ("", 0)


def _asked(folder: Path, *words: str) -> str:
    """The answer of git in a user's repository, and in none above it; empty where it fails."""
    above = {"GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    try:
        done = run.git(folder, *words, more=run.NO_CONFIGURATION | above)
    except run.Failed:
        return ""
    return done.stdout.decode("utf-8", "replace").strip()


def _names_it(origin: str, version: Version) -> None:
    """Raise Refused for a wheel that is named as another release's."""
    try:
        named = parse_wheel_filename(Path(origin).name)[1]
    except (InvalidWheelFilename, InvalidVersion):
        return
    if Version(named.public) != version:
        what = f"is a wheel of {named}, not of {version}"
        step = to_type("rebase", f"{named} --from {origin}")
        raise Refused.of("wrong-version", origin, what, step)


def _site_in(folder: Path) -> Path:
    """The folder that holds sglang/: python/ of a checkout, or an unpacked wheel itself. Raises
    Refused where there is none."""
    if (folder / SGLANG).is_dir():
        return folder / PREFIX
    if (folder / "sglang/srt").is_dir():  # sglang/ alone may be a checkout
        return folder
    what, step = "holds no python/sglang and no sglang/srt", "give a wheel, or a checkout of sglang"
    raise Refused.of("not-fetched", str(folder), what, step)


def _of_folder(version: Version, folder: Path) -> Release:
    site = _site_in(folder)
    tag, behind = described(folder)
    where = f" (v{tag} and {counted(behind, 'commit')})" if behind else ""
    LOG.info(f"sglang {version} from {folder}{where}: its files as they stand")
    roots = {SGLANG: site / "sglang"}
    if site != folder:  # an unpacked wheel has no tests of sglang
        roots["test/"] = folder / "test"
    files = {
        prefix + path.relative_to(root).as_posix(): path
        for prefix, root in roots.items()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    paths = tuple(sorted(filter(is_part_of_tree, files)))

    def read(path: str) -> bytes | None:
        file = files.get(path)
        return file.read_bytes() if file and file.is_file() else None

    return Release(version, folder.resolve().name, read, paths)


def _of_archive(version: Version, name: str, archive: Archive) -> Release:
    return Release(version, name, archive.read, archive.paths)


def add_pin(root: Path, name: str, origin: str | None) -> Pin:
    """Pin version `name` from the package index (or from a folder of its wheels, `origin`).

    Raises Refused, with pins.toml untouched, when it is pinned already, when no wheel is available,
    or when its wheels differ in more than compiled parts.
    """
    version = named_version(name)
    pinning.refuse_pinned(root, version)
    if origin and not Path(origin).is_dir():
        step = f"name the folder that holds the wheels of sglang {version}"
        raise Refused.of("not-fetched", origin, "there is no such folder", step)
    with tempfile.TemporaryDirectory() as space:
        local = Path(origin or "").glob(f"sglang-{version}-*.whl")
        wheels = sorted(local if origin else _offered(version, Path(space)))
        if not wheels:
            what, step = "no wheel of it is available", "check the version, and `pip config list`"
            raise Refused.of("not-fetched", f"sglang {version}", what, step)
        pin = describe(version, wheels)
    return pinning.add(root, pin)


def named_version(name: str) -> Version:
    """The version that a user asks to pin. Raises Refused where it is none."""
    return pinning.version(name, "this is not a version", to_type("pin", "0.5.24"))


def describe(version: Version, wheels: Sequence[Path]) -> Pin:
    """A release's pin, from all its wheels. Raises Refused where their trees are not the same."""
    contents = [_look_into(wheel) for wheel in wheels]
    listing = contents[0][0]
    if unlike := {path for other, _ in contents for path in differing(listing, other)}:
        what = f"its wheels hold different trees: {some(sorted(unlike))} differ"
        step = "find out which one is the release"
        raise Refused.of("wheels-differ", f"sglang {version}", what, step)
    newest = max(day for _, day in contents)
    entry = {
        "version": str(version),
        "tag": f"v{version}",
        "released": newest,
        "resolve_as_of": newest + datetime.timedelta(days=DAYS_TO_RESOLVE),
        "tree": hash_python(listing),
        "wheels": [{"file": wheel.name, "sha256": source.file_sha256(wheel)} for wheel in wheels],
    }
    return pinning.check(entry)


def _look_into(wheel: Path) -> tuple[dict[str, str], datetime.date]:
    """(a wheel's listing, the day when its newest file was written)."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = source.members(archive, "wheel", wheel.name).items()
            listing = {path: sha256(archive.read(member)) for path, member in members}
            days = [datetime.date(*member.date_time[:3]) for member in archive.infolist()]
    except (zipfile.BadZipFile, EOFError, ValueError, RuntimeError, zlib.error) as error:
        what = f"is no zip archive that can be read: {error}"
        raise Refused.of("bad-archive", wheel.name, what, "fetch it again") from None
    if not listing:
        what, step = "holds no file of sglang", "do not use this archive"
        raise Refused.of("bad-archive", wheel.name, what, step)
    return listing, max(days)


def _offered(version: Version, folder: Path) -> Iterator[Path]:
    """The release's wheels as they come.

    The index is asked first whether it has the release, unless there are folders of wheels too.
    Raises Refused with the cause where none is available.
    """
    configured = index.settings(folder)
    if "find-links" not in configured:
        _refuse_unpublished(version, folder)
    LOG.info(f"asking for the wheels of sglang {version}")
    names, broken = index.wheels(str(version), folder, configured)
    for name in names:
        LOG.info(f"fetching {name}")
        done = index.download(str(version), name, folder, *(["--no-index"] if broken else []))
        if not (folder / name).is_file():
            raise Refused.of("not-fetched", name, index.why(done, folder), index.STEP)
        yield folder / name


def _refuse_unpublished(version: Version, folder: Path) -> None:
    """Raise Refused where the package index cannot be reached, or has no such release."""
    versions = sorted(map(Version, index.published(folder, "--pre")))
    if version not in versions:
        what = (
            f"the package index has no such release; its newest is {versions[-1]}"
            if versions
            else "the package index has none"
        )
        step = "name another, or give a wheel or checkout: --from PATH"
        raise Refused.of("not-fetched", f"sglang {version}", what, step)
