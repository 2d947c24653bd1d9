"""A gated delta rule's prefill in FlashInfer's kernel for compute capability 9.0, as launches that
any batch can replay (0.5.17 to 0.5.23). A replay has the bits of an eager prefill without context
parallelism (docs/evidence/findings.md).

The kernel (delta_rule_sm90.py in FlashInfer 0.6.15 to 0.7.2) reads on the device where sequences
begin. Its states are packed, and a sequence without rows writes none. Rows behind a sequence have
to be finite: its last tile multiplies them by zero. Rows behind the last one are left, or get the
rest of a tile. The first call compiles: the release runs each size twice before its capture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..compat import delta_rule
from ..kernels import delta_states
from .tables import Tables


class Sequences(Tables):
    """Tables with what FlashInfer's kernel reads too. cu: (requests + 1,) int64, the first row of
    each request. starts: (requests + 1,) int64, the first of each request's states behind every
    `step` of its rows. step: as in layers.Captured."""

    def __init__(self, prefill: Callable[..., Any], step: int | None, *sizes: Any) -> None:
        super().__init__(*sizes, tracks=step is not None)
        self.prefill, self.step = prefill, step
        self.cu, self.starts = self.slots.new_zeros(2, self.requests + 1)

    def fill(self, lengths: Sequence[int], warm: Sequence[bool], slots: torch.Tensor) -> None:
        super().fill(lengths, warm, slots)
        self.cu.copy_(self.plan.cu)
        if self.step:
            torch.cumsum(self.cu.diff() // self.step, 0, out=self.starts[1:])


def run(pool: torch.Tensor, tables: Sequences, *given: torch.Tensor) -> torch.Tensor:
    """As gdn.run. given: q, k and v, (1, rows, heads, size), contiguous; the logarithm of g, and
    beta, (1, rows, heads of values), float32."""
    q, k, v, g, beta = (part[0] for part in given)
    plan, step, normalize = tables.plan, tables.step, delta_rule.normalize()
    for part in (q, k, v):
        delta_states.clear_behind(part, plan)
    states = pool.new_empty(plan.requests, *pool.shape[1:], dtype=torch.float32)
    delta_states.move(pool, states, plan, tables.slots, tables.warm)
    count = tables.tokens // step if step else 0
    # Row 0 belongs to nobody, so that a request's state behind its j-th step is in row starts + j.
    kept = states.new_empty(count + 1, *states.shape[1:])
    every = dict(checkpoint_every_n_tokens=step, checkpoint_cu_starts=tables.starts)
    output, _ = tables.prefill(
        q=normalize(q),
        k=normalize(k),
        v=v,
        g=g.exp(),
        beta=beta,
        initial_state=states,
        output_state=states,
        output_final_state=True,
        cu_seqlens=tables.cu,
        use_cp=False,  # the other kernels' grids depend on the batch
        **(dict(every, state_checkpoints=kept[1:]) if count else {}),
    )
    delta_states.move(pool, states, plan, tables.slots)
    delta_states.clear_behind(output, plan)
    if step:
        plan = replace(plan, chunk=step, first=tables.starts)
        delta_states.keep(pool, kept, plan, tables.slots)
    return output[None]
