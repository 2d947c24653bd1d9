"""Why a release's prefill graph does not take a batch, in the same words on every release. A
release answers yes or no (can_run; from 0.5.14 on can_run_graph and can_replay_locally); here the
conditions that these ask for are asked again of a refused batch. Everything asked is on the
host."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .model_runner import graph_runner, never_runs

OFF = "the graph is off"
OTHER = "another rule of the release"
# left at a graph runner by what decides for this package, and taken from there
LEFT = "prefill_graph_why_eager"

_DECIDE = ("can_run", "can_run_graph", "can_replay_locally")
_FACTOR = "_MAX_PREFILL_CUDA_GRAPH_PADDING_FACTOR"


@dataclass(frozen=True)
class Cause:
    """words: for the record. asks: names of which a release that has this condition asks for one.
    holds(graph runner, batch): whether it keeps the batch from the graph."""

    words: str
    asks: tuple[str, ...]
    holds: Callable[[Any, Any], bool]


def is_prefill(forward_batch: Any) -> bool:
    """Whether a batch computes prompts; one that verifies drafts does not."""
    mode = forward_batch.forward_mode
    return bool(mode.is_extend()) and not mode.is_target_verify()


def why(runner: Any, forward_batch: Any) -> str:
    """Why a ModelRunner runs a prefill eagerly. Never raises: the batch has to run."""
    try:
        return _why(runner, graph_runner(runner), forward_batch)
    except Exception as error:
        return f"{OTHER} ({type(error).__name__})"


def _why(runner: Any, graph: Any, forward_batch: Any) -> str:
    if graph is None or never_runs(graph):
        return OFF
    if hasattr(graph, "why_not"):  # this package's own runner
        return graph.why_not(forward_batch) or OTHER
    left = vars(graph).pop(LEFT, None)
    if left:
        return left
    asked = _asked(type(graph))
    for cause in CAUSES:
        if not asked.isdisjoint(cause.asks) and cause.holds(graph, forward_batch):
            return cause.words
    return OTHER


@functools.lru_cache(maxsize=8)
def _asked(graph_class: type) -> frozenset[str]:
    """Every name that the methods which decide ask for."""
    methods = [vars(owner).get(name) for owner in graph_class.__mro__ for name in _DECIDE]
    codes = [method.__code__ for method in methods if isinstance(method, types.FunctionType)]
    return frozenset(name for code in codes for name in _names(code))


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_varnames
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _brings_embeddings(graph: Any, batch: Any) -> bool:
    names = ("input_embeds", "replace_embeds")
    return any(getattr(batch, name, None) is not None for name in names)


def _wants_logprobs(graph: Any, batch: Any) -> bool:
    if not batch.return_logprob:
        return False
    tail = getattr(graph, "_uses_eager_prefill_tail", None)
    if tail is not None:  # from 0.5.16 on what follows the layers runs eagerly, or is captured too
        return not tail()
    starts, lengths = batch.extend_logprob_start_lens_cpu, batch.extend_seq_lens_cpu
    pairs = zip(starts, lengths, strict=False)
    return any(start is not None and start < length for start, length in pairs)


def _wants_states(graph: Any, batch: Any) -> bool:
    modes = getattr(graph, "hidden_modes", None)
    if modes is not None:
        return batch.capture_hidden_mode not in modes
    captured = graph.capture_hidden_mode
    if hasattr(graph, "can_replay_locally"):  # more than is wanted is enough, from 0.5.17 on
        return captured < batch.capture_hidden_mode
    return captured != batch.capture_hidden_mode


def _too_many_requests(graph: Any, batch: Any) -> bool:
    if not hasattr(graph, "_capture_req_slots"):  # 0.5.11: logits are captured, of one request
        return batch.batch_size > 1
    places = [getattr(graph, "_captured_attn_metadata_max_bs", None)]
    if getattr(graph, "_is_full_backend", False):
        places.append(graph._capture_req_slots)
    return any(count is not None and batch.batch_size > count for count in places)


def _held_by_ranks(graph: Any, batch: Any) -> bool:
    if batch.global_num_tokens_cpu is None:
        return False
    names = ("can_run_dp_prefill_cuda_graph", "can_run_dp_breakable_cuda_graph")
    allowed = next(getattr(batch, name) for name in names if hasattr(batch, name))
    return not allowed or graph._has_inactive_dp_rank(batch)


def _has_adapters(graph: Any, batch: Any) -> bool:
    if not graph.enable_lora:
        return False
    return not (
        graph._capture_lora and graph.model_runner.lora_manager.can_use_prefill_cuda_graph(batch)
    )


def _has_prefix(graph: Any, batch: Any) -> bool:
    lengths = batch.extend_prefix_lens_cpu
    if not lengths or not any(lengths):
        return False
    return bool(
        getattr(graph, "has_mha_companion_layers", False)
        or getattr(graph, "_capture_chunked_prefix", False)
    )


def _padded_too_far(graph: Any, batch: Any) -> bool:
    tokens = len(batch.input_ids)
    factor = type(graph).can_run_graph.__globals__[_FACTOR]
    return graph._pad_to_bucket(tokens, graph.capture_num_tokens) > tokens * factor


def _has_long_context(graph: Any, batch: Any) -> bool:
    limits = (graph.max_context_size, graph.max_seq_len)
    longest = graph._batch_max_context_len(batch)
    return any(limit is not None and (longest is None or longest > limit) for limit in limits)


# in the order in which a user can do most about them
CAUSES = (
    Cause(
        "more tokens than the largest size",
        ("max_num_tokens",),
        lambda graph, batch: len(batch.input_ids) > graph.max_num_tokens,
    ),
    Cause("log-probabilities of the prompt are wanted", ("return_logprob",), _wants_logprobs),
    Cause(
        "hidden states are wanted that were not captured", ("capture_hidden_mode",), _wants_states
    ),
    Cause("the request brings embeddings", ("input_embeds", "replace_embeds"), _brings_embeddings),
    Cause("adapters are in use that were not captured", ("lora_ineligible",), _has_adapters),
    Cause(
        "more requests than the graph has places for",
        ("batch_size", "_capture_req_slots", "_captured_attn_metadata_max_bs"),
        _too_many_requests,
    ),
    Cause("another rank cannot replay this step", ("_has_inactive_dp_rank",), _held_by_ranks),
    Cause(
        "decoding requests are in the batch",
        ("prefer_eager_mixed_prefill",),
        lambda graph, batch: graph.prefer_eager_mixed_prefill and batch.forward_mode.is_mixed(),
    ),
    Cause("fewer tokens than half of the next size", (_FACTOR,), _padded_too_far),
    Cause("a longer context than was captured", ("max_context_size",), _has_long_context),
    Cause(
        "a cached prefix that was not captured",
        (
            "has_mha_companion_layers",
            "_has_unsupported_mha_prefix",
            "_has_uncapturable_chunked_prefix",
            "chunked_prefix_uncapturable",
        ),
        _has_prefix,
    ),
    Cause(
        "the batch has images",
        ("has_images", "contains_mm_inputs"),
        lambda graph, batch: batch.contains_mm_inputs(),
    ),
    Cause(
        "tokens are spread over ranks (context parallelism)",
        ("enable_cp_bcg_capture", "prefill_cp_bcg_input"),
        lambda graph, batch: any(
            getattr(graph, name, False)
            for name in ("enable_cp_bcg_capture", "enable_cp_v2_bcg_capture")
        ),
    ),
)
