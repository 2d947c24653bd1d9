"""The scan of a MambaMixer2's prefill: in place by the kernels of ssd.py where they have tiles, else the release's own."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from .. import compat
from . import ssd, tiles

RELEASE_ONLY = "SGLANG_MAMBA2_RELEASE_SCAN"  # set to 1: never ours


def choose(release: Callable[..., Any], metadata: Any, pool: torch.Tensor, x: torch.Tensor, b: torch.Tensor, batch: Any = None) -> tuple[Callable[..., Any], bool]:
    """What scans this prefill, and whether the states that requests go on from must be gathered for it.

    release: mamba_chunk_scan_combined. metadata: the release's Mamba2Metadata. pool: (slots, heads, head_dim, d_state).
    x: (tokens, heads * head_dim), b: (tokens, groups * d_state), both behind the convolution. batch: the ForwardBatch
    where a release has the prefix cache keep states of a prefill (from 0.5.13 on).

    What is returned takes release's arguments. Ours writes the requests' states into the pool, also those that
    the prefix cache wants, and returns None in place of each.
    """
    mixed = metadata.mixed_metadata
    shape = _shape(pool, x, b)
    if shape is None or not torch.equal is not None or os.environ.get(RELEASE_ONLY) == "1":
        return release, mixed.prep_initial_states
    return functools.partial(_in_place, shape, _plan(metadata, batch, x.device), metadata, pool), False
