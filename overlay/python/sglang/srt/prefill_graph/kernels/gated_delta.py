"""One launch setting for the kernels of a gated delta rule's prefill that releases tune badly.

Since 0.5.10 the releases time six settings of the kernel that solves the chunks. They do so at the
first call alone, and that is the server's warm-up of a few tokens, where all six are about as fast.
The choice is kept for every later size, and in Triton's cache on disk for later processes. Of five
first calls of six tokens four chose four warps, which take 95 to 101 us at 2048 tokens where one
warp takes 24. All six give the same bits.

The kernel that carries the states from chunk to chunk waits for memory with two stages on Hopper:
136 us at 4096 tokens of one request, 91 with three.

The times are of tests/gpu/sweep_gdn.py on an H200, for 32 heads of 128.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.prefill_graph.kernels import tiles
from triton import Config
from triton.runtime.autotuner import Autotuner, Heuristics

SOLVE = "chunk_gated_delta_rule_fwd_kkt_solve_kernel"
STATES = "chunk_gated_delta_rule_fwd_kernel_h_blockdim64"
# The first is one of the release's own candidates, so it fits wherever they do. The second needs
# 108 KiB of shared memory, more than sm_86, sm_89 and sm_120 have.
ON_NVIDIA = {SOLVE: Config({"BK": 64}, num_warps=1, num_stages=3)}
ON_HOPPER = ON_NVIDIA | {STATES: Config({"BV": 32}, num_warps=4, num_stages=3)}
CHOSEN = "SGLANG_GDN_CHUNK_H_"  # begins the variables that choose STATES' setting from 0.5.16 on


def settings() -> dict[str, Config]:
    """The setting of each kernel on this host, by the kernel's name; none but for NVIDIA GPUs."""
    if torch.version.cuda is None:
        return {}
    hopper = torch.cuda.is_available() and tiles.capability(torch.device("cuda")) == tiles.HOPPER
    found = dict(ON_HOPPER if hopper else ON_NVIDIA)
    if any(name.startswith(CHOSEN) for name in os.environ):
        found.pop(STATES, None)
    return found


def settle(*launchers: Callable[..., Any]) -> None:
    """Leave each autotuned kernel that one of these functions launches the table's setting
    alone."""
    for launcher in launchers:
        for name, config in settings().items():
            kernel = launcher.__globals__.get(name)
            while isinstance(kernel, Heuristics):
                kernel = kernel.fn
            if isinstance(kernel, Autotuner):
                kernel.configs = [config]
