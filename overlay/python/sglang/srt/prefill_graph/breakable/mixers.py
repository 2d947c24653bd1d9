"""A Mamba2 mixer that a layer calls beside its attention, as a break of its own.

Falcon-H1's layers run both on the same rows (models/falcon_h1.py), and only attention is a break of
the releases. captured/layers.py knows the break by the name of `mixer_on_batch`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..compat import features, ops
from ..piecewise import op_function

Function = Callable[..., Any]


def mixer_on_batch(
    mixer: Any,
    hidden_states: torch.Tensor,
    output: torch.Tensor,
    *,
    hands_batch: bool,
    **given: Any,
) -> None:
    """The mixer on the rows of the batch at hand, of [padded tokens, hidden]; zero in those behind.

    hands_batch: the backend wants the batch too. A batch without requests, made up for the other
    ranks of data-parallel attention (0.5.15 to 0.5.20), has no state.
    """
    batch = ops.forward_context().forward_batch
    made_up = getattr(batch, "_original_batch_size", None) == 0
    count = 0 if made_up else ops.mamba2_tokens(batch)
    if count:
        if hands_batch:
            given["forward_batch"] = batch
        run = ops.mamba2_backend(batch).forward
        run(mixer, hidden_states[:count], output[:count], **given)
    output[count:].zero_()


_own = features.own_breaks()
_own_break = _own and _own[0](mixer_on_batch)


def beside_attention(forward: Function) -> Function:
    """What a layer calls as forward(mixer, hidden_states, output, **more) in the place of
    `forward`, the one of its backend for Mamba2: that one, and a break while a breakable graph of
    prefills is captured or replayed."""
    broken = op_function.broken(mixer_on_batch, mixer_on_batch.__name__)
    if broken is None and _own and _own[1]():
        broken = _own_break
    if broken is None:
        return forward

    def run(mixer: Any, hidden_states: torch.Tensor, output: torch.Tensor, **given: Any) -> None:
        batch = given.get("forward_batch")
        if batch is not None and not batch.forward_mode.is_extend():
            forward(mixer, hidden_states, output, **given)  # a decode graph can be breakable too
            return
        given.pop("forward_batch", None)
        broken(mixer, hidden_states, output, hands_batch=batch is not None, **given)

    return run
