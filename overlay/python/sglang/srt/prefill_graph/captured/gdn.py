"""A gated delta net's prefill between its projections, as launches that any batch can replay:
Mamba2's convolution, which has the release's bits, and the delta rule in the release's own kernels,
whose grids the tables give, or in FlashInfer's."""

from __future__ import annotations

from typing import Any

import torch

from ..compat import delta_rule
from ..kernels import convolution, delta_states
from . import flashinfer_rule
from .tables import Tables

CHUNK = delta_rule.CHUNK
MOST_KEY = 256  # the largest head of keys that the release's kernels take


def why_not(layer: Any, cache: Any, dtype: torch.dtype) -> str | None:
    """Why this RadixLinearAttention has to stay a break, or None. cache: its layer's part of the
    state pool."""
    weight, conv, states = layer.conv_weights, cache.conv[0], cache.temporal
    if not isinstance(weight, torch.Tensor):
        return "its convolution has weights for queries, keys and values apart"
    if layer.activation != "silu" or weight.shape[-1] != convolution.WIDTH:
        return "its convolution is not one of 4 tokens with SiLU"
    if tuple(conv.shape[1:]) != (len(weight), convolution.WIDTH - 1) or not weight.is_contiguous():
        return f"its convolution keeps {tuple(conv.shape[1:])} for weights of {tuple(weight.shape)}"
    values, keys = layer.num_v_heads, layer.num_k_heads
    if layer.num_q_heads != keys or values % keys:
        return f"{values} heads of values are not divisible by {keys} of keys"
    if layer.head_k_dim > MOST_KEY:
        return f"its heads of keys are larger than {MOST_KEY}"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"the release has no kernels for {dtype}"
    if not states[:1].is_contiguous() or states.stride(0) != states[0].numel():
        return "its states are not in one piece"
    return None


def run(
    layer: Any,
    cache: Any,
    tables: Tables,
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
) -> torch.Tensor:
    """The output, (1, rows, heads of values, their size), with zeros behind the batch. Fills the
    pool's slots of requests and prefix cache. mixed_qkv: (rows, features); a, b: (rows, heads of
    values)."""
    plan = tables.plan
    if plan.track_rows is not None:
        convolution.keep_windows(mixed_qkv, cache.conv[0], plan)
    q, k, v = _convolved(layer, cache.conv[0], tables, mixed_qkv)
    g, beta = delta_rule.gates()(layer.A_log, a, b, layer.dt_bias)
    if isinstance(tables, flashinfer_rule.Sequences):
        return flashinfer_rule.run(cache.temporal, tables, q, k, v, g, beta)
    cut = plan.chunk // delta_rule.PART if delta_rule.solves_parts() else 0
    begun = delta_states.begin(cache.temporal, plan, *tables.requests_of, cut)
    with delta_rule.chunked_by(begun.pairs, begun.parts, plan.first):
        output, _, before = delta_rule.rule()(
            q=q,
            k=k,
            v=v,
            g=g,
            beta=beta,
            initial_state=cache.temporal,
            initial_state_indices=begun.slots,
            cu_seqlens=plan.cu,
            head_first=False,
            use_qk_l2norm_in_kernel=True,
        )
    if plan.track_rows is not None:
        delta_states.keep(cache.temporal, before[0], plan, begun.slots)
    return output


def _convolved(
    layer: Any, pool: torch.Tensor, tables: Tables, mixed_qkv: torch.Tensor
) -> list[torch.Tensor]:
    """Queries, keys and values, (1, rows, heads, size) each, contiguous: the delta rule would copy
    parts of one tensor."""
    heads = layer.num_q_heads, layer.num_k_heads, layer.num_v_heads
    sizes = layer.head_q_dim, layer.head_k_dim, layer.head_v_dim
    made, first = [], 0
    for count, size in zip(heads, sizes):
        part = slice(first, first + count * size)
        out = mixed_qkv.new_empty(len(mixed_qkv), count * size)
        bias = None if layer.bias is None else layer.bias[part]
        given = mixed_qkv[:, part], layer.conv_weights[part], bias, pool[:, part], out
        convolution.convolve(*given, tables.plan, *tables.requests_of)
        made.append(out.view(1, len(out), count, size))
        first = part.stop
    return made
