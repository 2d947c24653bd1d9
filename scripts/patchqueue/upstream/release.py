"""The files of any release, pinned or not: of a wheel, of a checkout, or as the package index has
them; a release pinned by all its wheels, which must hold one tree; and a release with edits of
others, known by the files that they left alone.

Two pinned releases that follow each other have at most three quarters of their Python files in
common; a fork keeps nearly all of them.
"""

from __future__ import annotations

import datetime
import logging
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from packaging.version import Version

from ..files import run
from ..files.tree import GENERATED, SGLANG, differing, hash_python, is_part_of_tree, names, sha256
from ..outcome import Refused, some, to_type
from . import pins as pinning
from . import source
from .pins import Pin, Pins
from .source import Archive

LOG = logging.getLogger(__name__)
DAYS_TO_RESOLVE = 3  # dependencies that a release needs sometimes follow it by a day or two


@dataclass(frozen=True)
class Release:
    """files: path in git's layout -> content, sorted by path."""

    version: Version
    files: Mapping[str, bytes] = field(repr=False)

    @cached_property
    def listing(self) -> dict[str, str]:
        """The listing (see files/tree.py) of its files."""
        return {path: sha256(content) for path, content in self.files.items()}

    @property
    def tree(self) -> str:
        """The tree hash (see files/tree.py) of its files."""
        return hash_python(self.listing)


def find(pins: Pins, version: Version, origin: Path | None) -> Release:
    """A release. origin: a wheel, a folder of wheels, a checkout or an unpacked wheel. Raises
    Refused."""
    wheels = _wheels(origin, version) if origin else []
    if origin and origin.is_dir() and not wheels:
        LOG.info(f"sglang {version} from {origin}: its files as they stand")
        return of_folder(version, origin)
    if pin := pins.of(version):
        return Release(version, source.fetch(pin, origin).contents())
    with tempfile.TemporaryDirectory(prefix="patchqueue-rebase-") as space:
        file = next(iter(wheels), origin) or next(_offered(version, Path(space)), None)
        if file is None or not file.is_file():
            what, step = "no wheel of it is available", "check the version, or name a wheel: --from"
            raise Refused.of("not-fetched", f"sglang {version}", what, step)
        return Release(version, Archive(file).contents())


def _wheels(folder: Path, version: Version) -> list[Path]:
    return sorted(folder.glob(f"sglang-{version}-*.whl"))


def newer(pins: Pins) -> list[Version]:
    """The releases on the package index that are newer than all pins, oldest first."""
    with tempfile.TemporaryDirectory(prefix="patchqueue-watch-") as space:
        versions = map(Version, source.published(Path(space)))
    return sorted(
        version
        for version in versions
        if version > pins.all[-1].version and not version.is_prerelease
    )


def nearest_tag(path: Path) -> str:
    """The release's tag that is nearest below a checkout's HEAD; "" for none."""
    if not (path / ".git").exists():
        return ""
    above = {"GIT_CEILING_DIRECTORIES": str(path.resolve().parent)}  # no repository above it
    words = ("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*")
    try:
        said = run.git(path, *words, more=above).stdout
    except run.Failed:
        return ""
    return said.decode("utf-8", "replace").strip()


def of_folder(version: Version, folder: Path) -> Release:
    """The files of a checkout or of an unpacked wheel. Raises Refused where there is no sglang."""
    package = folder / SGLANG if (folder / SGLANG).is_dir() else folder / "sglang"
    if not (package / "srt").is_dir():  # sglang/ alone may be a checkout
        what = "holds no python/sglang and no sglang/srt"
        step = "name a checkout of sglang, or the folder that holds sglang/"
        raise Refused.of("not-fetched", str(folder), what, step)
    files = {
        SGLANG + path.relative_to(package).as_posix(): path
        for path in package.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    paths = sorted(filter(is_part_of_tree, files))
    return Release(version, {path: files[path].read_bytes() for path in paths})


def add_pin(root: Path, name: str, origin: Path | None) -> Pin:
    """Pin a version from the package index, or from a folder of its wheels. Raises Refused."""
    version = pinning.version(name)
    pinning.refuse_pinned(root, version)
    if origin and not origin.is_dir():
        step = f"name the folder that holds the wheels of sglang {version}"
        raise Refused.of("not-fetched", str(origin), "there is no such folder", step)
    with tempfile.TemporaryDirectory() as space:
        wheels = _wheels(origin, version) if origin else sorted(_offered(version, Path(space)))
        if not wheels:
            what, step = "no wheel of it is available", "check the version, and `pip config list`"
            raise Refused.of("not-fetched", f"sglang {version}", what, step)
        pin = describe(version, wheels)
    return pinning.add(root, pin)


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
            members = source.members(archive, wheel.name).items()
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
    """The release's wheels as they come. Raises Refused with the cause where none is available."""
    LOG.info(f"asking for the wheels of sglang {version}")
    for name in source.offered(version, folder):
        LOG.info(f"fetching {name}")
        done = source.download(str(version), name, folder)
        if not (folder / name).is_file():
            raise Refused.of("not-fetched", name, source.why(done, folder), source.STEP)
        yield folder / name


FEW = 20  # so many files of others are never too many
SHARE = 8  # one in so many of the release's files may be edited beside ours


@dataclass(frozen=True)
class Edits:
    """Edits of others in a release: paths in git's layout, sorted."""

    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(sorted((*self.changed, *self.added, *self.removed)))

    def as_record(self) -> dict[str, list[str]]:
        """For a record: by kind, below the folder that holds sglang/."""
        kinds = {"changed": self.changed, "added": self.added, "removed": self.removed}
        return {kind: [*names(paths)] for kind, paths in kinds.items()}


def between(release: Mapping[str, str], present: Mapping[str, str], whole: bool) -> Edits:
    """The differences from the release's listing. whole: it lists every file that belongs there;
    else Python files alone count as added and as removed, as a wheel and a git tag differ in
    others."""
    paths = [path for path in differing(release, present) if path != GENERATED]
    counted = [path for path in paths if whole or path.endswith(".py")]
    return Edits(
        tuple(path for path in paths if path in release and path in present),
        tuple(path for path in counted if path not in release),
        tuple(path for path in counted if path not in present),
    )


def refuse_other(
    where: str, pin: Pin, release: Mapping[str, str], edits: Edits, ours: Collection[str]
) -> None:
    """Raise Refused where so many files differ that they are another release's."""
    free = [path for path in release if path.endswith(".py") and path not in ours]
    unlike = {*edits.changed, *edits.removed}.intersection(free)
    if len(unlike) <= max(FEW, len(free) // SHARE):
        return
    what = (
        f"is too unlike {pin.tag}: {len(unlike)} of the {len(free)} Python files that the queue"
        f" does not touch differ, as {some(names(edits.paths))}"
    )
    step = (
        "name the release that it is made of: --release RELEASE; of a commit that is no release,"
        f" {to_type('rebase', 'RELEASE --from CHECKOUT')} says what fits"
    )
    raise Refused.of("unlike-release", where, what, step)
