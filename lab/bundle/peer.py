"""Pack another engine for a GPU host that reaches no package index, to be timed beside sglang.

Nothing of it is kept in this repository: its wheels come from the index, as they stood a few days
after the release, and go into dist/bundle/. tests/gpu/peer_engine.py runs what is packed here. On
request torch is packed too, as for a release (carried.py).
"""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from patchqueue.environments import lock
from patchqueue.environments.testing import pinned_torch
from patchqueue.outcome import Refused
from patchqueue.upstream.pins import Pins

from . import assemble, carried, packages, release
from .assemble import Bundle, Contents, Wanted
from .host import Host
from .rules import RULES

SCHEMA = 2
DAYS = 3  # after a release, until what its requirements resolve to is fixed
KNOWN = ("vllm",)


@dataclass(frozen=True)
class Peer:
    """A release of another engine. name: its package on the index."""

    name: str
    version: str

    @property
    def tag(self) -> str:
        return f"{self.name}-{self.version}"

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


def read(text: str) -> Peer:
    """The peer that "vllm==0.33.0" names. Raises ValueError in a sentence."""
    try:
        wanted = Requirement(text)
        (pin,) = wanted.specifier
        version = str(Version(pin.version))
    except (InvalidRequirement, ValueError):
        raise ValueError(f"{text!r} names no release: as vllm==0.33.0") from None
    if pin.operator != "==" or wanted.name not in KNOWN:
        raise ValueError(f"{text!r} names no release of {' or '.join(KNOWN)}: as vllm==0.33.0")
    return Peer(wanted.name, version)


def pack(root: Path, pins: Pins, peer: Peer, host: Host, wanted: Wanted) -> Bundle:
    """Write dist/bundle/<name>-<version>/ for a host. Raises Refused with uv's reason."""
    as_of = released(peer, host) + datetime.timedelta(days=DAYS)
    requires = lock.version_of(_resolve(peer, host, as_of), "torch")
    fits = not requires or _minor(requires) == _minor(host.torch)
    if not fits and not wanted.carry_torch:
        what = f"{peer.tag} requires torch {requires}, and {host.name} has {host.torch}"
        raise Refused.of("no-peer", "bundle --peer", what, "pack it too: --carry-torch")
    torch = None if fits else _torch(root, pins, requires, host, wanted.sm)
    host = host.less(torch.besides) if torch else host
    about = {"schema": SCHEMA, "peer": asdict(peer), "resolved_as_of": as_of.isoformat()}
    locked = release.without("torch", _resolve(peer, host, as_of))
    contents = Contents(peer.tag, about, locked, RULES.peer, own=(peer.name,), one_gpu=True)
    return assemble.pack(root, contents, host, torch, wanted)


def _torch(root: Path, pins: Pins, requires: str, host: Host, sm: int) -> carried.Carried | None:
    """The packed torch of the newest pinned release whose torch differs in the patch number alone
    from the one that the peer requires: one archive serves both. Raises Refused where no release
    has such a torch."""
    for pin in reversed(pins.all):
        pinned = pinned_torch(root, pin)
        if pinned and _minor(pinned) == _minor(requires):
            return release.torch_of(pin, host, sm)
    what = f"no pinned release has a torch as {requires}, whose archive would serve"
    raise Refused.of("no-peer", "bundle --carry-torch", what, "name another release of the peer")


def _minor(version: str) -> tuple[int, ...]:
    """A version's major and minor number: extensions of one fit all patch releases."""
    return Version(version).release[:2]


def released(peer: Peer, host: Host) -> datetime.date:
    """The day on which the index got the release's wheel. Raises Refused."""
    found = packages.Index(host).resolve([peer.requirement], ["--no-deps"])
    wheels = (wheel for one in found["packages"] for wheel in one["wheels"])
    latest: datetime.datetime = max(wheel["upload-time"] for wheel in wheels)
    return latest.date()


def _resolve(peer: Peer, host: Host, as_of: datetime.date) -> str:
    """What is installed, and torch, as hashed requirements. Raises Refused."""
    words = ["--exclude-newer", lock.until(as_of)]
    excluded = [*RULES.peer.packages, *lock.cuda_libraries(RULES.cuda)]
    excluded += [name for name in host.brings if name != "torch"]
    return lock.body(packages.Index(host).resolve([peer.requirement], words, excluded))
