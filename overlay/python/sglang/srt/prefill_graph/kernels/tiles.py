"""Tiles for Mamba2's prefill kernels, chosen here once and for all by what a launch is for.

Up to 0.5.21 the releases launch their kernels at 16x16x16 (sglang#39130). Later releases time
candidates while they serve: requests of a new shape wait, and another process may choose otherwise,
which gives other bits. The tables were measured on an H200 (docs/evidence/findings.md); each tile
is within 18 % of the best one of its kernel.

Other sizes, types and GPUs get SAFE, which fits into the shared memory of every GPU from sm_80 on,
or what the release chooses. SAFE_OWN, of ssd.py, was measured nowhere: SWITCH asks for it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
from triton.runtime.autotuner import Autotuner, Heuristics

Tile = dict[str, int]  # what a kernel is launched with: sizes of blocks, num_warps, num_stages
HOPPER = (9, 0)  # compute capability of H100, H200 and GH200
COMPILED = {(8, 0), (8, 6), (8, 9), HOPPER, (10, 0), (12, 0)}  # what SAFE_OWN was compiled for
SWITCH = "SGLANG_PREFILL_GRAPH_STATES"  # in the environment; captured/layers.py has its values
ASKED = "capture", "all"  # the values that take SAFE_OWN
UNMEASURED = "not measured on this GPU"


def block(m: int, n: int, k: int, warps: int, stages: int) -> Tile:
    """A tile of the releases' kernels that multiply matrices."""
    return dict(BLOCK_SIZE_M=m, BLOCK_SIZE_N=n, BLOCK_SIZE_K=k, num_warps=warps, num_stages=stages)


def miscompiled(tile: Tile) -> bool:
    """Whether Triton miscompiles chunk_scan at this tile for compute capability 9.0: with more than
    one stage the next round of its loop overwrites registers that a product still reads
    (triton-lang/triton#9433). Asynchronous products take four warps and 64 rows."""
    asynchronous = tile["num_warps"] % 4 == 0 and tile["BLOCK_SIZE_M"] % 64 == 0
    return asynchronous and tile["num_stages"] > 1


SAFE = block(32, 32, 32, 4, 2)
# Of what multiplies no matrices.
PLAIN = {
    "cumsum": dict(BLOCK_SIZE_H=16, num_warps=4),  # the default of the signature
    "state_passing": dict(BLOCK_SIZE=1024, num_warps=4),
}

# The releases' kernels. (kernel, head size, state size) -> tile, for 16-bit types on Hopper.
RELEASE = {
    ("chunk_state", 80, 128): block(128, 64, 32, 4, 3),
    ("chunk_scan", 80, 128): block(64, 128, 32, 4, 1),
    ("bmm", 0, 128): block(64, 128, 32, 4, 3),
    ("chunk_state", 64, 128): block(64, 64, 64, 4, 2),
    ("chunk_scan", 64, 128): block(64, 64, 32, 4, 1),
    ("chunk_state", 64, 256): block(64, 64, 64, 4, 2),
    ("chunk_scan", 64, 256): block(64, 64, 64, 4, 1),
    ("chunk_state", 128, 256): block(128, 64, 32, 4, 3),
    ("chunk_scan", 128, 256): block(64, 128, 32, 4, 1),
    ("bmm", 0, 256): block(64, 64, 64, 4, 3),
}

# The two large kernels of ssd.py, likewise: (kernel, head size, state size) -> tile. Compared on an
# H200 (docs/evidence/findings.md): states of 128 with sums in float64 at every layer that the sweep
# knows, of 256 with plain tiles. There a program scans one head: of more, registers spill.
CHUNK = 128  # rows of a chunk there
OWN = {
    ("states", 80, 128): dict(BLOCK_P=128, BLOCK_N=64, num_warps=4, num_stages=2),
    ("scan", 80, 128): dict(BLOCK_HEADS=4, num_warps=4, num_stages=2),
    ("states", 64, 128): dict(BLOCK_P=64, BLOCK_N=64, num_warps=4, num_stages=3),
    ("scan", 64, 128): dict(BLOCK_HEADS=2, num_warps=4, num_stages=2),
    ("states", 64, 256): dict(BLOCK_P=64, BLOCK_N=64, num_warps=4, num_stages=2),
    ("scan", 64, 256): dict(BLOCK_HEADS=1, num_warps=4, num_stages=1),
    ("states", 128, 256): dict(BLOCK_P=64, BLOCK_N=64, num_warps=4, num_stages=2),
    ("scan", 128, 256): dict(BLOCK_HEADS=1, num_warps=4, num_stages=2),
}
# Of other sizes of 16 to 128 by 16 to 256, whose chunks have SAFE_CHUNK rows. No registers spill,
# except 8 bytes of a thread for 64 by 64 on capability 10.0 (Triton 3.6). A program takes at most
# 60 KiB of shared memory.
SAFE_CHUNK = 64
SAFE_OWN = {
    "states": dict(BLOCK_P=32, BLOCK_N=64, num_warps=4, num_stages=2),
    "scan": dict(BLOCK_HEADS=1, num_warps=8, num_stages=1),
}
LARGEST = 128, 256  # head size, state size
FEW = 32  # heads of a rank: larger blocks of their states would leave much of the GPU idle
OWN_OF_FEW = {("states", 80, 128): dict(BLOCK_P=64, BLOCK_N=64, num_warps=4, num_stages=3)}

