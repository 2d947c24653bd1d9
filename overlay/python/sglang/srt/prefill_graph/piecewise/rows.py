"""Which arguments of a split op have one row for each token, and what becomes of the rows behind
the batch.

The backends leave these as the allocator had them, NaN included, and captured layers behind the op
read them: routers send them to experts, and attention multiplies them with a weight of zero.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ..compat import ops

Change = Callable[[torch.Tensor, int, int], torch.Tensor]


@dataclass(frozen=True)
class Rows:
    """Where the tensors of one op have their rows.

    ranks: for each argument that has a row for each token, how many dimensions it has at most
    without a batch dimension in front. Rows are its first dimension; behind a batch dimension,
    which is one, they are its second. narrowed: its function has to be given the rows of the batch
    alone. single: arguments that it expects without a batch dimension. settled_by: a name in it, or
    in the function `body` of its module, where that does all this itself. count: how many rows the
    batch has; None where it does not say.
    """

    ranks: dict[str, int]
    narrowed: bool = False
    single: tuple[str, ...] = ()
    settled_by: str | None = None
    body: str = ""
    count: Callable[[Any], int | None] = ops.counted_tokens


# Gemma3's queries have a batch dimension, the gates of Kimi's linear attention too. From
# layers/radix_attention.py and radix_linear_attention.py, and models/qwen3_next.py (up to 0.5.9),
# nemotron_h.py and deepseek_v4.py.
_ATTENTION = Rows(
    dict.fromkeys(("query", "key", "value", "q_rope", "k_rope", "output"), 3),
    single=("query", "output"),
)
OPS = {
    "unified_attention_with_output": _ATTENTION,
    "unified_attention_with_output_and_lse": _ATTENTION,
    "unified_linear_attention_with_output": Rows(
        {"mixed_qkv": 3, "a": 2, "b": 2, "output": 3},
        narrowed=True,
        # 0.5.19's zeroes the rows as well, but cuts Kimi's gates along their batch dimension
        settled_by="narrow",
        body="_linear_attention_with_output_impl",
    ),
    "gdn_with_output": Rows({"hidden_states": 2, "output": 2}),
    "deepseek_v4_attention_with_output": Rows({"query": 3, "key_value": 3, "output": 3}),
    "nemotron_mamba2_with_output": Rows(
        {"hidden_states": 2, "output": 2}, settled_by="zero_", count=ops.mamba2_tokens
    ),
}


def zeroed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function of the split op `name`, made to leave zero in the rows behind the batch.

    A function that does so itself, or of an op that OPS does not list, is returned as it is.
    """
    rows = OPS.get(name)
    if rows is None or rows.settled_by in _body(function, rows).__code__.co_names:
        return function
    batch_of, count_of = ops.batch_getter(function), rows.count
    names = rows.ranks if rows.narrowed else ()
    run = on_batch(function, rows, names, lambda: count_of(batch_of()))
    return with_signature(run, function)


def on_batch(
    function: Callable[..., Any],
    rows: Rows,
    names: Iterable[str],
    count_of: Callable[[], int | None],
) -> Callable[..., Any]:
    """The function of an op: its arguments `names` cut to the rows of the batch, and zero left in
    the rows behind them. Where the arguments are is looked up once."""
    single = _each(function, rows.single, rows.ranks, _without_batch)
    inputs = _each(function, names, rows.ranks, _head)
    output_at = list(inspect.signature(function).parameters).index("output")

    @functools.wraps(function)
    def run(*given: Any, **kwargs: Any) -> Any:
        count = count_of()
        if count is None:
            return function(*given, **kwargs)
        args = list(given)
        single(args, kwargs, count)
        output = args[output_at] if output_at < len(args) else kwargs["output"]
        inputs(args, kwargs, count)
        result = function(*args, **kwargs)
        _zero_behind(output, rows.ranks["output"], count)
        return result

    return run


def _body(function: Callable[..., Any], rows: Rows) -> Callable[..., Any]:
    found: Callable[..., Any] = function.__globals__.get(rows.body, function)
    return found


def _each(
    function: Callable[..., Any], names: Iterable[str], ranks: dict[str, int], change: Change
) -> Callable[[list[Any], dict[str, Any], int], None]:
    """What replaces the arguments `names` of a call, given as lists and dicts, by change(tensor,
    rank, count)."""
    places = [
        (place, name, ranks[name])
        for place, name in enumerate(inspect.signature(function).parameters)
        if name in names
    ]

    def run(args: list[Any], kwargs: dict[str, Any], count: int) -> None:
        given = len(args)
        for place, name, rank in places:
            if place < given:
                if args[place] is not None:
                    args[place] = change(args[place], rank, count)
            elif kwargs.get(name) is not None:
                kwargs[name] = change(kwargs[name], rank, count)

    return run


def _head(tensor: torch.Tensor, rank: int, count: int) -> torch.Tensor:
    return tensor[:, :count] if _has_batch(tensor, rank) else tensor[:count]


def _zero_behind(tensor: torch.Tensor, rank: int, count: int) -> None:
    batched = _has_batch(tensor, rank)
    if tensor.shape[batched] > count:
        (tensor[:, count:] if batched else tensor[count:]).zero_()


def _without_batch(tensor: torch.Tensor, rank: int, count: int) -> torch.Tensor:
    return tensor[0] if _has_batch(tensor, rank) else tensor


def _has_batch(tensor: torch.Tensor, rank: int) -> bool:
    return tensor.dim() > rank and tensor.shape[0] == 1


def with_signature(run: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, with the signature of `function`: an op's schema is read off it, in the op's own
    module."""
    run.__signature__ = inspect.signature(function, eval_str=True)
    return run
