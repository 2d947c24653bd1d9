"""How a release captures a graph with breaks: its memory, its stream, its forward, and a batch for
it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from .features import (
    BREAKABLE,
    CONTEXT,
    FORWARD,
    has,
    has_breakable,
    hides_attention_backend,
    mentions,
)
from .model_runner import drafts, layer_lists


@dataclass(frozen=True)
class Primitive:
    """How a release captures a graph with breaks: capture(graph, pool, stream) into a graph();
    capturing() and replaying() are context managers around all captures, and around a replay."""

    graph: Callable[[], Any]
    capture: Callable[[Any, Any, Any], Any]
    capturing: Callable[[], Any]
    replaying: Callable[[], Any]


def own_primitive() -> Primitive | None:
    """The release's own breakable graph (from 0.5.11), or None."""
    if not has_breakable():
        return None
    own = importlib.import_module(f"{BREAKABLE}.breakable_cuda_graph")
    flag = importlib.import_module(f"{BREAKABLE}.context").enable_breakable_cuda_graph
    return Primitive(own.BreakableCUDAGraph, own.BreakableCUDAGraphCapture, flag, flag)


def breakable_runner() -> type | None:
    """The release's own runner of the breakable graph, where it captures the layer stack alone, and
    refuses batches that want other hidden states than those of the capture (0.5.13)."""
    module = "sglang.srt.model_executor.breakable_cuda_graph_runner"
    own = importlib.import_module(module).BreakableCudaGraphRunner if has(module) else None
    return own if own and "capture_hidden_mode" in own.can_run.__code__.co_names else None


def piecewise_runner() -> type:
    """The release's own runner of the piecewise graph (up to 0.5.13)."""
    module = "sglang.srt.model_executor.piecewise_cuda_graph_runner"
    return importlib.import_module(module).PiecewiseCudaGraphRunner


def piecewise_flag() -> Any:
    """A context manager in which the release's `graph_flag` is true."""
    return importlib.import_module(CONTEXT).enable_piecewise_cuda_graph()


@contextlib.contextmanager
def capture_context(runner: Any) -> Iterator[Any]:
    """The release's context manager for capturing graphs; gives the stream."""
    from sglang.srt.distributed.parallel_state import graph_capture
    from sglang.srt.model_executor.piecewise_cuda_graph_runner import freeze_gc

    with freeze_gc(runner.server_args.enable_cudagraph_gc), graph_capture() as capture:
        yield capture.stream


def graph_pool(runner: Any) -> Any:
    """The memory pool of all graphs of the process, which never run at the same time."""
    import torch
    from sglang.srt.distributed.device_communicators.pynccl_allocator import set_graph_pool_id
    from sglang.srt.model_executor import cuda_graph_runner

    pool = cuda_graph_runner.get_global_graph_memory_pool()
    if pool is None:
        pool = torch.get_device_module(runner.device).graph_pool_handle()
        cuda_graph_runner.set_global_graph_memory_pool(pool)
    set_graph_pool_id(pool)
    return pool


@contextlib.contextmanager
def forward_scope(runner: Any, forward_batch: Any) -> Iterator[None]:
    """The release's set_forward_context for a batch, in which breaks look up their layer and their
    batch. 0.5.10's num_tokens stays unset: its attention would plan padding, and breaks get
    none."""
    lists = [getattr(runner, name) for name in ("attention_layers", *layer_lists(runner))]
    quantization = getattr(runner.model, "quant_config", None)
    scope = importlib.import_module(CONTEXT).set_forward_context(
        forward_batch, lists[0], quantization, *lists[1:]
    )
    with published_backend(runner), scope:
        yield


def prepare_attention(runner: Any, forward_batch: Any, alone: bool = False) -> None:
    """Let the attention backend prepare a batch. alone: no layer with recurrent states will ask a
    hybrid backend, whose plan for these waits for the device."""
    backend = runner.attn_backend
    with published_backend(runner):
        if alone:
            begin_states(backend, forward_batch)
            backend = getattr(backend, "full_attn_backend", backend)
        backend.init_forward_metadata(forward_batch)


def begin_states(backend: Any, forward_batch: Any) -> None:
    """Copy the states that requests go on from out of the prefix cache, and clear those of new
    ones, where the linear half's plan does so (0.5.13, 0.5.14)."""
    linear = getattr(backend, "linear_attn_backend", None)
    begin = getattr(linear, "_execute_deferred_mamba_cow_and_clear", None)
    if begin:
        begin(forward_batch)