# The releases' kernels by name: what the table calls them, and which arguments hold what the key is
# made of.
KERNELS = {
    "_bmm_chunk_fwd_kernel": ("bmm", "a_ptr", None, "K"),
    "_chunk_cumsum_fwd_kernel": ("cumsum", "dt_ptr", None, "nheads"),
    "_chunk_scan_fwd_kernel": ("chunk_scan", "x_ptr", "hdim", "dstate"),
    "_chunk_state_fwd_kernel": ("chunk_state", "x_ptr", "hdim", "dstate"),
    "_chunk_state_varlen_kernel": ("chunk_state", "x_ptr", "hdim", "dstate"),
    "_state_passing_fwd_kernel": ("state_passing", "states_ptr", None, "dim"),
}


@functools.cache
def capability(device: torch.device) -> tuple[int, int] | None:
    """The GPU's compute capability; None for what is no NVIDIA GPU."""
    if device.type != "cuda" or torch.version.hip:
        return None
    return torch.cuda.get_device_capability(device)


@functools.cache
def of_release(
    kernel: str, size: int, d_state: int, itemsize: int, device: torch.device
) -> Tile | None:
    """The tile of one of the releases' kernels, as KERNELS names it; None where none was measured.
    itemsize: bytes."""
    if capability(device) != HOPPER:
        return None
    if kernel in PLAIN:
        return PLAIN[kernel]
    return RELEASE.get((kernel, size, d_state)) if itemsize == 2 else None


@functools.cache
def own(
    kernel: str, heads: int, size: int, d_state: int, itemsize: int, device: torch.device
) -> Tile | None:
    """The tile of "states" or "scan" for a rank with so many heads, or None."""
    if itemsize != 2 or capability(device) not in COMPILED:
        return None
    key = (kernel, size, d_state)
    if measured(size, d_state, device):
        return OWN_OF_FEW.get(key, OWN[key]) if heads <= FEW else OWN[key]
    if size > LARGEST[0] or d_state > LARGEST[1] or needs_switch(size, d_state, device):
        return None
    tile = SAFE_OWN[kernel]
    return tile | {"BLOCK_N": min(tile["BLOCK_N"], d_state)} if kernel == "states" else tile


def measured(size: int, d_state: int, device: torch.device) -> bool:
    """Whether OWN has tiles of these sizes for the GPU."""
    return capability(device) == HOPPER and ("scan", size, d_state) in OWN


def chunk(size: int, d_state: int, device: torch.device) -> int:
    """Rows of a chunk for the tiles that own() gives."""
    return CHUNK if measured(size, d_state, device) else SAFE_CHUNK


def is_unmeasured(device: torch.device) -> bool:
    """Whether the GPU is one that SAFE_OWN was compiled for, without measurements."""
    return capability(device) in COMPILED - {HOPPER}


def needs_switch(size: int, d_state: int, device: torch.device) -> bool:
    """Whether own() has tiles of these sizes for the GPU that SWITCH does not ask for."""
    fits = size <= LARGEST[0] and d_state <= LARGEST[1] and capability(device) in COMPILED
    return fits and not measured(size, d_state, device) and os.environ.get(SWITCH) not in ASKED


class Fixed:
    """A kernel of the release that takes its tile out of the table at every launch. tuned: its
    autotuner, which chooses where the table has no tile; None where the release has none."""

    def __init__(self, kernel: Any):
        self.tuned: Any = kernel if isinstance(kernel, Autotuner) else None
        while isinstance(kernel, (Autotuner, Heuristics)):
            kernel = kernel.fn
        self.kernel = kernel
        self.name, data, size, d_state = KERNELS[kernel.fn.__name__]
        place = kernel.arg_names.index
        self.data, self.d_state = place(data), place(d_state)
        self.size = None if size is None else place(size)
        if self.tuned and self.name == "chunk_scan":
            leave_out_miscompiled(self.tuned, data)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **words: Any) -> Any:
            tile = self.tile(args)
            if tile is None:
                return self.tuned[grid](*args, **words)
            return self.kernel[grid](*args, **words, **tile)

        return launch

    def tile(self, args: tuple[Any, ...]) -> Tile | None:
        """None where the autotuner chooses. args: sizes and tensors by position, as the launchers
        give them."""
        data, size = args[self.data], 0 if self.size is None else args[self.size]
        found = of_release(self.name, size, args[self.d_state], data.element_size(), data.device)
        return found or (None if self.tuned else PLAIN.get(self.name, SAFE))


def leave_out_miscompiled(tuned: Any, data: str) -> None:
    """Have an autotuner of chunk_scan choose among tiles that Triton compiles right for the GPU of
    the argument `data`."""
    prune = tuned.early_config_prune

    def pruned(configs: list[Any], named_args: dict[str, Any], **words: Any) -> list[Any]:
        if capability(named_args[data].device) == HOPPER:
            configs = [config for config in configs if not miscompiled(config.all_kwargs())]
        return prune(configs, named_args, **words)

    tuned.early_config_prune = pruned


def fix(names: dict[str, Any]) -> None:
    """Have each kernel that the launchers among `names`, those of the release's ssd_combined.py,
    may launch take its tile from the table."""
    for launcher in tuple(names.values()):
        room = getattr(launcher, "__globals__", {})
        for name in KERNELS.keys() & room.keys():
            if not isinstance(room[name], Fixed):
                room[name] = Fixed(room[name])
