"""Make an op at which the piecewise graph is split from a function that runs one layer.

The op has one kernel for every device (CompositeExplicitAutograd); the release's
direct_register_custom_op has one for GPUs only, so that nothing could run it where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..compat import ops
from . import op_function

Body = Callable[[Any, torch.Tensor, torch.Tensor, Any], None]
# ops live as long as the library that defined them
_LIBRARY = torch.library.Library("sglang", "FRAGMENT")

in_prefill_graph = ops.graph_flag()  # also true while the breakable graph of breakable/ is captured


def on_one_stream() -> bool:
    """Whether a forward must not fork streams: torch.compile cannot trace that, nor may a captured
    piece depend on it."""
    return torch.compiler.is_compiling() or in_prefill_graph()


def split_op(name: str, tokens: Callable[[Any], int]) -> Callable[[Body], Callable[..., None]]:
    """Make torch.ops.sglang.<name>(hidden_states, output, layer_id) of body(layer, hidden_states,
    output, forward_batch), where the release has no such op; `layer` is what the forward context
    lists under layer_id.

    hidden_states, output: [padded tokens, hidden]; the body gets their real rows, and writes
    `output`. Rows behind them become zero. tokens: how many rows of a forward batch are real.
    Raises RuntimeError without a forward context or such a layer, ValueError for more real tokens
    than rows or an output of another shape.
    """

    def decorate(body: Body) -> Callable[..., None]:
        if not hasattr(torch.ops.sglang, name):
            run = _op_function(body, tokens)
            either = op_function.or_captured(run, name)
            return define(name, op_function.breaking(run, name, either), "output")
        ops.split_at(name)
        return getattr(torch.ops.sglang, name)

    return decorate


def _op_function(body: Body, tokens: Callable[[Any], int]) -> Callable[..., None]:
    def run(hidden_states: torch.Tensor, output: torch.Tensor, layer_id: int) -> None:
        context = ops.forward_context()
        layer = layer_of(context, layer_id)
        count, rows = tokens(context.forward_batch), hidden_states.shape[0]
        if count > rows or output.shape != hidden_states.shape:
            raise ValueError(
                f"layer {layer_id}: {count} tokens, input {tuple(hidden_states.shape)}, output"
                f" {tuple(output.shape)}"
            )
        if count:
            body(layer, hidden_states[:count], output[:count], context.forward_batch)
        output[count:].zero_()  # captured norms, routing and collectives read these rows too

    return run


def layer_of(context: Any, layer_id: int) -> Any:
    """The object that a forward context lists for a layer. Raises RuntimeError where there is
    none."""
    layers = context.attention_layers
    if layer_id < len(layers) and layers[layer_id] is not None:
        return layers[layer_id]
    raise RuntimeError(f"no layer is listed under layer_id {layer_id}, of {len(layers)} entries")


def define(name: str, run: Callable[..., None], mutates: str) -> Callable[..., None]:
    """Define torch.ops.sglang.<name> and split the graph at it. run: annotated, returns nothing,
    writes its argument `mutates`."""
    _LIBRARY.define(name + torch.library.infer_schema(run, mutates_args=(mutates,)))
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"sglang::{name}", lambda *_, **__: None, lib=_LIBRARY)
    ops.split_at(name)
    return getattr(torch.ops.sglang, name)
