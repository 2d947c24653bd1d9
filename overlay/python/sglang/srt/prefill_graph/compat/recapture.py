"""The prefill graph captured anew with the decode graphs, after an update of the weights that may
have replaced parameters: a graph replays addresses. `recapture_cuda_graph=True` of
update_weights_from_disk makes every release capture its decode graphs alone."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from typing import Any

import torch

from . import pausing
from .features import has
from .model_runner import drafts

_RUNNERS = (
    "graph_runner",
    "piecewise_cuda_graph_runner",
    "decode_cuda_graph_runner",
    "prefill_cuda_graph_runner",
)
_POOLS = (
    "sglang.srt.model_executor.cuda_graph_runner",
    "sglang.srt.model_executor.piecewise_cuda_graph_runner",
    "sglang.srt.model_executor.runner_utils.pool",
)
_COMPILE = "sglang.srt.compilation.compile"


def recapture(runner: Any, decode: Callable[[], None]) -> None:
    """Capture the graphs of a ModelRunner anew, the old ones let go first: those of decode by the
    release's own `decode`, and that of prefill. A draft's stay: their head is not here."""
    if runner.is_draft_worker:
        decode()
        return
    let_go(runner)
    # from 0.5.14 on the first set-up has this order too
    if hasattr(runner, "init_prefill_cuda_graph"):
        runner.init_prefill_cuda_graph()
        decode()
    else:
        decode()
        runner.init_piecewise_cuda_graphs()


def let_go(runner: Any) -> None:
    """Give back all that the graphs of an idle ModelRunner hold on the GPU."""
    device = torch.get_device_module(runner.device)
    device.synchronize()
    for name in _RUNNERS:
        if getattr(runner, name, None) is not None:
            _clear(getattr(runner, name))
            setattr(runner, name, None)
    _forget_compiled(runner.model)
    if not drafts(runner):  # whose graphs are in the pool too, and keep it alive
        _forget_pools()
    gc.collect()
    pausing.empty_cache(device)


def _clear(graphs: Any) -> None:
    """Clear what a runner of graphs holds: other objects may still know the runner itself."""
    backend = getattr(graphs, "backend", None)
    if backend is not None:
        backend.cleanup()
    for name in ("graphs", "output_buffers"):
        held = getattr(graphs, name, None)
        if isinstance(held, dict):
            held.clear()


def _forget_compiled(model: torch.nn.Module) -> None:
    """Undo install_torch_compiled, whose pieces hold the graphs."""
    compiled = [module for module in model.modules() if _is_compiled(vars(module).get("forward"))]
    if not compiled:
        return
    import torch._dynamo

    for module in compiled:
        del module.forward
        torch._dynamo.eval_frame.remove_from_cache(type(module).forward.__code__)
    # each keeps the code that it saw, and so the pieces
    hooks = torch._dynamo.convert_frame._bytecode_hooks
    for key in [key for key, hook in hooks.items() if hook.__module__ == _COMPILE]:
        del hooks[key]


def _is_compiled(forward: Any) -> bool:
    return getattr(getattr(forward, "__func__", forward), "__module__", None) == _COMPILE


def _forget_pools() -> None:
    """Name no pool again: logits may still be in it, and torch ends the process where a capture
    begins in a pool that it is giving back."""
    for name in filter(has, _POOLS):
        forget = getattr(importlib.import_module(name), "set_global_graph_memory_pool", None)
        if forget is not None:
            forget(None)
