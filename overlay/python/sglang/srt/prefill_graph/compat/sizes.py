"""The capture sizes of 0.5.14 to 0.5.16 that the context has room for; later releases look
themselves."""

from __future__ import annotations

from typing import Any

from .model_runner import refused


def some_size_fits(runner: Any) -> bool:
    """Leave out a ModelRunner's sizes beyond the context, where a request has no place in
    req_to_token, and say whether one is left. If not, the first rank logs one warning."""
    prefill, context = runner.server_args.cuda_graph_config.prefill, runner.model_config.context_len
    fitting = [size for size in prefill.bs if size <= context]
    if not fitting:
        reason = (
            f"no capture size fits: asked for were {sorted(prefill.bs)}, the context has"
            f" {context} tokens"
        )
        refused(runner, reason)
    prefill.bs = fitting
    return bool(fitting)
