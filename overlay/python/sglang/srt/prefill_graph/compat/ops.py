"""The state that a release's split ops ask for, and how its compiler learns of more of them."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .features import CONTEXT, FORWARD, LATER_CONTEXT, has

# the split ops of layers whose states a graph can hold (captured/layers.py), as releases name them
RECURRENT = ("nemotron_mamba2_with_output", "unified_linear_attention_with_output")
_CONFIG = "sglang.srt.compilation.compilation_config"
_BACKEND = "sglang.srt.compilation.backend"


def graph_flag() -> Callable[[], bool]:
    """The release's test of a forward for the piecewise graph. Bind it once in a module, where
    torch.compile reads it as a constant."""
    return importlib.import_module(CONTEXT).is_in_piecewise_cuda_graph


def found_context() -> Any | None:
    """The release's forward context; None outside of `set_forward_context`."""
    if has(CONTEXT):
        return importlib.import_module(CONTEXT).get_forward_context()
    return importlib.import_module(LATER_CONTEXT).get_tc_piecewise_forward_context()


def forward_context() -> Any:
    """The release's forward context, with `forward_batch` and `attention_layers` by layer_id.
    Raises RuntimeError outside of `set_forward_context`."""
    context = found_context()
    if context is None:
        raise RuntimeError(
            "a split op ran outside of the piecewise graph: there is no forward context"
        )
    return context


def split_at(op_name: str) -> None:
    """Make the compiler split traced forwards at torch.ops.sglang.<op_name>, before a runner is
    built. Raises RuntimeError where the release has no known way."""
    target = f"sglang.{op_name}"
    config = importlib.import_module(_CONFIG)
    if hasattr(config, "SPLIT_OPS"):
        if target not in config.SPLIT_OPS:
            config.SPLIT_OPS.append(target)
    elif hasattr(config.CompilationConfig, "add_split_op"):
        _add_to_every_config(config.CompilationConfig, target)
    else:
        try:
            backend = importlib.import_module(_BACKEND)
        except (ImportError, NotImplementedError):
            # the compiler's backend loads only where graphs can be captured: nothing will be split
            # here
            return
        if not hasattr(backend, "add_split_ops"):
            raise RuntimeError(f"this release has no way to split its piecewise graph at {target}")
        if target not in backend.SPLIT_OPS:
            backend.add_split_ops([target])


def splits_at_linear_attention() -> bool:
    """Whether the release splits its piecewise graph at gated delta nets (from 0.5.6)."""
    import torch

    importlib.import_module("sglang.srt.models.qwen3_next")  # registers the op
    names = ("gdn_with_output", "unified_linear_attention_with_output")
    return any(hasattr(torch.ops.sglang, name) for name in names)


@contextlib.contextmanager
def not_split_at(op_names: Sequence[str]) -> Iterator[None]:
    """Runners that are built inside keep these ops in their pieces (from 0.5.8)."""
    listed = importlib.import_module(_CONFIG).SPLIT_OPS
    before, targets = list(listed), {f"sglang.{name}" for name in op_names}
    listed[:] = [target for target in before if target not in targets]
    try:
        yield
    finally:
        listed[:] = before


def _add_to_every_config(config_class: type, target: str) -> None:
    """Add `target` to every configuration made later: 0.5.7 makes its list afresh each time."""
    made = config_class.__init__
    targets = getattr(made, "split_targets", None)
    if targets is None:
        targets = []

        @functools.wraps(made)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            made(self, *args, **kwargs)
            for name in targets:
                self.add_split_op(name)

        init.split_targets = targets
        config_class.__init__ = init
    if target not in targets:
        targets.append(target)


def new_tokens(forward_batch: Any) -> int:
    """Tokens of a batch before padding, or the drafts of each request when verifying them."""
    if forward_batch.extend_num_tokens is not None:
        return forward_batch.extend_num_tokens
    return forward_batch.batch_size * forward_batch.spec_info.draft_token_num


def mamba2_backend(forward_batch: Any) -> Any:
    """The half of a hybrid attention backend that runs Mamba2 mixers, for the forward of a batch:
    in the batch up to 0.5.12, then in the forward's context."""
    found = getattr(forward_batch, "attn_backend", None)
    return (found or importlib.import_module(FORWARD).get_attn_backend()).linear_attn_backend


def mamba2_tokens(forward_batch: Any) -> int:
    """Rows that Mamba2Metadata accounts for, exactly those that MambaMixer2 takes: prefill tokens,
    then one per decode, or its drafts when verifying them (from 0.5.6)."""
    metadata = mamba2_backend(forward_batch).forward_metadata
    per_decode = metadata.draft_token_num if getattr(metadata, "is_target_verify", False) else 1
    return metadata.num_prefill_tokens + metadata.num_decodes * per_decode


def counted_tokens(forward_batch: Any) -> int | None:
    """Tokens before padding, as the batch of a prefill graph counts them for its split ops; None
    where drafts are verified up to 0.5.10, as all rows are real then."""
    names = "global_num_token_non_padded_cpu", "num_token_non_padded_cpu", "extend_num_tokens"
    counts = (getattr(forward_batch, name, None) for name in names)
    return next((count for count in counts if count is not None), None)


def batch_getter(function: Callable[..., Any]) -> Callable[[], Any]:
    """What gives the batch that a split op's function runs for, by the forward context of its
    module. Raises RuntimeError where the module asks no known one."""
    names = function.__globals__
    # the latter from 0.5.14
    for name in ("get_forward_context", "get_tc_piecewise_forward_context"):
        if name in names:
            return lambda: names[name]().forward_batch
    raise RuntimeError(
        f"{function.__module__}.{function.__name__} asks no known forward context for its batch"
    )


def mamba_cache_chunk_size() -> int:
    """Of how many tokens a multiple the prefix cache keeps a hybrid model's states for (from
    0.5.11)."""
    backend = importlib.import_module("sglang.srt.layers.attention.hybrid_linear_attn_backend")
    if hasattr(backend, "mamba_cache_chunk_size"):
        return backend.mamba_cache_chunk_size()
    for name in ("get_server_args", "get_global_server_args"):
        if hasattr(backend, name):
            return getattr(backend, name)().mamba_cache_chunk_size
    return importlib.import_module("sglang.srt.runtime_context").mamba_cache_chunk_size()


def state_slots(pool: Any, requests: Any) -> Any:
    """Each request's slot in a HybridReqToTokenPool, (requests,) on the device."""
    return slots_inside(pool, pool.get_mamba_indices(requests))


def slots_inside(pool: Any, slots: Any) -> Any:
    """The slots of a HybridReqToTokenPool as its tensors have them: from 0.5.15 on others can be in
    use outside of it."""
    translate = getattr(pool, "translate_mamba_indices", None)
    return translate(slots) if translate else slots


def mamba2_scan() -> Callable[..., Any]:
    """The release's scan of a Mamba2 prefill, as its mixer's module has it."""
    mixers = importlib.import_module("sglang.srt.layers.attention.mamba.mamba")
    return mixers.mamba_chunk_scan_combined
