"""The pinned revisions: upstream/pins.toml, the only file that names a version of sglang (series
guards aside)."""

from __future__ import annotations

import datetime
import itertools
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from ..hint import to_type
from ..outcome import Problem, Refused

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path("upstream/pins.toml")
HASH = re.compile(r"sha256:[0-9a-f]{64}")
# it names a folder in work/, and an argument of git
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True)
class Wheel:
    """One wheel of a release. sha256: 64 hex digits."""

    file: str
    sha256: str


@dataclass(frozen=True)
class Pin:
    """One pinned revision.

    tree: tree hash of the pristine tree of every wheel of the release (see files/tree.py).
    python: tree hash of its Python files alone, which a git checkout at the tag has too.
    resolve_as_of: the revision's environment is resolved as the package index stood on this day.
    no_patches: why the queue has no patch for this revision; empty where it has some.
    """

    version: Version
    tag: str
    released: datetime.date
    resolve_as_of: datetime.date
    tree: str
    python: str
    wheels: tuple[Wheel, ...]
    no_patches: str = ""


@dataclass(frozen=True)
class Pins:
    """All pins, oldest first; the one that is meant when none is named; those that are tested when
    none is named."""

    all: tuple[Pin, ...]
    default: Pin
    tested: tuple[Pin, ...]

    def find(self, name: str) -> Pin:
        """The pin that a user calls `name`: "v0.5.9", "0.5.9", or an installed "0.5.9+cu130".

        Raises Refused with the known names when there is none.
        """
        try:
            # parses the leading v too; a local part (+cu130) does not matter
            wanted = Version(Version(name).public)
        except InvalidVersion:
            raise Refused(
                self._unknown(name, "is no version", f"name one of these, as {self.default.tag}")
            ) from None
        for pin in self.all:
            if pin.version == wanted:
                return pin
        near = [pin.tag for pin in self.all if _without_post(pin.version) == _without_post(wanted)]
        if near:
            what = f"is not pinned; did you mean {' or '.join(near)}?"
            raise Refused.of(
                "unknown-revision", repr(name), what, f"the same command with {near[-1]}"
            )
        step = (
            f"name one of these; {to_type('rebase', wanted)} says what the queue does on another"
            " release"
        )
        raise Refused(self._unknown(name, "is not pinned", step))

    def _unknown(self, name: str, why: str, step: str) -> Problem:
        known = " ".join(pin.tag for pin in self.all)
        return Problem("unknown-revision", repr(name), f"{why}; pinned are {known}", step)


def _without_post(version: Version) -> Version:
    return Version(version.base_version)


def version(name: str) -> Version:
    """The version that a user calls `name`, pinned or not; a local part (+cu130) does not
    matter."""
    try:
        return Version(Version(name).public)
    except InvalidVersion:
        what = "is no version, no wheel and no folder"
        step = f"name one as in {to_type('rebase', '0.5.24')}"
        raise Refused.of("unknown-revision", repr(name), what, step) from None


def load(root: Path) -> Pins:
    """Read and check upstream/pins.toml below `root`. Raises Refused naming the entry and the
    field."""
    path = root / FILE
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        what = "does not exist, or is no file"
        step = f"run it in the project's folder, not {root}"
        raise Refused.of("no-pins", str(FILE), what, step) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _bad(str(FILE), f"is not TOML: {error}") from None
    entries = data.get("revision")
    if not isinstance(entries, list) or not entries:
        raise _bad(str(FILE), "has no [[revision]]")
    pins = tuple(
        sorted(
            (_pin(number, entry) for number, entry in enumerate(entries, 1)),
            key=lambda pin: pin.version,
        )
    )
    for earlier, later in itertools.pairwise(pins):
        if earlier.version == later.version:
            raise Refused.of("duplicate-pin", str(FILE), f"{later.tag} is pinned twice")
    if len({pin.tag for pin in pins}) < len(pins):
        raise Refused.of("duplicate-pin", str(FILE), "two revisions have the same tag")
    by_name = {str(pin.version): pin for pin in pins}
    tested = data.get("tested", [])
    if not isinstance(data.get("default"), str) or data["default"] not in by_name:
        raise _bad(str(FILE), f"default = {data.get('default')!r} is none of its revisions")
    if not isinstance(tested, list) or not all(
        isinstance(name, str) and name in by_name for name in tested
    ):
        raise _bad(str(FILE), f"tested = {tested!r} is no list of its revisions")
    return Pins(pins, by_name[data["default"]], tuple(by_name[name] for name in tested))


def check(entry: object) -> None:
    """Raise Refused unless `entry` may stand in pins.toml."""
    _pin(0, entry)


def _pin(number: int, entry: object) -> Pin:
    if not isinstance(entry, dict):
        raise _bad(f"{FILE}: revision {number}", f"is no [[revision]] table: {entry!r}")
    where = f"{FILE}: revision {entry.get('version', number)}"

    def field(name: str, kind: type) -> Any:
        value = entry.get(name)
        if type(value) is not kind:
            raise _bad(where, f"{name} must be a {kind.__name__}, not {value!r}")
        return value

    def tree_hash(name: str) -> str:
        if not HASH.fullmatch(field(name, str)):
            raise _bad(where, f"{name} must be sha256: and 64 hex digits, not {entry[name]!r}")
        return str(entry[name])

    try:
        version = Version(field("version", str))
    except InvalidVersion:
        raise _bad(where, "version is no PEP 440 version") from None
    if not TAG.fullmatch(field("tag", str)):
        raise _bad(where, f"tag {entry['tag']!r} could not name a folder in work/")
    wheels = tuple(_wheel(where, version, wheel) for wheel in field("wheels", list))
    if not wheels:
        raise _bad(where, "has no wheels")
    unknown = entry.keys() - {"no_patches", *(name for name in Pin.__dataclass_fields__)}
    if unknown:
        raise _bad(where, f"has unknown fields {sorted(unknown)}")
    return Pin(
        version,
        field("tag", str),
        field("released", datetime.date),
        field("resolve_as_of", datetime.date),
        tree_hash("tree"),
        tree_hash("python"),
        wheels,
        field("no_patches", str) if "no_patches" in entry else "",
    )


def _bad(where: str, what: str) -> Refused:
    return Refused.of("bad-pins", where, what)


def _wheel(where: str, version: Version, entry: object) -> Wheel:
    if (
        not isinstance(entry, dict)
        or set(entry) != {"file", "sha256"}
        or not all(isinstance(v, str) for v in entry.values())
    ):
        raise _bad(where, f"a wheel is {{file = …, sha256 = …}}, not {entry!r}")
    if not re.fullmatch("[0-9a-f]{64}", entry["sha256"]):
        raise _bad(where, f"{entry['file']}: sha256 is not 64 hex digits")
    try:
        name, found, _, _ = parse_wheel_filename(entry["file"])
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise _bad(where, str(error)) from None
    if (name, found) != ("sglang", version):
        raise _bad(where, f"{entry['file']} is not a wheel of sglang {version}")
    return Wheel(entry["file"], entry["sha256"])
