"""What a release has: parts of its own, and the names of their modules."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTEXT = "sglang.srt.compilation.piecewise_context_manager"
BREAKABLE = "sglang.srt.model_executor.breakable_cuda_graph"
LATER_BREAKABLE = "sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph"
FORWARD = "sglang.srt.model_executor.forward_context"
LATER_CONTEXT = (
    "sglang.srt.model_executor.runner_backend_utils.tc_piecewise_cuda_graph.context_manager"
)


def has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def defines(module: str, name: str) -> bool:
    """Whether the release's own `module` has a function `name`."""
    return mentions(module, f"\ndef {name}(")


def mentions(module: str, text: str) -> bool:
    """Whether `text` is in the release's `module`; reads the file, since an import may be
    circular."""
    spec = importlib.util.find_spec(module) if has(module) else None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return False
    return text in Path(spec.origin).read_text(encoding="utf-8")


def micro() -> int:
    """The N of a release 0.5.N, for what GPUs showed of it and its code does not say."""
    from packaging.version import Version
    from sglang.version import __version__

    return Version(__version__).micro


def has_breakable() -> bool:
    """Whether the release has a breakable graph of its own."""
    return has(BREAKABLE)


def lacks_breaks() -> bool:
    """Whether the piecewise graph is the release's only prefill graph (before 0.5.11)."""
    return has(CONTEXT) and not has_breakable()


def hides_attention_backend() -> bool:
    """Whether layers ask the forward's context for the attention backend (from 0.5.13)."""
    return has(FORWARD)


def knows_idle_ranks() -> bool:
    """Whether its breakable runner takes part in data-parallel attention (from 0.5.13)."""
    batches = "sglang.srt.model_executor.forward_batch_info"
    return mentions(batches, "can_run_dp_breakable_cuda_graph")


def has_sparse_attention(model_config: Any) -> bool:
    """Whether the release runs this model's attention behind an indexer."""
    configs = importlib.import_module("sglang.srt.configs.model_config")
    is_sparse = getattr(configs, "is_deepseek_nsa", None)
    return is_sparse is not None and is_sparse(model_config.hf_text_config)


def on_cuda() -> bool:
    """Whether the release runs on an NVIDIA GPU, as it sees it."""
    from sglang.srt.utils import is_cuda

    return is_cuda()


def own_breaks() -> tuple[Callable[..., Any], Callable[[], bool]] | None:
    """What makes a function a break of the release's own breakable graph, and whether a forward is
    captured for it or replayed; None before 0.5.11."""
    place = next((name for name in (LATER_BREAKABLE, BREAKABLE) if has(name)), None)
    if place is None:
        return None
    graph, context = (
        importlib.import_module(f"{place}.{name}") for name in ("breakable_cuda_graph", "context")
    )
    return graph.eager_on_graph(True), context.is_in_breakable_cuda_graph


def weak_views(capture: Any) -> Callable[[Any], Any]:
    """What a release's own capture of a breakable graph makes weak views with (from 0.5.11)."""
    return vars(sys.modules[type(capture).__module__])["_weak_ref_if_tensor"]
