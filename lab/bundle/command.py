"""The command `bundle`."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from patchqueue.commands import terminal
from patchqueue.commands.terminal import OUT, Command, chosen_releases, flag, option, shown
from patchqueue.outcome import Refused, counted
from patchqueue.upstream import pins as pinning

from . import carried, release
from . import peer as peers
from .assemble import Bundle, Wanted
from .host import DEFAULT, load

MIB = 2**20
RUN = "python3 FOLDER/tests/gpu/"


def _peer(text: str) -> peers.Peer:
    try:
        return peers.read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _size(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = 0
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size in MiB such as 60")
    return size


def _carried(manifest: dict[str, Any]) -> str:
    """What is said of a carried torch."""
    facts, host = manifest["carried"], manifest["host"]
    if not facts:
        return f"torch is not carried: the host has {host['torch']}, which the release pins"
    kinds = Counter(library["from"] for library in facts["libraries"].values())
    libraries = ", ".join(f"{kinds[one.value]} {one.value}" for one in carried.Origin)
    return f"torch {facts['torch']} is carried; the host has {host['torch']}. CUDA: {libraries}"


def _report(options: argparse.Namespace, made: Bundle, then: str) -> None:
    """Print what was packed, and what to do with it on the host."""
    packed: Counter[str] = Counter()  # bytes by archive
    for part in made.manifest["parts"]:
        packed[part["file"].partition(".")[0]] += part["bytes"]
    sizes = ", ".join(f"{name} {size / MIB:.1f} MiB" for name, size in packed.items())
    installed = counted(len(made.manifest["packages"]), "package")
    parts = counted(len(made.manifest["parts"]), "part")
    held = f"{installed} as of {made.manifest['resolved_as_of']}, {parts}"
    OUT.print(f"{shown(made.path)}: {sizes}, {held}")
    if options.carry_torch:
        OUT.print(_carried(made.manifest))
    OUT.print(f"next: copy that folder to the {then}")


def _bundle(options: argparse.Namespace) -> int:
    if options.peer and (options.releases or options.flash):
        what = "a peer is packed on its own, as the package index has it"
        step = "leave out RELEASE and --flash"
        raise Refused.of("bad-peer", "bundle --peer", what, step)
    pins = pinning.load(options.root)
    releases = [] if options.peer else chosen_releases(options, pins)
    described = load(options.host or options.root / DEFAULT)
    size = round(options.part_size * MIB)
    wanted = Wanted(options.sm, size, options.carry_torch, options.flash)
    if options.peer:
        made = peers.pack(options.root, pins, options.peer, described, wanted)
        run = f"{RUN}gain.py --out RESULTS --peer {options.peer.name}=PEER"
        _report(options, made, f"host, beside a release's bundle; there `./unpack PEER && {run}`")
        return 0
    for pin in releases:
        made = release.pack(options.root, pin, described, wanted)
        _report(options, made, f"host; there `./unpack FOLDER && {RUN}run.py --out RESULTS`")
    return 0


WHAT = "pack a patched release for a GPU host without a package index, in dist/bundle/RELEASE/"
HOST = f"the host's description (default: {DEFAULT})"
CAPABILITY = "the GPU's compute capability (default 90, Hopper)"
PART = "the largest size of one part (default 60)"
CARRY = "pack the release's torch, triton and torchvision too, where the host has another"
FLASH = "pack FlashAttention 3 too, which servers choose by themselves on Hopper;"
PEER = "pack another engine instead, to be timed beside the release, as vllm==0.33.0"
ARGUMENTS = (
    terminal.releases(),
    option("--host FILE", HOST, type=terminal.path),
    option("--sm", CAPABILITY, type=int, default=90),
    option("--part-size MIB", PART, type=_size, default=60),
    flag("--carry-torch", CARRY),
    flag("--flash", f"{FLASH} `run.py --attention fa3` asks for it there"),
    option("--peer NAME==VERSION", PEER, type=_peer),
)
COMMANDS = (Command("bundle", _bundle, WHAT, "v0.5.9 --carry-torch", ARGUMENTS),)
