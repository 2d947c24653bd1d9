"""Sparse attention (NSA: DeepSeek-V3.2, GLM-5) in the piecewise graph (upstream sglang#23351 and
#28644, in releases from 0.5.13).

Its indexer scores the whole context of each token and hands attention the positions worth reading.
Both read lengths, cache slots and pages of the batch at hand, so that both are split ops.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from ..compat import model_runner, ops
from ..model import stack
from . import sparse, split_op

logger = logging.getLogger(__name__)
# layers/attention/nsa_backend.py: the one whose metadata the indexer reads
BACKEND = "NativeSparseAttnBackend"
NOTHING = -1  # what kernels take for "no position selected"
# The default sizes end here. Eight layers of DeepSeek-V3.2 on H200s, 0.5.9 and 0.5.11: 1024 tokens
# took 40 ms in the graph and 38 without, 4096 took 138 and 134. The graph copies what attention
# gives, and selects for short prompts too, which eager prefill does not.
LARGEST = 512
# The indexer behind each attention that a forward context lists; a draft model's layers have the
# same numbers.
_indexers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def is_traced() -> bool:
    """Whether the forward under way is traced for the piecewise graph. False inside of the ops,
    which run afterwards."""
    return torch.compiler.is_compiling() and split_op.in_prefill_graph()


def select(
    indexer: Any, x: torch.Tensor, q_lora: torch.Tensor, positions: torch.Tensor, layer_id: int
) -> torch.Tensor:
    """What `indexer` selects for each token, through the split op: [padded tokens, index_topk]
    int32, NOTHING behind. x: [padded tokens, hidden]; q_lora: [padded tokens, q_lora_rank].

    Tuples of quantised parts, which are AMD's alone, have no such op.
    """
    topk_indices = x.new_empty((x.shape[0], indexer.index_topk), dtype=torch.int32)
    torch.ops.sglang.nsa_topk_with_output(x, q_lora, positions, topk_indices, layer_id)
    return topk_indices


def attend(
    layer: Any,
    query: torch.Tensor,
    key: Any,
    value: Any,
    save_kv_cache: bool,
    topk_indices: torch.Tensor,
    **rope: torch.Tensor,
) -> torch.Tensor:
    """`layer` (RadixAttention) on what was selected, through the split op: [padded tokens, heads *
    v_head_dim]."""
    output = query.new_empty((query.shape[0], layer.tp_q_head_num * layer.v_head_dim))
    torch.ops.sglang.nsa_attention_with_output(
        query, key, value, output, topk_indices, save_kv_cache, layer.layer_id, **rope
    )
    return output


def _run_indexer(
    x: torch.Tensor,
    q_lora: torch.Tensor,
    positions: torch.Tensor,
    topk_indices: torch.Tensor,
    layer_id: int,
) -> None:
    """The op behind `select`: the layer's indexer, eagerly, on the rows of real tokens. Rows
    without a selection are NOTHING. A batch that was padded itself for tensor parallelism has fewer
    selections than rows.

    Raises RuntimeError outside of the graph or for a layer without an indexer, ValueError for more
    real tokens than rows or a selection of more rows or another width.
    """
    context = ops.forward_context()
    batch, rows = context.forward_batch, len(x)
    indexer = _indexer(context, layer_id)
    count = _count(batch, rows, layer_id)
    found = None
    if count:
        with _real_cache_slots(batch, count):
            found = indexer(
                x=x[:count],
                q_lora=q_lora[:count],
                positions=positions[:count],
                forward_batch=batch,
                layer_id=layer_id,
            )
    if found is None:
        topk_indices.fill_(NOTHING)
        return
    if len(found) > count or found.shape[1:] != topk_indices.shape[1:]:
        raise ValueError(
            f"layer {layer_id}: selected {tuple(found.shape)} for {count} tokens,"
            f" {topk_indices.shape[1]} positions each"
        )
    topk_indices[: len(found)].copy_(found)
    topk_indices[len(found) :].fill_(NOTHING)


def _run_attention(
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    output: torch.Tensor,
    topk_indices: torch.Tensor,
    save_kv_cache: bool,
    layer_id: int,
    *,
    q_rope: torch.Tensor | None = None,
    k_rope: torch.Tensor | None = None,
) -> None:
    """The op behind `attend`: the attention backend, eagerly, on the rows of real tokens; rows
    behind them are set to zero.

    query [padded tokens, heads, kv_lora_rank], q_rope [padded tokens, heads, rope]; key, value
    [padded tokens, 1, kv_lora_rank] and k_rope [padded tokens, 1, rope], or None where a fused
    kernel has stored them; output [padded tokens, heads * v_head_dim]. The backend's result may
    have any shape of as many numbers. Raises as `_run_indexer`.
    """
    context = ops.forward_context()
    batch, rows = context.forward_batch, len(query)
    layer = split_op.layer_of(context, layer_id)
    count = _count(batch, rows, layer_id)
    if count:
        parts = (query, key, value, topk_indices, q_rope, k_rope)
        q, k, v, selected, *rope = (part if part is None else part[:count] for part in parts)
        more = {name: part for name, part in zip(("q_rope", "k_rope"), rope) if part is not None}
        with _real_cache_slots(batch, count):
            result = batch.attn_backend.forward(
                q, k, v, layer, batch, save_kv_cache, topk_indices=selected, **more
            )
        output[:count].copy_(result.reshape(output[:count].shape))
    output[count:].zero_()  # captured layers behind the op read these rows too


split_op.define("nsa_topk_with_output", _run_indexer, "topk_indices")
split_op.define("nsa_attention_with_output", _run_attention, "output")


def _count(batch: Any, rows: int, layer_id: int) -> int:
    count = ops.new_tokens(batch)
    if count > rows:
        raise ValueError(f"layer {layer_id}: {count} tokens in {rows} rows")
    return count


@contextlib.contextmanager
def _real_cache_slots(batch: Any, count: int) -> Iterator[None]:
    """Let the batch have the cache slots of its real tokens only: keys are stored for as many rows
    as there are slots."""
    padded, batch.out_cache_loc = batch.out_cache_loc, batch.out_cache_loc[:count]
    try:
        yield
    finally:
        batch.out_cache_loc = padded


def _indexer(context: Any, layer_id: int) -> Any:
    found = _indexers.get(split_op.layer_of(context, layer_id))
    if found is None:
        raise RuntimeError(f"no indexer is known for layer_id {layer_id}")
    return found


def _prepare(attention: Any) -> None:
    """List the indexer of a layer (DeepseekV2AttentionMLA) under its attention. The layer's first
    forward gives its dense attention a projection, which torch.compile cannot trace; up to 0.5.9
    the traced one is the first."""
    _indexers[attention.attn_mqa] = attention.indexer
    if attention.attn_mha.kv_b_proj is None:
        attention.attn_mha.kv_b_proj = attention.kv_b_proj


def admit_sparse_attention(runner: Any, by_default: bool) -> bool:
    """Whether the piecewise graph of a model with sparse attention may be captured; lists its
    indexers if so.

    runner: ModelRunner with the sizes that fit. by_default: nobody chose these: those beyond
    LARGEST are left out. A reason against it stays with the runner, for the report.
    """
    args, backend = runner.server_args, type(runner.attn_backend).__name__
    reasons = sparse.against_sparse(args)
    if not reasons and backend != BACKEND:
        reasons = [f"attention runs on {backend}, which keeps nothing for the indexer"]
    if reasons:
        model_runner.refused(runner, sparse.sparse_reason(reasons))
        return False
    fitting = args.piecewise_cuda_graph_tokens
    if by_default and fitting[-1] > LARGEST:
        args.piecewise_cuda_graph_tokens = [size for size in fitting if size <= LARGEST]
        if model_runner.is_first_rank(runner):
            text = (
                "Of the default capture sizes up to %d tokens those beyond %d are left out: eager"
                " prefill is as fast there with sparse attention"
            )
            logger.info(text, fitting[-1], LARGEST)
    for layer in stack.find(runner.model).layers:
        _prepare(layer.self_attn)
    return True
