"""The states of lightning attention (seg_la: Ling and Ring 2.5) that the prefix cache keeps of a
prefill, each behind a request's last whole chunk. 0.5.13 to 0.5.16 leave the state behind its last
token there (sglang#29973). Here the release's kernel runs up to each boundary, the state is copied,
and the kernel goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..compat import ops


@dataclass(frozen=True)
class Cut:
    """A prefill in two. lengths: (requests,), the tokens of each before its boundary, or all of
    them. Of the n requests with a boundary inside: rows, their tokens behind it; offsets (n + 1,)
    and rests (n,), where these begin among the rows, and how many; own and kept (n,): slots of
    their states, and of what the cache keeps."""

    lengths: torch.Tensor
    rows: torch.Tensor
    offsets: torch.Tensor
    rests: torch.Tensor
    own: torch.Tensor
    kept: torch.Tensor


def aim(metadata: Any, base: Any, batch: Any) -> None:
    """Tell the metadata of a batch, made of the release's `base`, which states it leaves."""
    metadata.mamba_track_indices = getattr(base, "mamba_track_indices", None)
    metadata.track_ssm_final_src = base.track_ssm_final_src
    metadata.track_ssm_final_dst = base.track_ssm_final_dst
    metadata.cut = _cut(base, batch)


def _cut(base: Any, batch: Any) -> Cut | None:
    """None where no boundary is inside of a request's new tokens."""
    kept = base.track_ssm_h_dst
    if kept is None or not kept.numel():
        return None
    step, device = ops.mamba_cache_chunk_size(), kept.device
    names = "mamba_track_mask", "mamba_track_seqlens", "extend_prefix_lens", "extend_seq_lens"
    mask, tracked, prefixes, lengths = (getattr(batch, name).cpu() for name in names)
    wanted = tracked - prefixes
    inside = mask & (wanted % step != 0)  # as the release chooses them (_init_track_ssm_indices)
    first = torch.where(inside, wanted // step * step, lengths)
    ends = lengths.cumsum(0)
    rests = (lengths - first)[inside]
    parts = zip((ends[inside] - rests).tolist(), ends[inside].tolist())
    rows = torch.cat([torch.arange(*part) for part in parts])
    offsets = torch.nn.functional.pad(rests.cumsum(0), (1, 0))
    requests = inside.nonzero()[:, 0]
    made = (first, rows, offsets, rests, requests)
    first, rows, offsets, rests, requests = (tensor.to(device) for tensor in made)
    return Cut(first, rows, offsets, rests, base.mamba_cache_indices[requests], kept)


def scan(metadata: Any, kernels: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`kernels`, the release's seg_la_fwd, for this batch: with its arguments, all by name."""
    cut = getattr(metadata, "cut", None)
    return kernels if cut is None else functools.partial(_in_two, cut, kernels)


def _in_two(
    cut: Cut,
    kernels: Callable[..., torch.Tensor],
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    s: torch.Tensor,
    meta: Any,
    **more: Any,
) -> torch.Tensor:
    out = kernels(q=q, k=k, v=v, s=s, meta=replace(meta, q_lengths=cut.lengths), **more)
    s[cut.kept] = s[cut.own.long()]
    rest = replace(
        meta,
        batch_size=len(cut.rests),
        q_offsets=cut.offsets,
        q_lengths=cut.rests,
        s_offsets=cut.own,
        s_scales=torch.ones_like(cut.rests),
    )
    out[cut.rows] = kernels(q=q[cut.rows], k=k[cut.rows], v=v[cut.rows], s=s, meta=rest, **more)
    return out


def keep(backend: Any, states: torch.Tensor) -> bool:
    """Keep the states of the requests that end at a boundary. False where seg_la did not run."""
    if backend.linear_backend != "seg_la":
        return False
    metadata = backend.forward_metadata
    kept = getattr(metadata, "track_ssm_final_dst", None)
    if kept is not None and kept.numel():
        states[kept] = states[metadata.track_ssm_final_src.long()]
    return True
