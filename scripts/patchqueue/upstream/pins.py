"""The pinned revisions: upstream/pins.toml, the only file that names a version of sglang (series
guards aside)."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct
from packaging.utils import parse_wheel_filename
from packaging.version import InvalidVersion, Version

from ..files import atomic, record
from ..outcome import Refused, to_type

FILE = Path("upstream/pins.toml")
HEAD = (
    f"# The pinned releases of sglang. {to_type('pin', 'VERSION')} adds one; no other file names a"
    " version (series guards aside).\n"
)
TreeHash = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
# it names a folder in work/, and an argument of git
Tag = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*\Z")]


class Wheel(Struct, frozen=True, forbid_unknown_fields=True):
    """One wheel of a release."""

    file: str
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Pin(Struct, frozen=True, forbid_unknown_fields=True):
    """One pinned revision, as the file has it. tree: of the release (see files/tree.py); patched:
    the same with the whole queue on it; resolve_as_of: the day as of which its environment is
    resolved."""

    version: Version
    tag: Tag
    released: datetime.date
    resolve_as_of: datetime.date
    tree: TreeHash
    wheels: Annotated[tuple[Wheel, ...], Meta(min_length=1)]
    patched: Annotated[str, Meta(pattern=r"^(sha256:[0-9a-f]{64})?\Z")] = ""

    def __post_init__(self) -> None:
        for wheel in self.wheels:
            name, version, _, _ = parse_wheel_filename(wheel.file)
            if (name, version) != ("sglang", self.version):
                raise ValueError(f"{wheel.file} is not a wheel of sglang {self.version}")


class File(Struct, frozen=True):
    """upstream/pins.toml."""

    default: str
    revision: Annotated[list[Any], Meta(min_length=1)]
    tested: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pins:
    """All pins, oldest first; those that are meant, and tested, when none is named."""

    all: tuple[Pin, ...]
    default: Pin
    tested: tuple[Pin, ...]

    def of(self, version: Version) -> Pin | None:
        """The pin of a version; None where the version is not pinned."""
        return next((pin for pin in self.all if pin.version == version), None)

    def with_tree(self, tree: str) -> Pin | None:
        """The pin whose Python files have this hash; None where no pin has it."""
        return next((pin for pin in self.all if pin.tree == tree), None)

    def near(self, version: Version) -> list[Pin]:
        """The pins of the same release with another post part: 0.5.12.post1 of 0.5.12."""
        base = Version(version.base_version)  # 0.6 is 0.6.0
        return [pin for pin in self.all if Version(pin.version.base_version) == base]

    def find(self, name: str) -> Pin:
        """The pin that a user calls `name`: "v0.5.9", "0.5.9", or an installed "0.5.9+cu130".
        Raises Refused."""
        pinned = " ".join(pin.tag for pin in self.all)
        wanted = version(name, f"; pinned are {pinned}", self.default.tag)
        if pin := self.of(wanted):
            return pin
        what, step = f"this release is not pinned; pinned are {pinned}", "name one of these"
        if near := [pin.tag for pin in self.near(wanted)]:
            what = f"this release is not pinned; did you mean {' or '.join(near)}?"
            step = f"the same command with {near[-1]}"
        step += f"; {to_type('rebase', wanted)} says what the queue does on another release"
        raise Refused.of("unknown-release", repr(name), what, step)


def version(name: str, known: str = "", example: str = "0.5.24") -> Version:
    """The version that a user calls `name`, pinned or not. Raises Refused where it is none."""
    try:
        return Version(Version(name).public)  # of a leading v too, and without +cu130
    except InvalidVersion:
        what, step = f"this is not a version{known}", f"name one, as {example}"
        raise Refused.of("unknown-release", repr(name), what, step) from None


def load(root: Path) -> Pins:
    """upstream/pins.toml below `root`, checked. Raises Refused naming the entry and the field."""
    try:
        content = (root / FILE).read_bytes()
    except OSError:
        what, step = "does not exist, or is no file", f"run it in the project's folder, not {root}"
        raise Refused.of("no-pins", str(FILE), what, step) from None
    file = record.toml(content, File, str(FILE), "bad-pins")
    pins = sorted(
        (check(entry, number) for number, entry in enumerate(file.revision, 1)),
        key=lambda pin: pin.version,
    )
    for earlier, later in itertools.pairwise(pins):
        if earlier.version == later.version:
            raise Refused.of("duplicate-pin", str(FILE), f"{later.tag} is pinned twice")
    if len({pin.tag for pin in pins}) < len(pins):
        raise Refused.of("duplicate-pin", str(FILE), "two revisions have the same tag")
    by_name = {str(pin.version): pin for pin in pins}
    for field, named in (("default", (file.default,)), ("tested", file.tested)):
        if unknown := [name for name in named if name not in by_name]:
            what = f"{field} = {unknown[0]!r} is none of its revisions"
            raise Refused.of("bad-pins", str(FILE), what)
    return Pins(tuple(pins), by_name[file.default], tuple(by_name[name] for name in file.tested))


def check(entry: Any, number: int = 0) -> Pin:
    """An entry of pins.toml. Raises Refused naming the field that is wrong."""
    name = entry.get("version", number) if isinstance(entry, dict) else number
    return record.value(entry, Pin, f"{FILE}: revision {name}", "bad-pins")


def with_patched(text: str, trees: Mapping[Version, str]) -> str:
    """The file's text with these trees as `patched` of their releases."""
    import tomlkit  # which a wheel of the tool does not require: it writes no pins

    file = tomlkit.parse(text)
    for entry in file["revision"]:
        if tree := trees.get(Version(entry["version"])):
            entry["patched"] = tree
    return tomlkit.dumps(file)


def add(root: Path, pin: Pin) -> Pin:
    """Write one more release into the file, which is made where there is none. Raises Refused."""
    wheels = "".join(f'    {{file = "{w.file}", sha256 = "{w.sha256}"}},\n' for w in pin.wheels)
    entry = (
        f'[[revision]]\nversion = "{pin.version}"\ntag = "{pin.tag}"\nreleased = {pin.released}\n'
        f'resolve_as_of = {pin.resolve_as_of}\ntree = "{pin.tree}"\npatched = ""\n'
        f"wheels = [\n{wheels}]\n\n"
    )
    with atomic.locked(root / atomic.QUEUE_LOCK):
        refuse_pinned(root, pin.version)  # another run may have pinned one meanwhile
        file = root / FILE
        head = HEAD + f'default = "{pin.version}"'
        text = file.read_text("utf-8") if file.is_file() else head
        atomic.write(file, f"{text.rstrip()}\n\n{entry}".encode())
    return load(root).find(str(pin.version))


def refuse_pinned(root: Path, version: Version) -> None:
    """Raise Refused where the file is broken, or has the version already."""
    if not (root / FILE).is_file():
        return
    if any(pin.version == version for pin in load(root).all):
        step = f"{to_type('rebase', version)} says what the queue does on it"
        raise Refused.of("duplicate-pin", str(FILE), f"{version} is pinned already", step)
