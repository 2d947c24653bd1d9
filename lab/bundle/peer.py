"""Pack another engine for a GPU host that reaches no package index, to be timed beside sglang.

Nothing of it is kept in this repository: its wheels come from the index, as they stood a few days
after the release, and go into dist/bundle/. tests/gpu/peer_engine.py runs what is packed here. On
request torch is packed too, as for a release (carried.py).
"""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from patchqueue.environments import lock
from patchqueue.environments.testing import pinned_torch
from patchqueue.outcome import Refused
from patchqueue.upstream.pins import Pins

from . import carried, packages, packing, release
from .host import Host
from .host import load as load_host

SCHEMA = 2
DAYS = 3  # after a release, until what its requirements resolve to is fixed

LEFT_OUT = (
    release.LeftOut(
        # xgrammar, llguidance and openai-harmony are imported whatever is served
        "other ways to structured output, and other front ends",
        "lm-format-enforcer mistral-common anthropic mcp grpcio diskcache fastapi-cli"
        " fastapi-cloud-cli sentry-sdk",
    ),
    release.LeftOut(
        "fetching models, audio, images and video",
        "hf-xet torchcodec pynvvideocodec opencv-python-headless fastsafetensors instanttensor"
        " soundfile av pycountry",
    ),
    release.LeftOut(
        "kernels for models and GPUs that the runs do not use, and their compilers",
        "flashinfer-cubin tilelang tokenspeed-mla tokenspeed-triton humming-kernels"
        " nvidia-cudnn-frontend cuda-tile z3-solver ml-dtypes torch-c-dlpack-ext",
    ),
    release.LeftOut(
        "NCCL for Python, with libraries of its own: a peer runs on one GPU",
        "nccl4py nccl-extensions",
    ),
)
TRIMMED = (
    packing.Trimmed(
        "FlashAttention 2 (300 MB): a GPU of capability 9.0 has FlashAttention 3",
        ("vllm/vllm_flash_attn/_vllm_fa2_C*",),
    ),
    packing.Trimmed(
        "kernels for 8-bit matrices and other GPUs, which the models do not call",
        ("vllm/third_party/deep_gemm", "vllm/third_party/fmha_sm100", "vllm/_qutlass_C*"),
    ),
    packing.Trimmed("a front end that the runs do not start", ("vllm/vllm-rs",)),
    *release.TRIMMED,
)


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


KNOWN = ("vllm",)


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


def pack(
    root: Path, pins: Pins, peer: Peer, description: Path, wanted: release.Wanted
) -> release.Bundle:
    """Write dist/bundle/<name>-<version>/ for the host described. Raises Refused with uv's
    reason."""
    host, sm = load_host(description), wanted.sm
    as_of = released(peer, host) + datetime.timedelta(days=DAYS)
    requires = lock.version_of(_resolve(peer, host, as_of), "torch")
    fits = not requires or _minor(requires) == _minor(host.torch)
    if not fits and not wanted.carry_torch:
        what = f"{peer.tag} requires torch {requires}, and {host.name} has {host.torch}"
        raise Refused.of("no-peer", "bundle --peer", what, "pack it too: --carry-torch")
    torch = None if fits else _torch(root, pins, requires, host, sm)
    if torch:
        host = host.less(torch.besides)
    locked = release.without("torch", _resolve(peer, host, as_of))
    made_of = [locked, [rule.patterns for rule in TRIMMED], host.python, host.platform, sm, SCHEMA]

    def make(scratch: Path) -> packages.Packed:
        site, hostsite = scratch / "site", scratch / "hostsite"
        facts = release.installed(host, site, locked, peer.tag, TRIMMED, sm, (peer.name,))
        release.lay_host_files(hostsite, {"stand_ins": []})
        return packages.Packed([(site, "site"), (hostsite, "hostsite")], facts)

    said = f"packing {peer.tag} for sm_{sm} (some minutes and GBs, once)"
    archive, facts = packages.kept("peers", made_of, said, "site.tar.xz", make)
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "peer": asdict(peer),
        "resolved_as_of": as_of.isoformat(),
        "host": {"name": host.name, "python": host.python, "torch": host.torch},
        "sm": sm,
        **facts,
    }
    folder = root / "dist/bundle" / peer.tag
    return release.finish(folder, manifest, {"site": archive}, torch, wanted.part_size)


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
    times: list[datetime.datetime] = [
        wheel["upload-time"] for one in found["packages"] for wheel in one["wheels"]
    ]
    return max(time.date() for time in times)


def _resolve(peer: Peer, host: Host, as_of: datetime.date) -> str:
    """What is installed, and torch, as hashed requirements. Raises Refused."""
    words = ["--exclude-newer", lock.until(as_of)]
    left_out = [name for rule in LEFT_OUT for name in rule.packages.split()]
    brought = [name for name in host.brings if name != "torch"]
    excluded = [*left_out, *brought, *lock.cuda_libraries(release.CUDA)]
    return lock.body(packages.Index(host).resolve([peer.requirement], words, excluded))
