"""When slots of recurrent states are emptied, copied and given back, on releases before 0.5.13. A
forward on a stream of its own (overlap schedule, pipeline stages) still writes slots that the
scheduler has just freed. Emptied or copied on the forwards' stream, slots keep the order of the
launches (sglang#24954, in 0.5.13). The host waits for nothing."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def order_behind_forwards(scheduler: Any) -> None:
    """Let `scheduler`'s pool of states empty and copy slots behind the forwards launched so far. A
    decode server keeps the release's order: other hosts write into its slots, on no stream here."""
    pool = getattr(scheduler.req_to_token_pool, "mamba_pool", None)
    apart = scheduler.enable_overlap or scheduler.pp_size > 1
    stream = getattr(scheduler, "forward_stream", None) if apart else None
    arguments = scheduler.server_args
    if pool is None or stream is None or arguments.disaggregation_mode == "decode":
        return
    module = torch.get_device_module(scheduler.device)
    ordered = OrderedSlots(pool, stream, module, arguments.enable_hierarchical_cache)
    # fork_from calls both through the pool.
    pool.alloc, pool.copy_from = ordered.alloc, ordered.copy_from


@dataclass(frozen=True)
class OrderedSlots:
    """The operations of the release's MambaPool in the order of the forwards' `stream`. module:
    torch.cuda, or another device's. shared: HiCache's streams use states too, and wait for the
    scheduler's stream alone."""

    pool: Any
    stream: Any
    module: Any
    shared: bool

    def alloc(self, need_size: int) -> Tensor | None:
        """[need_size] int64: slots that are empty for the next forward; None where too few are
        free. Up to 0.5.9 the release's own alloc copies a zero from the host, which then waits."""
        free = self.pool.free_slots
        if need_size > len(free):
            return None
        slots, self.pool.free_slots = free[:need_size], free[need_size:]
        with self._behind_forwards(slots):
            empty(self.pool, slots)
        return slots

    def copy_from(self, src_index: Tensor, dst_index: Tensor) -> None:
        """Copy the states of slots [n] to other slots [n]."""
        with self._behind_forwards(src_index, dst_index):
            type(self.pool).copy_from(self.pool, src_index, dst_index)

    @contextmanager
    def _behind_forwards(self, *slots: Tensor) -> Iterator[None]:
        """Work on the forwards' stream with numbers of slots made on the current stream."""
        current = self.module.current_stream()
        self.stream.wait_stream(current)
        with self.module.stream(self.stream):
            yield
        for numbers in slots:
            if numbers.device.type != "cpu":
                numbers.record_stream(self.stream)  # or the allocator reuses the memory too early
        if self.shared:
            current.wait_stream(self.stream)


def empty(pool: Any, slots: Tensor) -> None:
    """Set the states of `slots` [n] to zero, on the current stream."""
    for states in _states(pool.mamba_cache):
        states.index_fill_(1, slots, 0)  # the zero is a launch's argument: no copy from the host


def _states(cache: Any) -> list[Tensor]:
    """Each [layers, slots, ...]. 0.5.5 keeps one tensor of convolution windows, others a list."""
    conv = cache.conv if isinstance(cache.conv, list | tuple) else [cache.conv]
    return [*conv, cache.temporal]


def give_back(pool: Any, request: Any, admitted: Iterable[Any]) -> None:
    """Free the slot that a match in the prefix cache gave `request`, which is not among the
    `admitted`: it is matched again, and a kept slot is not emptied then (sglang#21404, in
    0.5.10)."""
    slot = request.mamba_pool_idx
    if slot is not None and not any(request is one for one in admitted):
        pool.mamba_pool.free(slot.reshape(1))
        request.mamba_pool_idx = None