@contextlib.contextmanager
def without_linear_plan(runner: Any, forward_batch: Any) -> Iterator[None]:
    """Inside, a hybrid backend prepares its half with full attention alone."""
    backend = runner.attn_backend
    with published_backend(runner):
        begin_states(backend, forward_batch)
    with mock.patch.object(backend, "attn_backend_list", [backend.full_attn_backend]):
        yield


def published_backend(runner: Any) -> contextlib.AbstractContextManager[Any]:
    """Inside, layers find the attention backend in the forward's context (from 0.5.13), where a
    capture has none."""
    if not hides_attention_backend():
        return contextlib.nullcontext()
    own = importlib.import_module(FORWARD)
    if own.has_forward_context():
        return contextlib.nullcontext()
    return own.forward_context(own.ForwardContext(attn_backend=runner.attn_backend))


def begin_forward(forward_batch: Any, tokens: int) -> None:
    """What a graph runner settles before a forward of `tokens` rows without data parallelism."""
    from sglang.srt.layers.dp_attention import set_dp_buffer_len, set_is_extend_in_batch

    forward_batch.dp_local_start_pos = forward_batch.dp_local_num_tokens = None
    set_dp_buffer_len(None, tokens, forward_batch.dp_padding_mode.is_max_len())
    set_is_extend_in_batch(False)


def hidden_modes(runner: Any) -> tuple[Any, ...]:
    """The CaptureHiddenModes that this server's prefills can have."""
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode as Mode

    wanted = runner.server_args.enable_return_hidden_states or drafts(runner)
    return (Mode.NULL, Mode.LAST, Mode.FULL) if wanted else (Mode.NULL,)


def starves_drafts(runner: Any) -> bool:
    """Whether drafts want hidden states of every prefill, so that none can replay the release's
    piecewise graph, captured without them (from 0.5.11)."""
    if not drafts(runner) or runner.server_args.enable_return_hidden_states:
        return False
    if "capture_hidden_mode" not in piecewise_runner().can_run.__code__.co_names:
        return False
    kind = runner.spec_algorithm
    spared = mentions("sglang.srt.speculative.eagle_worker_v2", "CaptureHiddenMode.NULL")
    return kind.is_eagle() or kind.is_dflash() or (kind.is_standalone() and not spared)


def placeholder_batch(runner: Any, inputs: dict[str, Any], tokens: int) -> Any:
    """A ForwardBatch of one request with `tokens` new tokens, for capturing. inputs: the static
    tensors that captured kernels read, cut to `tokens`."""
    import torch
    from sglang.srt.layers.dp_attention import DpPaddingMode
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

    def here(value: int) -> Any:
        return torch.tensor([value], dtype=torch.int64, device=runner.device)

    values = inputs | dict(
        forward_mode=ForwardMode.EXTEND,
        global_forward_mode=ForwardMode.EXTEND,
        batch_size=1,
        seq_lens_sum=tokens,
        req_pool_indices=here(0),
        seq_lens=here(tokens),
        orig_seq_lens=here(tokens),
        seq_lens_cpu=torch.tensor([tokens]),
        extend_num_tokens=tokens,
        extend_seq_lens=here(tokens),
        extend_prefix_lens=here(0),
        extend_start_loc=here(0),
        extend_seq_lens_cpu=[tokens],
        extend_prefix_lens_cpu=[0],
        extend_logprob_start_lens_cpu=[tokens],
        num_token_non_padded_cpu=tokens,
        return_logprob=False,
        capture_hidden_mode=hidden_modes(runner)[0],
        dp_padding_mode=DpPaddingMode.get_default_mode_in_cuda_graph(),
        req_to_token_pool=runner.req_to_token_pool,
        token_to_kv_pool=runner.token_to_kv_pool,
        attn_backend=runner.attn_backend,
    )
    # else a store would go on with the decode graphs' last one (0.5.11)
    if getattr(runner, "is_hybrid_swa", False):
        values["out_cache_loc_swa"] = torch.zeros(tokens, dtype=torch.int64, device=runner.device)
    known = {field.name for field in dataclasses.fields(ForwardBatch)}
    return ForwardBatch(**{name: value for name, value in values.items() if name in known})


def keeps_own_metadata(runner: Any) -> bool:
    """Whether the attention backend prepares breakable graphs itself (DeepSeek-V4's, from
    0.5.13)."""
    name = "use_captured_forward_metadata_for_breakable_cuda_graph"
    return bool(getattr(runner.attn_backend, name, False))


def weak_view(tensor: Any) -> Any:
    """A view of a tensor on the GPU that does not keep its memory, for releases without a breakable
    graph (from 0.5.6.post2). Raises ModuleNotFoundError elsewhere."""
    own = importlib.import_module("sglang.srt.compilation.weak_ref_tensor")
    return own.weak_ref_tensors(tensor)
