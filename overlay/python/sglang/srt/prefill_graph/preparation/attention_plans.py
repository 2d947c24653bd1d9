"""FlashInfer's plans of a prefill, made without waiting for the GPU: the releases sum up the
offsets on the GPU, and plan() copies them back, though a batch has all lengths on the host."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .known import Known, listed

SWITCH = "SGLANG_PREFILL_PLANS"  # "release" in the environment: the release's own way, which waits
# of a wrapper: where plan() writes, and the GPU copies from later
PINNED = "_pin_memory_int_workspace_buffer"


@dataclass(frozen=True)
class Lengths:
    """A batch's lengths on the host; seq_lens and prefixes are the tensors of them on the GPU."""

    seq_lens: torch.Tensor
    prefixes: Known
    whole: list[int]
    extended: list[int]


def know(updater: Any, batch: Any) -> None:
    """Keep what the host knows of a batch's lengths, for offsets(); nothing where it does not know,
    several wrappers share the batch, or the environment's SWITCH says so.

    updater: FlashInferIndicesUpdaterPrefill. batch: the ForwardBatch of a prefill, not of drafts.
    """
    updater.known_lengths = None
    if os.environ.get(SWITCH) == "release":
        return
    prefixes, count = batch.extend_prefix_lens, len(batch.seq_lens)
    given = batch.extend_prefix_lens_cpu, batch.extend_seq_lens_cpu
    alone = getattr(updater.attn_backend, "num_wrappers", 1) == 1
    if not alone or any(lengths is None or len(lengths) != count for lengths in given):
        return
    cached, extended = (list(map(int, lengths)) for lengths in given)
    whole = [before + new for before, new in zip(cached, extended)]
    batch.extend_prefix_lens = Known.of(prefixes, listed(cached, prefixes))
    updater.known_lengths = Lengths(batch.seq_lens, batch.extend_prefix_lens, whole, extended)


def offsets(
    updater: Any,
    wrappers: Sequence[Any],
    seq_lens: torch.Tensor,
    attended: torch.Tensor,
    new: torch.Tensor,
    cached: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The offsets `new` and `cached` for plan() of `wrappers`, which answer from the host where it
    knows.

    new, cached: (requests + 1,) int32 on the GPU, running sums of the new tokens and of `attended`,
    all tokens of each request or its cached ones. 0.5.10's piecewise graph adds a request for the
    padding: its offsets stay as they are.
    """
    known, updater.known_lengths = getattr(updater, "known_lengths", None), None
    if known is None or known.seq_lens is not seq_lens or len(new) != len(seq_lens) + 1:
        return new, cached
    if attended is known.prefixes:
        counts = known.prefixes.host.tolist()
    elif attended is seq_lens:
        counts = known.whole
    else:
        return new, cached
    if not isinstance(updater.kv_last_page_len, Known):
        # the releases' pages have one token here
        ones = torch.ones(updater.kv_last_page_len.shape, dtype=torch.int32)
        updater.kv_last_page_len = Known.of(updater.kv_last_page_len, ones)
    for wrapper in wrappers:
        _turn(wrapper)
    return _sums(new, known.extended), _sums(cached, counts)


def _sums(there: torch.Tensor, lengths: Iterable[int]) -> Known:
    return Known.of(there, listed([0, *itertools.accumulate(lengths)], there))


@dataclass
class _Workspaces:
    """Two pinned workspaces of a wrapper, in turn, each with the event of its last copy."""

    buffers: list[torch.Tensor]
    copied: list[Any] = field(default_factory=lambda: [None, None])
    now: int = 0

    def next(self) -> torch.Tensor:
        self.copied[self.now] = torch.cuda.Event()
        self.copied[self.now].record()
        self.now = 1 - self.now
        # the batch before the last one: done, as the scheduler has its result
        if self.copied[self.now] is not None:
            self.copied[self.now].synchronize()
        return self.buffers[self.now]


def _turn(wrapper: Any) -> None:
    """Let the next plan() write where no copy of an earlier one is under way."""
    pinned = getattr(wrapper, PINNED, None)
    if pinned is None or not pinned.is_pinned():
        return
    spaces = getattr(wrapper, "prefill_graph_workspaces", None)
    if spaces is None or all(pinned is not buffer for buffer in spaces.buffers):
        spaces = _Workspaces([pinned, torch.empty_like(pinned, pin_memory=True)])
        wrapper.prefill_graph_workspaces = spaces
    setattr(wrapper, PINNED, spaces.next())
