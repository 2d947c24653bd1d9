"""What a release of the queue was made of, and which files were published: releases/N.toml.

The file of a release appears when it is cut, and is never changed again. Until then its number is
that of the work in progress, `RELEASE`. From then on whatever is built under that number must be
the same; other content takes the next number.
"""

from __future__ import annotations

import datetime
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tomlkit
from msgspec import Meta, Struct
from packaging.version import Version

from ..files import record
from ..hint import some, to_type
from ..outcome import Problem, Refused

FOLDER = Path("releases")
ABOUT = FOLDER / "about.toml"
NUMBERED = "scripts/patchqueue/__init__.py"  # where RELEASE is
HEAD = "Release {} of the queue: what it was made of, and the files that were published."
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Named = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
# "" or an address, without a slash at its end
Address = Annotated[str, Meta(pattern=r"^(https://\S*[^/\s])?\Z")]


class Asset(Struct, frozen=True, forbid_unknown_fields=True):
    """A file that was published, by its name in the release."""

    file: str
    sha256: Sha256


class Wheel(Asset, frozen=True, forbid_unknown_fields=True):
    """A wheel that was published.

    size: in bytes; record, metadata: the sha256 of its RECORD and METADATA; python: the versions of
    Python that it is for, "" for all.

    RECORD names every member by its hash. Two wheels with one RECORD hold the same files, even
    where another zlib packed them into other bytes.
    """

    size: int
    record: Sha256
    metadata: Sha256
    python: str


class Revision(Struct, frozen=True, forbid_unknown_fields=True):
    """What was laid on one release of sglang: both hashes as in laying/selection.py, stack and
    effect."""

    version: Version
    queue: Named
    changes: Named
    patch: Asset | None = None
    wheels: tuple[Wheel, ...] = ()


class Release(Struct, frozen=True, forbid_unknown_fields=True):
    """One release of the queue. day: when it was cut; zlib: the version that packed its wheels."""

    release: int
    day: datetime.date
    zlib: str
    revision: tuple[Revision, ...]

    def find(self, version: Version) -> Revision | None:
        return next((each for each in self.revision if each.version == version), None)

    @property
    def assets(self) -> dict[str, Asset]:
        """Every file with a hash of its own, by name."""
        each = [
            asset
            for found in self.revision
            for asset in (*([found.patch] if found.patch else []), *found.wheels)
        ]
        return {asset.file: asset for asset in each}


class About(Struct, frozen=True, forbid_unknown_fields=True):
    """releases/about.toml."""

    repository: Address = ""


@dataclass(frozen=True)
class Hashes:
    """What the queue lays on one release today."""

    version: Version
    queue: str
    changes: str


def tag(release: int) -> str:
    """The tag of a release of the queue: "pcg-2"."""
    return f"pcg-{release}"


def file(release: int) -> Path:
    return FOLDER / f"{release}.toml"


def repository(root: Path) -> str:
    """The queue's own address; "" where it is not published. Raises Refused where about.toml is
    broken."""
    try:
        content = (root / ABOUT).read_bytes()
    except FileNotFoundError:
        return ""
    return record.toml(content, About, str(ABOUT), "bad-releases").repository


def read(root: Path, release: int) -> Release | None:
    """A release of the queue; None where it is not cut yet. Raises Refused where its file is
    broken."""
    where = file(release)
    try:
        content = (root / where).read_bytes()
    except FileNotFoundError:
        return None
    found = record.toml(content, Release, str(where), "bad-releases")
    if found.release != release:
        what = f"is of release {found.release}"
        raise Refused.of("bad-releases", str(where), what, "take the file of its tag")
    return found


def every(root: Path) -> list[Release]:
    """All releases that were cut, oldest first. Raises Refused where a file is broken."""
    numbers = sorted(
        int(path.stem) for path in (root / FOLDER).glob("*.toml") if path.stem.isdigit()
    )
    return [found for number in numbers if (found := read(root, number))]


