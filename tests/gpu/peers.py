"""The engines of others that gain.py times beside the trees: vLLM, or another release of sglang.
Standard library only.

A peer is named on the command line: vllm=FOLDER, an unpacked bundle or a folder of packages with
vllm/ in it, or sglang=FOLDER, the unpacked bundle of another release, which runs as it was
published.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path

import commandline
import launch
import modes
import untouched

HERE = Path(__file__).resolve().parent
VLLM, SGLANG = "vllm", "sglang"
NAMES = (VLLM, SGLANG)
VLLM_SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # its kernels run in its own process: see peer_engine.py
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Peer:
    """name: of NAMES; site: what its option named."""

    name: str
    site: Path


class Unfit(Exception):
    """A peer that cannot be run; its text says why."""


def read(word: str) -> Peer:
    """What `--peer NAME=SITE` names. Raises argparse.ArgumentTypeError."""
    name, separator, folder = word.partition("=")
    if name not in NAMES or not separator:
        known = " or ".join(f"{one}=FOLDER" for one in NAMES)
        raise argparse.ArgumentTypeError(f"{word} is no peer: {known}")
    site = Path(folder).absolute()
    if not folder or not site.is_dir():
        raise argparse.ArgumentTypeError(f"{name}: there is no folder {folder or site}")
    wanted, what = "manifest.json", "an unpacked bundle"
    if name == VLLM:
        site = site / "site" if (site / "site").is_dir() else site  # of an unpacked bundle
        wanted, what = VLLM, "a folder of packages"
    if not (site / wanted).exists():
        raise argparse.ArgumentTypeError(f"{name}: {folder} has no {wanted}, so it is not {what}")
    return Peer(name, site)


def ready(
    peer: Peer, options: argparse.Namespace, label: str, plan: dict
) -> tuple[launch.Job, dict]:
    """How to run a peer, and what is known of it before. plan: as timing.py has it; label: of its
    files. Raises Unfit."""
    return (_vllm if peer.name == VLLM else _sglang)(peer, options, label, plan)


def _vllm(
    peer: Peer, options: argparse.Namespace, label: str, plan: dict
) -> tuple[launch.Job, dict]:
    out = options.out.absolute()
    cache = {"VLLM_CACHE_ROOT": str(out / f"{label}.cache")}
    hostsite = peer.site.with_name("hostsite")  # of an unpacked bundle: runs its .pth files
    path = (hostsite, peer.site) if hostsite.is_dir() else (peer.site,)
    more = {"place": launch.Place(path, out), "environment": VLLM_SETTINGS | cache}
    return launch.Job(f"bench.{label}", HERE / "peer_engine.py", plan, math.inf, **more), {}


def _sglang(
    peer: Peer, options: argparse.Namespace, label: str, plan: dict
) -> tuple[launch.Job, dict]:
    """The bundle's tree made as the release was published, in the mode of the last tree, or eager
    where the release has no such graph."""
    tree = options.out.absolute() / f"{label}.tree"
    try:
        untouched.make(peer.site / "tree", peer.site / "untouched", tree)
    except untouched.Unmade as why:
        raise Unfit(f"no untouched tree: {why}") from None
    its = argparse.Namespace(**vars(options) | {"tree": tree, "site": [peer.site]})
    mode, why = mode_of(its, options.mode[-1])
    version = json.loads((peer.site / "manifest.json").read_text())["version"]
    told = {"version": version, "mode": mode, "mode_why": why}
    return of_sglang(its, label, plan | {"mode": mode}), told


def of_sglang(options: argparse.Namespace, label: str, plan: dict, **more: str) -> launch.Job:
    """How to run the tree that the options name. more: of the environment."""
    name, script = f"bench.{label}", HERE / "bench_engine.py"
    more = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | more
    place = commandline.place_of(options)
    return launch.Job(name, script, plan, math.inf, place=place, environment=more)


def mode_of(options: argparse.Namespace, mode: str) -> tuple[str, str]:
    """The mode that a tree runs in, and why it is another than the one asked for."""
    chosen = modes.flags(mode, commandline.fields(options), [1], False)
    return (modes.EAGER, chosen.reason) if isinstance(chosen, modes.Unavailable) else (mode, "")
