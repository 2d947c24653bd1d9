"""Which releases a patch is for once a new release has joined: arithmetic on guards (PEP 440
ranges, as text).

A guard of the queue names whole releases, `>=0.5.20,<0.5.21`, their post releases included. Only
where two pins share a release (0.5.12 and 0.5.12.post1) does a bound name one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from packaging.specifiers import SpecifierSet
from packaging.version import Version


def release_of(version: Version) -> str:
    """The release that a version belongs to: 0.5.12.post1 -> 0.5.12."""
    return f"{version.major}.{version.minor}.{version.micro}"


def lower_bound(version: Version, pinned: Iterable[Version]) -> str:
    """Where a guard for this version begins: at its release, or at itself where an older pin has a
    part of that release."""
    older = any(other < version and release_of(other) == release_of(version) for other in pinned)
    return str(version) if older or version.is_prerelease else release_of(version)


def guard_for(version: Version, pinned: Iterable[Version]) -> str:
    """The guard of a variant for this version alone.

    >>> guard_for(Version("0.5.24"), [Version("0.5.23")])
    '>=0.5.24,<0.5.25'
    >>> guard_for(Version("0.5.12"), [Version("0.5.12.post1")])
    '>=0.5.12,<0.5.12.post1'
    """
    pinned = tuple(pinned)
    newer = [
        other for other in pinned if other > version and release_of(other) == release_of(version)
    ]
    end = str(min(newer)) if newer else f"{version.major}.{version.minor}.{version.micro + 1}"
    return f">={lower_bound(version, pinned)},<{end}"


def extended(guard: str, version: Version, pinned: Iterable[Version]) -> str | None:
    """The guard with its end moved behind `version`, its begin before it, or a hole in it closed;
    None where it is no plain range.

    >>> extended(">=0.5.20,<0.5.21", Version("0.5.22"), [Version("0.5.20")])
    '>=0.5.20,<0.5.23'
    >>> extended(">=0.5.18,<0.5.24", Version("0.5.17"), [Version("0.5.18")])
    '>=0.5.17,<0.5.24'
    >>> extended(">=0.5.16,<0.5.24,!=0.5.17.*", Version("0.5.17"), [Version("0.5.16")])
    '>=0.5.16,<0.5.24'
    """
    pinned = tuple(pinned)
    holes = {f"!={version}", f"!={release_of(version)}.*"}
    parts = re.split(r"\s*,\s*", guard.strip())
    rest = ",".join(part for part in parts if part not in holes)
    if holes & {*parts} and SpecifierSet(rest).contains(version, prereleases=True):
        return rest
    plain = re.fullmatch(r">=\s*([^,*]+),\s*<\s*([^,=*]+)|==\s*([^,*]+?)(?:\.\*)?", rest)
    if not plain:
        return None
    begin = (plain.group(1) or plain.group(3)).strip()
    if version < Version(begin):
        end = plain.group(2) or guard_for(Version(begin), pinned).partition("<")[2]
        return f">={lower_bound(version, pinned)},<{end.strip()}"
    return f">={begin},<{guard_for(version, pinned).partition('<')[2]}"


def split(guard: str, version: Version, pinned: Iterable[Version]) -> tuple[str, str]:
    """A guard that takes `version`, in two: what the older variant keeps, and what the newer one
    gets from this version on.

    The first is "" where no other pin is in the guard. Where pins follow that stay with the older
    variant, a hole is cut.

    >>> split(">=0.5.16,<0.5.18", Version("0.5.17"), [Version("0.5.16")])
    ('>=0.5.16,<0.5.17', '>=0.5.17,<0.5.18')
    >>> split(">=0.5.20", Version("0.5.24"), [Version("0.5.20"), Version("0.5.23")])
    ('>=0.5.20,<0.5.24', '>=0.5.24')
    >>> split(">=0.5.5,<0.5.8", Version("0.5.6"), [Version("0.5.5.post3"), Version("0.5.7")])
    ('>=0.5.5,<0.5.8,!=0.5.6.*', '==0.5.6.*')
    """
    pinned = tuple(pinned)
    inside = [
        other
        for other in pinned
        if other != version and SpecifierSet(guard).contains(other, prereleases=True)
    ]
    if not inside:
        return "", guard
    parts = [part.strip() for part in guard.split(",")]
    ups = [part for part in parts if part.startswith("<")]
    lows = [part for part in parts if part.startswith(">")]
    if len(ups) + len(lows) == len(parts) and max(inside) < version:
        start = lower_bound(version, pinned)
        return ",".join([*lows, f"<{start}"]), ",".join([f">={start}", *ups])
    shared = any(release_of(other) == release_of(version) for other in inside)
    hole = str(version) if shared else f"{release_of(version)}.*"
    return f"{guard},!={hole}", f"=={hole}"
