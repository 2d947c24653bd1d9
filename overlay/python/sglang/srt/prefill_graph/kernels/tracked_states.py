"""The Mamba2 states that the prefix cache keeps of a prefill (extra_buffer): of each request the
one behind its last whole chunk. The scan's chunks cut the whole batch: states[c] is the state
before its token c * chunk_size. 0.5.13 to 0.5.19 look states up as if chunks began anew with every
request (sglang#31833). Here a boundary of the batch is looked up; elsewhere the state of the
boundary before it is moved on by the few tokens between."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..compat import ops

# what a ForwardBatch says of them
SAID = ("mamba_track_mask", "mamba_track_indices", "mamba_track_seqlens")
# set on a ForwardBatch whose layers with states are captured: no break asks its mask
IN_TABLES = "states_are_in_tables"
# requests: their tokens are held in float32, 8 MB for each request of a layer of 128 heads
AT_ONCE = 8
DELTA_CHUNK = 64  # tokens, of every kernel that leaves such states (fla/chunk.py)


@dataclass(frozen=True)
class WantedStates:
    """Which state of each request the prefix cache keeps. rows: behind how many of its new tokens,
    a multiple of `step` or all of them; 0: none. slots: where that state goes."""

    step: int
    rows: list[int]
    slots: list[int]


@dataclass(frozen=True)
class Between:
    """States to make for some requests. tokens: (requests, chunk_size) int64, positions in the
    batch, of which `real` count; chunk: the scan's chunk of the first one; slots: where states
    go."""

    tokens: torch.Tensor
    real: torch.Tensor
    chunk: torch.Tensor
    slots: torch.Tensor


class Answered(torch.Tensor):
    """A mask on a GPU that the host knows: any() and nonzero() do not ask the GPU again."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    _rows: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, mask: torch.Tensor) -> Answered:
        """Ask `mask` now. Whoever changes it later has to make another."""
        made = mask.as_subclass(cls)
        made._rows = mask.nonzero(as_tuple=True)
        return made

    def any(self) -> bool:
        return len(self._rows[0]) > 0

    def nonzero(self, *, as_tuple: bool = False) -> torch.Tensor | tuple[torch.Tensor, ...]:
        return self._rows if as_tuple else torch.stack(self._rows, dim=-1)


def ask_once(batch: Any) -> None:
    """Let the layers of a prefill know which requests leave a state, without asking the GPU one by
    one. Decoding, and drafts that are verified, leave none that way."""
    mode, mask = batch.forward_mode, batch.mamba_track_mask
    if mask is not None and mode.is_extend() and not mode.is_target_verify():
        batch.mamba_track_mask = Answered.of(mask)


def follow(static: Any, batch: Any) -> None:
    """Let the breaks of a prefill graph leave the states that eager prefill of `batch` leaves.
    static: the ForwardBatch of the replay, which they read, and whose own buffers are not always
    filled (#32606). 0.5.15's backends translate the slots of `batch` before."""
    if not getattr(batch, IN_TABLES, False):  # to ask is to wait for the device
        ask_once(batch)
    for name in SAID:
        setattr(static, name, getattr(batch, name))


