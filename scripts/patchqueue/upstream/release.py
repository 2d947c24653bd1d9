"""The files of any release, pinned or not: of a wheel, of a checkout, or as the package index has them."""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from ..files.gitrun import git
from ..files.tree import GENERATED, is_part_of_tree
from ..hint import to_type
from ..outcome import Problem, Refused
from . import pins as pinning
from . import source
from .pin import wheel_of
from .pins import Pins

Say = Callable[[str], None]
WRITTEN = re.compile(r"^(?:__version__ = )?(?:version|__version__) = ['\"]([^'\"]+)['\"]", re.MULTILINE)


@dataclass(frozen=True)
class Release:
    """read: a file's content by its path in git's layout, or None; paths: all of them, sorted; name: what was read."""

    version: Version
    name: str
    read: Callable[[str], "bytes | None"]
    paths: tuple[str, ...]

    def keep(self, file: Path) -> None:
        """Write the release's files into a zip archive, in git's layout, for `kept`."""
        with zipfile.ZipFile(file, "w") as archive:
            for path in self.paths:
                archive.writestr(zipfile.ZipInfo(path), self.read(path) or b"")


@contextmanager
def find(pins: Pins, word: str, origin: str | None, say: Say) -> Iterator[Release]:
    """The release that a user calls `word`: a version (then `origin` may be its wheel or checkout), or a wheel or checkout itself.

    Raises Refused where that is none of these, or its files cannot be had.
    """
    if origin is None and (Path(word).is_dir() or word.endswith(".whl")):
        origin, version = word, version_of(Path(word))
    else:
        version = pinning.version(word)
        _names_it(origin or "", version)
    pin = next((pin for pin in pins.all if pin.version == version), None)
    if origin and Path(origin).is_dir():
        yield _of_folder(version, Path(origin))
    elif pin and not origin:
        pristine = source.fetch(pin, None, say)
        yield Release(version, pristine.name, pristine.read, tuple(sorted(pristine.listing())))
    else:
        with tempfile.TemporaryDirectory(prefix="patchqueue-rebase-") as space:
            file = Path(origin) if origin else wheel_of(version, Path(space), say)
            if file is None or not file.is_file():
                raise Refused(Problem("not-fetched", f"sglang {version}", "no wheel of it is to be had", "check the version and `pip config list`, or give a wheel or checkout: --from PATH"))
            with _of_archive(version, file, "wheel") as release:
                yield release


@contextmanager
def kept(version: Version, name: str, file: Path) -> Iterator[Release]:
    """What `Release.keep` wrote."""
    with _of_archive(version, file, "git") as release:
        yield Release(version, name, release.read, release.paths)


def newer(pins: Pins) -> list[Version]:
    """The releases that the package index has and that are newer than the newest pin, oldest first; no pre-releases."""
    with tempfile.TemporaryDirectory(prefix="patchqueue-watch-") as space:
        versions = map(Version, source.published(Path(space)))
    return sorted(version for version in versions if version > pins.all[-1].version and not version.is_prerelease)


def version_of(path: Path) -> Version:
    """The version of a wheel, or of a folder that holds python/sglang: its git tag, else the one written in its files.

    A checkout behind a tag counts as the next release: v0.5.23 and 692 commits is 0.5.24. Raises Refused where none is found.
    """
    if path.suffix == ".whl":
        try:
            return parse_wheel_filename(path.name)[1]
        except (InvalidWheelFilename, InvalidVersion):
            raise Refused(Problem("unknown-revision", path.name, "is not named as a wheel is", f"say which release it is: {to_type('rebase', '0.5.24 --from PATH')}")) from None
    _holds_sglang(path)
    described = git(path, "describe", "--tags", "--match", "v[0-9]*", check=False).stdout.decode("utf-8", "replace").strip() if (path / ".git").exists() else ""
    tag, behind, _ = re.fullmatch(r"v(.+?)(-\d+)?(-g[0-9a-f]+)?", described).groups() if described.startswith("v") else ("", None, None)
    written = [match.group(1) for file in (GENERATED, "python/sglang/version.py") if (path / file).is_file() for match in [WRITTEN.search((path / file).read_text("utf-8", "replace"))] if match]
    for text in [tag, *written]:
        try:
            found = Version(text)
        except InvalidVersion:
            continue
        if behind and text == tag or found.is_devrelease:
            step = 0 if found.is_prerelease else 1  # 0.5.24rc1 and 0.5.24.dev3 come before 0.5.24
            return Version(f"{found.major}.{found.minor}.{found.micro + step}")
        return Version(found.public)
    raise Refused(Problem("unknown-revision", str(path), "has no release's tag and no version written in python/sglang", f"say which release it is: {to_type('rebase', '0.5.24 --from PATH')}"))


def _names_it(origin: str, version: Version) -> None:
    """Raise Refused for a wheel that is named as another release's."""
    try:
        named = parse_wheel_filename(Path(origin).name)[1]
    except (InvalidWheelFilename, InvalidVersion):
        return
    if Version(named.public) != version:
        raise Refused(Problem("wrong-version", origin, f"is a wheel of {named}, not of {version}", to_type("rebase", f"{named} --from {origin}")))


def _holds_sglang(folder: Path) -> None:
    if not (folder / "python/sglang").is_dir():
        raise Refused(Problem("not-fetched", str(folder), "holds no python/sglang", "give a wheel, or a checkout of sglang"))


def _of_folder(version: Version, folder: Path) -> Release:
    _holds_sglang(folder)
    files = (path for root in ("python/sglang", "test") for path in (folder / root).rglob("*") if path.is_file() and not path.is_symlink())
    paths = tuple(sorted(name for name in (path.relative_to(folder).as_posix() for path in files) if is_part_of_tree(name)))
    return Release(version, folder.resolve().name, lambda path: (folder / path).read_bytes() if (folder / path).is_file() else None, paths)


@contextmanager
def _of_archive(version: Version, file: Path, kind: str) -> Iterator[Release]:
    try:
        with zipfile.ZipFile(file) as archive:
            found = source.members(archive, kind, file.name)
            yield Release(version, file.name, lambda path: archive.read(found[path]) if path in found else None, tuple(sorted(found)))
    except zipfile.BadZipFile as error:
        raise Refused(Problem("bad-archive", file.name, f"is no zip archive: {error}", "do not use this archive")) from None
