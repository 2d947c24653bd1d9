"""One launch setting for the kernels of a gated delta rule's prefill that releases tune badly.

Since 0.5.10 the releases time six settings of the kernel that solves the chunks, once: at the
server's warm-up of a few tokens, where all are about as fast. Most choose four warps, which take 95
to 101 us at 2048 tokens where one warp takes 24. The kernel that carries the states waits for
memory with two stages: 136 us at 4096 tokens of one request, 91 with three. The bits are the same.
The times are of an H200 (docs/evidence/findings.md); other GPUs keep the release's choice.
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
ON_HOPPER = {
    SOLVE: Config({"BK": 64}, num_warps=1, num_stages=3),  # one of the release's own six
    STATES: Config({"BV": 32}, num_warps=4, num_stages=3),  # takes 108 KiB of shared memory
}
CHOSEN = "SGLANG_GDN_CHUNK_H_"  # begins the variables that choose STATES' setting from 0.5.16 on


def settings() -> dict[str, Config]:
    """The setting of each kernel on this host, by the kernel's name; none but on Hopper."""
    if not torch.cuda.is_available() or tiles.capability(torch.device("cuda")) != tiles.HOPPER:
        return {}
    found = dict(ON_HOPPER)
    if any(name.startswith(CHOSEN) for name in os.environ):
        found.pop(STATES, None)
    return found


def settle(*launchers: Callable[..., Any]) -> None:
    """Leave each autotuned kernel that one of these functions launches the table's setting."""
    for launcher in launchers:
        for name, config in settings().items():
            kernel = launcher.__globals__.get(name)
            while isinstance(kernel, Heuristics):
                kernel = kernel.fn
            if isinstance(kernel, Autotuner):
                kernel.configs = [config]
