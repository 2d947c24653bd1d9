"""A GPU host's description (upstream/hosts/*.toml): what it brings itself, and what a release needs
to run there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from patchqueue.files import record
from patchqueue.outcome import Refused

FOLDER = Path("upstream/hosts")
DEFAULT = FOLDER / "torch-2.11.toml"


class Entry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What some releases need, and why."""

    releases: SpecifierSet = field(name="for")
    reason: str


class Replaced(Entry, frozen=True, kw_only=True):
    """A package that replaces the release's own. package: "name==version"."""

    package: str
    instead_of: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        return {"package": self.package, "instead_of": self.instead_of, "reason": self.reason}


class Shim(Entry, frozen=True, kw_only=True):
    """A module of hostsite/shims/ that lets a release run on a torch it was not made for."""

    module: str

    def as_json(self) -> dict[str, object]:
        return {"module": self.module, "reason": self.reason}


class Shared(Entry, frozen=True, kw_only=True):
    """The release whose dependencies are packed instead."""

    dependencies_of: Version


class Host(Struct, frozen=True, forbid_unknown_fields=True):
    """A description. python: "3.12"; platform: uv's name of it; torch: its version; brings:
    packages that are not packed; name: of the file.

    kernel: the package with the kernels, where it is not the release's own; package: more packages
    that are not; share: the release whose dependencies are packed, where it is another. As it is
    for one release, each has at most one kernel and one share.
    """

    python: str
    platform: str
    torch: str
    brings: tuple[str, ...]
    kernel: tuple[Replaced, ...] = ()
    package: tuple[Replaced, ...] = ()
    shim: tuple[Shim, ...] = ()
    share: tuple[Shared, ...] = ()
    name: str = ""

    def with_release_torch(self, besides: Iterable[str]) -> Host:
        """The host as it is for a release that brings the torch it was made for: nothing stands in
        for the release's own packages.

        besides: what the host brings, and is packed all the same.
        """
        brings = tuple(name for name in self.brings if name not in besides)
        return replace(self, brings=brings, kernel=(), package=(), shim=(), share=())


def load(path: Path, version: Version) -> Host:
    """The host that `path` describes, for one release. Raises Refused naming the file and what is
    wrong with it."""
    try:
        content = path.read_bytes()
    except OSError as error:
        step = f"describe the host as {DEFAULT} does"
        what = f"cannot be read: {error.strerror}"
        raise Refused.of("no-host", str(path), what, step) from None
    host = record.toml(content, Host, str(path), "bad-host", f"see {DEFAULT}")
    return replace(
        host,
        name=path.stem,
        kernel=_for(version, host.kernel)[:1],
        package=_for(version, host.package),
        shim=_for(version, host.shim),
        share=_for(version, host.share)[:1],
    )


E = TypeVar("E", bound=Entry)


def _for(version: Version, entries: Iterable[E]) -> tuple[E, ...]:
    return tuple(one for one in entries if one.releases.contains(version, prereleases=True))
