"""Sparse attention (NSA: DeepSeek-V3.2, GLM-5) in the piecewise graph (upstream sglang#23351 and
#28644, in releases from 0.5.13).

Its indexer scores the whole context of each token and hands attention the positions worth reading.
Both read lengths, cache slots and pages of the batch at hand, so both run between captured pieces,
as two split ops:

    nsa_topk_with_output        the release's indexer: keys into the index cache, then the selection
    nsa_attention_with_output   the attention behind it, on what was selected

`admit_sparse_attention` decides, for a model runner whose layers were collected, whether they may
be.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from ..compat import features, model_runner, ops
from ..compat.arguments import has_default_sizes, no_size_fits, sizes_that_fit
from ..model import stack
from ..model.layers import Refusal
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
    indexer: Any, x: Any, q_lora: Any, positions: torch.Tensor, layer_id: int
) -> torch.Tensor:
    """What `indexer` selects for each token, through the split op: [padded tokens, index_topk]
    int32, NOTHING behind.

    x: [padded tokens, hidden], or a tuple of that in fp8, its scales and, where there is one, the
    unquantised original. q_lora: [padded tokens, q_lora_rank], or such a tuple. positions: [padded
    tokens]. See nsa_topk_with_output.
    """
    (x, x_scale, x_plain), (q_lora, q_scale, _) = _three(x), _three(q_lora)
    topk_indices = x.new_empty((x.shape[0], indexer.index_topk), dtype=torch.int32)
    torch.ops.sglang.nsa_topk_with_output(
        x, x_scale, x_plain, q_lora, q_scale, positions, topk_indices, layer_id
    )
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
    v_head_dim]. See nsa_attention_with_output."""
    output = query.new_empty((query.shape[0], layer.tp_q_head_num * layer.v_head_dim))
    torch.ops.sglang.nsa_attention_with_output(
        query, key, value, output, topk_indices, save_kv_cache, layer.layer_id, **rope
    )
    return output


def _run_indexer(
    x: torch.Tensor,
    x_scale: torch.Tensor | None,
    x_plain: torch.Tensor | None,
    q_lora: torch.Tensor,
    q_scale: torch.Tensor | None,
    positions: torch.Tensor,
    topk_indices: torch.Tensor,
    layer_id: int,
) -> None:
    """The op behind `select`: the layer's indexer, eagerly, on the rows of real tokens; rows
    without a selection are NOTHING.

    Also where the indexer selects nothing at all, because the attention backend keeps no metadata
    for it. Raises RuntimeError outside of the graph or for a layer without an indexer, ValueError
    for more real tokens than rows or a selection of more rows or another width. Fewer rows there
    are where the batch itself was padded for tensor parallelism (prepare_mlp_sync_batch,
    model_executor/forward_batch_info.py): the indexer then answers for the tokens of requests.
    """
    context = ops.forward_context()
    batch, rows = context.forward_batch, x.shape[0]
    indexer = _indexer(context, layer_id)
    count = _count(batch, rows, layer_id)
    found = None
    if count:
        inputs = [
            _packed(*(_cut(part, rows, count) for part in parts))
            for parts in ((x, x_scale, x_plain), (q_lora, q_scale))
        ]
        with _real_cache_slots(batch, count):
            found = indexer(
                x=inputs[0],
                q_lora=inputs[1],
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

    query [padded tokens, heads, kv_lora_rank] and q_rope [padded tokens, heads, rope]; key, value
    [padded tokens, 1, kv_lora_rank] and k_rope [padded tokens, 1, rope], or None where a fused
    kernel has stored them already; topk_indices as `select` made them; output [padded tokens, heads
    * v_head_dim]. The backend's result may have any shape of as many numbers: kernels made for
    decoding return [requests, tokens, heads, v_head_dim]. Raises as `_run_indexer`.
    """
    context = ops.forward_context()
    batch, rows = context.forward_batch, query.shape[0]
    layer = split_op.layer_of(context, layer_id)
    count = _count(batch, rows, layer_id)
    if count:
        q, k, v, selected, *rope = (
            _cut(part, rows, count) for part in (query, key, value, topk_indices, q_rope, k_rope)
        )
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


def _three(value: Any) -> tuple[Any, Any, Any]:
    parts = value if isinstance(value, tuple) else (value,)
    return (*parts, None, None)[:3]


def _packed(*parts: Any) -> Any:
    """What `_three` was made of: a tuple only if there is more than one."""
    given = tuple(part for part in parts if part is not None)
    return given if len(given) > 1 else given[0]


def _cut(tensor: Any, rows: int, count: int) -> Any:
    """The rows of real tokens; a tensor that has no row per token (a scale for all of them) as it
    is."""
    return tensor[:count] if tensor is not None and tensor.shape[0] == rows else tensor


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


def admit_sparse_attention(runner: Any) -> bool:
    """Whether a model runner's piecewise graph may be captured, as far as sparse attention goes;
    lists the indexers if so.

    runner: ModelRunner after its own loop. True for models without sparse attention, and for the
    breakable graph, which decides for itself. Where the answer is no, the first rank logs one
    warning; the reason stays with the runner as `prefill_graph_refusal`, for the report. Sizes
    beyond the context are left out: these releases capture them all, and the kernels of the
    selection would read past the placeholder's page table. Where nobody chose sizes, those beyond
    LARGEST are left out too, which the first rank logs.
    """
    if not features.has_sparse_attention(runner.model_config) or getattr(
        runner.server_args, "enable_breakable_cuda_graph", False
    ):
        return True
    reasons = sparse.against_sparse(runner.server_args)
    if not reasons and type(runner.attn_backend).__name__ != BACKEND:
        reasons = [
            f"attention runs on {type(runner.attn_backend).__name__}, which keeps nothing for the"
            " indexer"
        ]
    sizes = _useful_sizes(runner)
    if not reasons and not sizes:
        reasons = [no_size_fits(runner)]
    if not reasons:
        runner.server_args.piecewise_cuda_graph_tokens = sizes
        for layer in stack.find(runner.model).layers:
            _prepare(layer.self_attn)
        return True
    runner.prefill_graph_refusal = Refusal(sparse.sparse_reason(reasons))
    if model_runner.is_first_rank(runner):
        logger.warning("Prefill runs without a CUDA graph: %s", runner.prefill_graph_refusal.reason)
    return False


def _useful_sizes(runner: Any) -> list[int]:
    """The sizes to capture, ascending: those that fit, and of the default ones no more than are
    faster than eager prefill."""
    fitting = sizes_that_fit(runner)
    if not has_default_sizes(runner.server_args) or fitting[-1:] <= [LARGEST]:
        return fitting
    useful = [size for size in fitting if size <= LARGEST]
    if model_runner.is_first_rank(runner):
        logger.info(
            "Of the default capture sizes up to %d tokens those beyond %d are left out: eager"
            " prefill is as fast there with sparse attention",
            fitting[-1],
            LARGEST,
        )
    return useful
