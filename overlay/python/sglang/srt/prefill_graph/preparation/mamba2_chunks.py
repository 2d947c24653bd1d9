"""Mamba2's chunks of a prefill, cut on the host: the releases ask the GPU whether any request goes
on from a state, and then cut the batch there, which the host waits for several times a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch


def goes_on(batch: Any, warm: torch.Tensor) -> bool:
    """Whether any request of a prefill goes on from a state. warm: (requests,) bool on the GPU,
    asked where the host does not know."""
    prefixes = batch.extend_prefix_lens_cpu
    if prefixes is None or len(prefixes) < len(warm):
        return bool(warm.any())
    return any(int(prefix) > 0 for prefix in prefixes[: len(warm)])


def cut(
    batch: Any,
    release: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    starts: torch.Tensor,
    chunk: int,
    tokens: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The release's chunk_indices and chunk_offsets, int32 on the GPU: which chunk of the batch
    each piece of a request is in, and where it begins there. starts: (requests + 1,), the requests'
    first tokens, then `tokens`. release: cuts them where the host does not know the lengths."""
    lengths = batch.extend_seq_lens_cpu
    if lengths is None or len(lengths) != len(starts) - 1 or sum(map(int, lengths)) != tokens:
        return release(starts, chunk, tokens)
    begins = numpy.cumsum([0, *map(int, lengths)])[:-1]
    pieces = numpy.union1d(begins, numpy.arange(0, tokens, chunk))
    both = torch.from_numpy(numpy.stack([pieces // chunk, pieces % chunk]).astype(numpy.int32))
    if starts.is_cuda:
        both = both.pin_memory()
    return tuple(both.to(starts.device, non_blocking=True))