def text(release: Release, written_by: str) -> bytes:
    """The file of a release. written_by: the command that writes it, in backticks."""
    document = tomlkit.document()
    document.add(tomlkit.comment(f"{HEAD.format(release.release)} Written by"))
    document.add(tomlkit.comment(f"{written_by}; never changed again."))
    document.add("release", tomlkit.item(release.release))
    document.add("day", tomlkit.item(release.day))
    document.add("zlib", tomlkit.item(release.zlib))
    revisions = tomlkit.aot()
    for each in release.revision:
        table = tomlkit.table()
        table.update({"version": str(each.version), "queue": each.queue, "changes": each.changes})
        if each.patch:
            table.add("patch", _inline(file=each.patch.file, sha256=each.patch.sha256))
        wheels = tomlkit.array().multiline(True)
        for wheel in each.wheels:
            wheels.append(
                _inline(
                    file=wheel.file,
                    sha256=wheel.sha256,
                    size=wheel.size,
                    record=wheel.record,
                    metadata=wheel.metadata,
                    python=wheel.python,
                )
            )
        table.add("wheels", wheels)
        revisions.append(table)
    document.add("revision", revisions)
    return tomlkit.dumps(document).encode()


def _inline(**fields: str | int) -> tomlkit.items.InlineTable:
    made = tomlkit.inline_table()
    made.update(fields)
    return made


def differences(root: Path, number: int, today: Iterable[Hashes]) -> list[Problem]:
    """What of today's content is not that of the release `number`, where it was cut; and a number
    that is behind."""
    newest = max((each.release for each in every(root)), default=0)
    if number < newest:
        what = f"RELEASE is {number}, and release {newest} was cut"
        step = f"RELEASE = {newest + 1} in {NUMBERED} begins the next release"
        return [Problem("old-number", NUMBERED, what, step)]
    cut = read(root, number)
    if cut is None:
        return []
    changed = [str(now.version) for now in today if not _same(cut.find(now.version), now)]
    if not changed:
        return []
    what = f"was cut with another content for {some(changed)}"
    return [Problem("frozen-release", str(file(number)), what, _next())]


def _same(cut: Revision | None, now: Hashes) -> bool:
    return cut is not None and (cut.queue, cut.changes) == (now.queue, now.changes)


def _next() -> str:
    return f"{to_type('release', '--next')} begins the next release"


def refuse_other(root: Path, number: int, version: Version, queue: str) -> None:
    """Raise Refused where the release `number` was cut, and laid something else on this version
    than `queue`, a stack's hash."""
    cut = read(root, number)
    found = cut.find(version) if cut else None
    if cut and (found is None or found.queue != queue):
        what = f"was cut with another content for {version}, and a wheel of that name exists"
        raise Refused.of("frozen-release", str(file(number)), what, _next())


def mismatches(cut: Release, made: Mapping[str, Asset]) -> list[Problem]:
    """Files that were made again and are not those of the release, by name."""
    known, where = cut.assets, str(file(cut.release))
    problems = []
    for name, asset in sorted(made.items()):
        old = known.get(name)
        if old is None:
            what, step = f"has no {name}", f"leave it out, or {_next()}"
            problems.append(Problem("not-released", where, what, step))
        elif old.sha256 != asset.sha256:
            problems.append(_other(where, cut.zlib, old, asset))
    return problems


def _other(where: str, packed: str, old: Asset, new: Asset) -> Problem:
    """Why a file is not the published one. packed: the zlib that packed that."""
    same = isinstance(old, Wheel) and isinstance(new, Wheel) and old.record == new.record
    what = f"has {old.file} with sha256 {old.sha256[:12]}…, and {new.sha256[:12]}… was made"
    if same:
        here = zlib.ZLIB_RUNTIME_VERSION
        step = f"its files are the same: take a Python with zlib {packed}, this one has {here}"
        return Problem("other-zlib", where, what, step)
    return Problem("frozen-release", where, what, "publish the file that was released")
