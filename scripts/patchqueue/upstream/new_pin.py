"""Pin a release: find all its wheels, and prove that they hold one and the same tree."""

from __future__ import annotations

import datetime
import logging
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import tomlkit
from packaging.version import Version

from ..files.tree import hash_listing, hash_python, sha256
from ..hint import to_type
from ..outcome import Refused
from . import index, pins, source

LOG = logging.getLogger(__name__)

DAYS_TO_RESOLVE = 3  # dependencies that a release needs sometimes follow it by a day or two


def add(root: Path, name: str, origin: str | None) -> pins.Pin:
    """Pin version `name` from the package index (or from a folder of its wheels, `origin`).

    Raises Refused, with pins.toml untouched, when it is pinned already, when no wheel is available,
    or when its wheels differ in more than compiled parts.
    """
    version = version_of(name)
    pins.refuse_pinned(root, version)
    if origin and not Path(origin).is_dir():
        step = f"name the folder that holds the wheels of sglang {version}"
        raise Refused.of("not-fetched", origin, "is no folder", step)
    with tempfile.TemporaryDirectory() as space:
        local = Path(origin or "").glob(f"sglang-{version}-*.whl")
        wheels = sorted(local if origin else _offered(version, Path(space)))
        if not wheels:
            what, step = "no wheel of it is available", "check the version, and `pip config list`"
            raise Refused.of("not-fetched", f"sglang {version}", what, step)
        entry = describe(version, wheels)
    return pins.add(root, version, entry)


def version_of(name: str) -> Version:
    """The version that a user asks to pin. Raises Refused where it is none."""
    return pins.version(name, "is no version", to_type("pin", "0.5.24"))


def describe(version: Version, wheels: Sequence[Path]) -> tomlkit.items.Table:
    """A release's pin, from all its wheels. Raises Refused where their trees are not the same."""
    contents = {wheel.name: _look_into(wheel) for wheel in wheels}
    trees = {name: hash_listing(listing) for name, (listing, _) in contents.items()}
    if len(set(trees.values())) > 1:
        what = f"its wheels hold different trees: {trees}"
        step = "find out which one is the release"
        raise Refused.of("wheels-differ", f"sglang {version}", what, step)
    newest = max(day for _, day in contents.values())
    entry = tomlkit.table()
    entry["version"] = str(version)
    entry["tag"] = f"v{version}"
    entry["released"] = newest
    entry["resolve_as_of"] = newest + datetime.timedelta(days=DAYS_TO_RESOLVE)
    entry["tree"] = hash_python(contents[wheels[0].name][0])
    entry["wheels"] = tomlkit.array()
    for wheel in wheels:
        item = tomlkit.inline_table()
        item.update({"file": wheel.name, "sha256": source.file_sha256(wheel)})
        entry["wheels"].append(item)
    entry["wheels"].multiline(True)
    entry.add(tomlkit.nl())
    return entry


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


def wheel_of(version: Version, folder: Path) -> Path | None:
    """Some wheel of the release, fetched into `folder`: their Python files are the same. None where
    there is none."""
    return next(_offered(version, folder), None)


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
            raise Refused.of("not-fetched", name, index.why(done), index.STEP)
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
