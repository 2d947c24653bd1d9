"""A GPU host's description (upstream/hosts/*.toml): what it brings itself, and what a release needs
to run there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field
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


class File(Struct, frozen=True, forbid_unknown_fields=True):
    """A description. python: "3.12"; platform: uv's name of it; torch: its version; brings:
    packages that are not packed."""

    python: str
    platform: str
    torch: str
    brings: tuple[str, ...]
    kernel: tuple[Replaced, ...] = ()
    package: tuple[Replaced, ...] = ()
    shim: tuple[Shim, ...] = ()
    share: tuple[Shared, ...] = ()


@dataclass(frozen=True)
class Host:
    """One host, as it is for one release; python to brings as in File.

    kernel: the package with the kernels, where it is another; others: more packages that are.
    dependencies_of: the release whose dependencies are packed (mostly the same release), and why
    another's are.
    """

    name: str
    python: str
    platform: str
    torch: str
    brings: tuple[str, ...]
    kernel: Replaced | None
    others: tuple[Replaced, ...]
    shims: tuple[Shim, ...]
    dependencies_of: Version
    shared_because: str


def with_release_torch(host: Host, version: Version, besides: Iterable[str]) -> Host:
    """The host as it is for a release that brings the torch it was made for: nothing stands in for
    the release's own packages.

    besides: what the host brings, and is packed all the same.
    """
    return replace(
        host,
        brings=tuple(name for name in host.brings if name not in besides),
        kernel=None,
        others=(),
        shims=(),
        dependencies_of=version,
        shared_because="",
    )


def load(path: Path, version: Version) -> Host:
    """The host that `path` describes, for one release. Raises Refused naming the file and what is
    wrong with it."""
    try:
        content = path.read_bytes()
    except OSError as error:
        step = f"describe the host as {DEFAULT} does"
        what = f"cannot be read: {error.strerror}"
        raise Refused.of("no-host", str(path), what, step) from None
    found = record.toml(content, File, str(path), "bad-host", f"see {DEFAULT}")
    kernels, shared = _for(version, found.kernel), _for(version, found.share)
    return Host(
        path.stem,
        found.python,
        found.platform,
        found.torch,
        found.brings,
        kernels[0] if kernels else None,
        _for(version, found.package),
        _for(version, found.shim),
        shared[0].dependencies_of if shared else version,
        shared[0].reason if shared else "",
    )


E = TypeVar("E", bound=Entry)


def _for(version: Version, entries: Iterable[E]) -> tuple[E, ...]:
    return tuple(one for one in entries if one.releases.contains(version, prereleases=True))
