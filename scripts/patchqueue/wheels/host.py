"""A GPU host's description (upstream/hosts/*.toml): what it brings itself, and what a release needs
to run there."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from ..outcome import Refused

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path("upstream/hosts")
DEFAULT = FOLDER / "torch-2.11.toml"


@dataclass(frozen=True)
class Replaced:
    """A package that replaces the release's own. package: "name==version"."""

    package: str
    instead_of: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Shim:
    """A module of hostsite/shims/ that lets a release run on a torch it was not made for."""

    module: str
    reason: str


@dataclass(frozen=True)
class Host:
    """One host, as it is for one release.

    python: "3.12"; platform: uv's name of it; torch: its version; brings: packages that are not
    packed. kernel: the package with the kernels, where it is another; others: more packages that
    are. dependencies_of: the release whose dependencies are packed (mostly the same release), and
    why another's are.
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


def load(path: Path, version: Version) -> Host:
    """The host that `path` describes, for one release. Raises Refused naming the file and what is
    wrong with it."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        kernels, others = (_replaced(data, kind, version) for kind in ("kernel", "package"))
        shims = tuple(Shim(e["module"], e["reason"]) for e in _matching(data, "shim", version))
        shared = _matching(data, "share", version)
        return Host(
            path.stem,
            data["python"],
            data["platform"],
            data["torch"],
            tuple(data["brings"]),
            kernels[0] if kernels else None,
            others,
            shims,
            Version(shared[0]["dependencies_of"]) if shared else version,
            shared[0]["reason"] if shared else "",
        )
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        step = f"describe the host as {DEFAULT} does"
        raise Refused.of("no-host", str(path), what, step) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, InvalidSpecifier, TypeError) as error:
        raise Refused.of(
            "bad-host", str(path), f"is no host description: {error}", f"see {DEFAULT}"
        ) from None
    except KeyError as missing:
        raise Refused.of(
            "bad-host", str(path), f"does not say {missing}", f"see {DEFAULT}"
        ) from None


def _replaced(data: dict, kind: str, version: Version) -> tuple[Replaced, ...]:
    return tuple(
        Replaced(e["package"], tuple(e["instead_of"]), e["reason"])
        for e in _matching(data, kind, version)
    )


def _matching(data: dict, kind: str, version: Version) -> list[dict]:
    return [
        entry
        for entry in data.get(kind, [])
        if SpecifierSet(entry["for"]).contains(version, prereleases=True)
    ]
