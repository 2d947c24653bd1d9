"""The scan of a MambaMixer2's prefill: in place where ssd.py has tiles, else the release's own."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from typing import Any

import torch

from ..compat import ops
from . import ssd, tiles

SWITCH = "SGLANG_MAMBA2_SCAN"  # "release" in the environment: never ours


def choose(
    metadata: Any, pool: torch.Tensor, slots: torch.Tensor, x: torch.Tensor, b: torch.Tensor
) -> tuple[Callable[..., Any], bool, Any]:
    """What scans this prefill, as mamba_chunk_scan_combined; whether the states that requests go on
    from must be gathered; and where to write what they leave: our scan fills the pool itself.

    metadata: the release's Mamba2Metadata. pool: (slots, heads, head_dim, d_state). slots:
    (requests,). x: (tokens, heads * head_dim), b: (tokens, groups * d_state), behind the
    convolution.
    """
    mixed = metadata.mixed_metadata
    shape = _shape_of(pool, x, b)
    chosen = shape and tiles_of(shape, x.dtype, x.device)
    if not chosen or not _can_plan(metadata, shape.chunk) or is_off():
        return _release(metadata, pool), mixed.prep_initial_states, slots
    plan, warm = _plan(metadata, shape.chunk, x.device), mixed.has_initial_states
    return functools.partial(_in_place, shape, chosen, plan, pool, slots, warm), False, slice(0)


def is_off() -> bool:
    """Whether the release's scan is asked for."""
    return os.environ.get(SWITCH) == "release"


def _release(metadata: Any, pool: torch.Tensor) -> Callable[..., Any]:
    """The release's scan, and behind it what tracked_states.aim left to do."""
    scan, keep = ops.mamba2_scan(), getattr(metadata, "keep_between_chunks", None)
    if keep is None:
        return scan

    def run(*given: torch.Tensor, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        states, left = scan(*given, **more)
        x, dt, a, b, _ = given
        keep(pool, states, x[0], dt[0], b[0], a, more["dt_bias"])
        return states, left

    return run


def _shape_of(pool: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> ssd.Shape | None:
    """None for what the kernels cannot address or divide."""
    _, heads, size, d_state = pool.shape
    if x.stride(-1) != 1 or b.stride(-1) != 1 or pool.stride(-1) != 1:
        return None
    return known_shape(heads, b.shape[-1] // d_state, size, d_state, pool.device)


@functools.cache
def known_shape(
    heads: int, groups: int, size: int, d_state: int, device: torch.device
) -> ssd.Shape | None:
    return ssd.Shape.of(heads, groups, size, d_state, tiles.chunk(size, d_state, device))


def tiles_of(
    shape: ssd.Shape, dtype: torch.dtype, device: torch.device
) -> tuple[tiles.Tile, tiles.Tile] | None:
    """Of the two large kernels; None where one was not compared. Heads at once share a group."""
    found = [
        tiles.own(name, shape.heads, shape.size, shape.d_state, dtype.itemsize, device)
        for name in ("states", "scan")
    ]
    if not found[0] or not found[1]:
        return None
    together = math.gcd(found[1]["BLOCK_HEADS"], shape.heads // shape.groups)
    return found[0], found[1] | {"BLOCK_HEADS": together}


def _can_plan(metadata: Any, chunk: int) -> bool:
    """Whether the host knows all requests' tokens, and every state to keep is behind a chunk."""
    lengths = metadata.mixed_metadata.extend_seq_lens_cpu
    wanted = getattr(metadata, "wanted_states", None)
    counts = metadata.num_prefills, metadata.num_prefill_tokens
    if lengths is None or (len(lengths), sum(lengths)) != counts:
        return False
    if getattr(metadata, "track_ssm_h_src", None) is None:
        return True
    return wanted is not None and wanted.step % chunk == 0


def _plan(metadata: Any, chunk: int, device: torch.device) -> ssd.Plan:
    """Made once for all layers of a forward: the metadata is of one batch."""
    if not hasattr(metadata, "scan_plan"):
        wanted = getattr(metadata, "wanted_states", None)
        tracked = wanted and (wanted.rows, wanted.slots)
        metadata.scan_plan = ssd.plan(
            metadata.mixed_metadata.extend_seq_lens_cpu, chunk, device, tracked
        )
    return metadata.scan_plan


def _in_place(
    shape: ssd.Shape,
    chosen: tuple[tiles.Tile, tiles.Tile],
    plan: ssd.Plan,
    pool: torch.Tensor,
    slots: torch.Tensor,
    warm: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    *,
    D: torch.Tensor,
    dt_bias: torch.Tensor,
    out: torch.Tensor,
    z: None,
    dt_softplus: bool,
    dt_limit: tuple[float, float],
    return_final_states: bool,
    return_intermediate_states: bool = False,
    **_of_the_release_s_chunks: Any,
) -> tuple[None, torch.Tensor] | torch.Tensor:
    """As mamba_chunk_scan_combined with the arguments that MambaMixer2 gives it: x, out (1, tokens,
    heads, head_dim), dt (1, tokens, heads), b, c (1, tokens, groups, d_state). Returns no states.
    Raises ValueError for what no Mamba2 mixer asks for."""
    if z is not None or not dt_softplus or dt_limit != (0.0, float("inf")) or return_final_states:
        raise ValueError("a gate, a time step without softplus, a limit to it, or final states")
    launches = ssd.Launches(
        shape, plan, x[0], b[0], c[0], dt[0], a, D, dt_bias, out[0], pool, slots, warm
    )
    launches.steps()
    launches.states(chosen[0])
    launches.scan(chosen[1])
    left = pool[:0]
    return (None, left) if return_intermediate_states else left
