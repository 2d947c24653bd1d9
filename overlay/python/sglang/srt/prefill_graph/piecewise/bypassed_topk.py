"""MoE kernels that the piecewise graph's op cannot run: they pick the experts themselves."""

from __future__ import annotations

import logging
from typing import Any

from ..compat import resolving

logger = logging.getLogger(__name__)

BYPASSING = ("flashinfer_trtllm", "flashinfer_mxfp4", "experimental_sgl_trtllm")


def keep_bypassed_topk_eager(args: Any) -> None:
    """Turn the piecewise graph off for them. One that was asked for stays, and so does GptOss's,
    which wraps its whole MoE block in an op of its own.

    args: ServerArgs, once the MoE backend is final. The reason stays with them, for the report.
    """
    if args.moe_runner_backend not in BYPASSING or not resolving.piecewise_unasked(args):
        return
    if args.get_model_config().hf_config.architectures[0] == "GptOssForCausalLM":
        return
    args.prefill_graph_refusal = (
        f"the piecewise graph is incompatible with MoE runner backend {args.moe_runner_backend} (it"
        " bypasses top-k)"
    )
    logger.warning("Prefill runs without a CUDA graph: %s", args.prefill_graph_refusal)
    resolving.piecewise_off(args)
