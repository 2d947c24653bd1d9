"""A MambaMixer2's prefill between its two projections, as launches that any batch can replay: the
convolution, which has the release's bits, and the scan that an eager prefill runs too."""

from __future__ import annotations

from typing import Any

import torch

from ..kernels import convolution, mamba2_scan, ssd, tiles
from .tables import Tables


def why_not(mixer: Any, cache: Any, dtype: torch.dtype) -> str | None:
    """Why this mixer has to stay a break, or None. cache: its layer's part of the state pool."""
    if mixer.activation != "silu" or mixer.conv1d.weight.shape[-1] != convolution.WIDTH:
        return "its convolution is not one of 4 tokens with SiLU"
    if mixer.n_groups % mixer.tp_size:
        return f"{mixer.n_groups} groups are not divisible by tensor parallelism {mixer.tp_size}"
    if mamba2_scan.is_off():
        return f"{mamba2_scan.SWITCH}=release is set"
    pool = cache.temporal
    if tiles.needs_switch(*pool.shape[2:], pool.device):
        return f"its scan is {tiles.UNMEASURED}; {tiles.SWITCH}=capture captures it"
    groups = mixer.n_groups // mixer.tp_size
    shape = mamba2_scan.known_shape(pool.shape[1], groups, *pool.shape[2:], pool.device)
    chosen = shape and mamba2_scan.tiles_of(shape, dtype, pool.device)
    if chosen is None or pool.stride(-1) != 1:
        return f"its scan has no tiles for heads of {tuple(pool.shape[2:])} in {dtype} on this GPU"
    return None


def chunk(cache: Any) -> int:
    """Rows of a chunk of the scan. cache: as in why_not."""
    return tiles.chunk(*cache.temporal.shape[2:], cache.temporal.device)


def note(device: str) -> str | None:
    """What the report says of a scan that was captured on the device."""
    unmeasured = tiles.is_unmeasured(torch.device(device))
    return f"the scan of its Mamba2 layers is {tiles.UNMEASURED}" if unmeasured else None


def run(
    mixer: Any,
    cache: Any,
    tables: Tables,
    hidden_states: torch.Tensor,
    fuses_reduce: bool = False,
    mup_vector: torch.Tensor | None = None,
) -> torch.Tensor:
    """The layer's output, (rows, hidden) as hidden_states. Fills each request's slot of the pool.
    fuses_reduce: the last projection leaves the sum over the ranks to its reader. mup_vector: what
    each column of the first projection is multiplied by."""
    projected, _ = mixer.in_proj(hidden_states)
    if mup_vector is not None:
        projected = projected * mup_vector
    ranks = mixer.tp_size
    inner, heads = mixer.intermediate_size // ranks, mixer.num_heads // ranks
    gate, mixed, dt = projected.split([inner, mixer.conv_dim // ranks, heads], -1)
    convolved = torch.empty_like(mixed, memory_format=torch.contiguous_format)
    weight = mixer.conv1d.weight.view(mixer.conv1d.weight.size(0), convolution.WIDTH)
    bias, windows = mixer.conv1d.bias, cache.conv[0]
    convolution.convolve(mixed, weight, bias, windows, convolved, tables.plan, *tables.requests_of)
    if tables.plan.track_rows is not None:
        convolution.keep_windows(mixed, windows, tables.plan)
    scanned = _scan(mixer, cache.temporal, tables, convolved, dt, inner)
    reduced = {"skip_all_reduce": True} if fuses_reduce else {}
    result, _ = mixer.out_proj(mixer.norm(scanned, gate), **reduced)
    return result


def _scan(
    mixer: Any,
    pool: torch.Tensor,
    tables: Tables,
    convolved: torch.Tensor,
    dt: torch.Tensor,
    inner: int,
) -> torch.Tensor:
    groups = mixer.n_groups // mixer.tp_size
    _, heads, size, d_state = pool.shape
    x, b, c = convolved.split([inner, groups * d_state, groups * d_state], -1)
    out = torch.empty((len(x), inner), dtype=x.dtype, device=x.device)
    shape = mamba2_scan.known_shape(heads, groups, size, d_state, x.device)
    states, scan = mamba2_scan.tiles_of(shape, x.dtype, x.device)
    x, y = (rows.unflatten(-1, (heads, size)) for rows in (x, out))
    b, c = (rows.unflatten(-1, (groups, d_state)) for rows in (b, c))
    given = x, b, c, dt, mixer.A, mixer.D, mixer.dt_bias, y, pool, tables.slots, tables.warm
    launches = ssd.Launches(shape, tables.plan, *given)
    launches.steps()
    launches.states(states)
    launches.scan(scan)
    return out
