"""The release's split ops as breaks of the breakable graph, on releases whose own graph has none (before 0.5.11).

Where the piecewise graph is split, the breakable one breaks: `register_split_op` hands every op's function to `at_op`.
These releases' functions expect a batch without padding. A break therefore gets its tensors cut to the tokens of the
batch in the forward context, and zeroes the rows behind them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import breakable_graph, compat

# Which dimension of which argument counts tokens (layers/radix_attention.py, layers/radix_linear_attention.py,
# models/qwen3_next.py in 0.5.9 and 0.5.10). Ops that are not listed cut their input themselves, or take it whole.
# A tensor of four dimensions, the first of size one, has its tokens in the second (Gemma3's queries, models/gemma3_causal.py).
TOKENS = {
    "unified_attention_with_output": {"query": 0, "key": 0, "value": 0, "q_rope": 0, "k_rope": 0, "output": 0},
    "unified_linear_attention_with_output": {"mixed_qkv": 0, "a": 0, "b": 0, "output": 1},
    "gdn_with_output": {"hidden_states": 0, "output": 0},
}
_active = False


def active() -> bool:
    """Whether the forward under way is captured for, or replayed from, the overlay's breakable graph."""
    return _active


@contextlib.contextmanager
def in_breakable_graph() -> Iterator[None]:
    """Let `active` be true inside."""
    global _active
    before, _active = _active, True
    try:
        yield
    finally:
        _active = before


def at_op(function: Callable[..., None], name: str | None = None) -> Callable[..., None]:
    """The function of a split op, made a break while `active`, and itself otherwise."""
    broken = breakable_graph.break_at(_cut(function, TOKENS.get(name or function.__name__, {})))

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        return (broken if _active else function)(*args, **kwargs)

    run.__signature__ = inspect.signature(function, eval_str=True)  # an op's schema is read off, in the op's own module
    return run


def _cut(function: Callable[..., None], dimensions: dict[str, int]) -> Callable[..., None]:
    if not dimensions:
        return function
    signature = inspect.signature(function)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        count = len(compat.forward_context().forward_batch.input_ids)
        bound = signature.bind(*args, **kwargs)
        output = bound.arguments["output"]
        for name, dimension in dimensions.items():
            tensor = bound.arguments.get(name)
            if tensor is not None:
                bound.arguments[name] = tensor.narrow(_tokens_in(tensor, dimension), 0, count)
        function(*bound.args, **bound.kwargs)
        dimension = _tokens_in(output, dimensions["output"])
        output.narrow(dimension, count, output.shape[dimension] - count).zero_()  # captured layers behind it read these rows too

    return run


def _tokens_in(tensor: torch.Tensor, dimension: int) -> int:
    return 1 if tensor.dim() == 4 and tensor.shape[0] == 1 else dimension