def aim(metadata: Any, batch: Any) -> None:
    """Correct where the release's Mamba2Metadata says that tracked states are, and leave in
    `keep_between_chunks` what the scan calls to keep the others, if any."""
    metadata.keep_between_chunks = None
    if metadata.track_ssm_h_src is None or metadata.mixed_metadata is None:
        return
    size, step = metadata.mixed_metadata.chunk_size, ops.mamba_cache_chunk_size()
    names = *SAID, "extend_prefix_lens", "extend_seq_lens"
    mask, slots, tracked, prefixes, lengths = (getattr(batch, name).cpu() for name in names)
    wanted = tracked - prefixes
    ends = lengths.cumsum(0) - lengths + wanted // step * step  # behind which token of the batch
    # at its last token a request's state is the final one, and looked up by request
    inside = mask & (wanted % step != 0)
    behind = _rows(wanted, lengths, mask, step)
    metadata.wanted_states = WantedStates(step, behind.tolist(), (slots * mask).tolist())
    listed, made = inside & (ends % size == 0), inside & (ends % size != 0)
    device = metadata.track_ssm_h_src.device
    metadata.track_ssm_h_src = (ends[listed] // size).to(device)
    metadata.track_ssm_h_dst = slots[listed].to(device)
    parts = tuple(_between(ends[made].split(AT_ONCE), slots[made].split(AT_ONCE), size, device))
    if parts:
        metadata.keep_between_chunks = functools.partial(keep, parts)


def rows_before(batch: Any, step: int) -> torch.Tensor:
    """WantedStates.rows of a ForwardBatch with SAID, (requests,) on its device."""
    wanted = batch.mamba_track_seqlens - batch.extend_prefix_lens
    return _rows(wanted, batch.extend_seq_lens, batch.mamba_track_mask, step)


def _rows(
    wanted: torch.Tensor, lengths: torch.Tensor, mask: torch.Tensor, step: int
) -> torch.Tensor:
    whole = wanted - wanted % step
    return torch.where(whole == wanted, lengths, whole) * mask


def delta_chunks(mask: torch.Tensor, wanted: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Which of the states that a delta rule's kernels leave, one before each DELTA_CHUNK tokens of
    each request, the prefix cache keeps, for requests whose boundary is not their end.

    mask: (requests,) bool, who leaves a state; wanted, lengths: (requests,) int64, behind how many
    new tokens (rounded down to whole steps), and how many there are. All on the host.
    """
    step, chunks = ops.mamba_cache_chunk_size(), -(-lengths // DELTA_CHUNK)
    before = chunks.cumsum(0) - chunks
    return (before + wanted // step * step // DELTA_CHUNK)[mask & (wanted % step != 0)]


def _between(
    ends: tuple[torch.Tensor, ...], slots: tuple[torch.Tensor, ...], size: int, device: torch.device
) -> Iterator[Between]:
    """A request is tracked from its first whole chunk on, so that the boundary before is its
    own."""
    for end, slot in zip(ends, slots):
        if not len(end):  # split() of nothing is one piece of nothing
            continue
        chunk = end // size
        tokens = chunk[:, None] * size + torch.arange(size)
        real = tokens < end[:, None]
        tokens = tokens.where(real, end[:, None] - 1)
        yield Between(*(tensor.to(device) for tensor in (tokens, real, chunk, slot)))


def keep(
    parts: Iterable[Between],
    kept: torch.Tensor,
    states: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    dt_bias: torch.Tensor,
) -> None:
    """Write the states of `parts`, which lie between the scan's chunks, into their slots of `kept`:
    s <- exp(dt_t a) s + dt_t x_t b_t for each token t, summed up at once in float32.

    kept: (slots, heads, head_dim, d_state). states: (1, chunks, heads, head_dim, d_state), each
    before its chunk. x: (tokens, heads, head_dim) behind the convolution; dt: (tokens, heads)
    before bias and softplus; b: (tokens, groups, d_state); a, dt_bias: (heads,).
    """
    groups = b.shape[1]
    for part in parts:
        rows = part.tokens
        given = dt[rows].masked_fill(~part.real[..., None], -torch.inf)  # a step of no length
        step = torch.nn.functional.softplus(given.float() + dt_bias.float())
        decay = step * a.float()
        behind = decay.flip(1).cumsum(1).flip(1) - decay  # what later tokens take of a token
        weighted = (x[rows].float() * (step * behind.exp())[..., None]).unflatten(2, (groups, -1))
        added = torch.einsum("ntghp,ntgs->nghps", weighted, b[rows].float()).flatten(1, 2)
        before = states[0, part.chunk].float() * decay.sum(1).exp()[..., None, None]
        kept[part.slots] = (before + added).to(kept.dtype)
