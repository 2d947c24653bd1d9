"""Server arguments that cannot go together with a prefill graph.

With --enable-breakable-cuda-graph that is an error at start, not a crash in warm-up. With sparse attention the piecewise
graph stays off, as these releases have it, and the report says why. What a model cannot do is no error either: it
prefills eagerly (breakable.refuse).
"""

from __future__ import annotations

import logging
import os
from typing import Any

from . import compat

logger = logging.getLogger(__name__)

FLAG = "--enable-breakable-cuda-graph"


def add_breakable(parser: Any) -> None:
    """The option, where the release has none (before 0.5.11)."""
    help = "Run prefill in a CUDA graph with eager breaks instead of the piecewise CUDA graph: no torch.compile."
    parser.add_argument(FLAG, action="store_true", help=help)


def check_breakable(args: Any) -> None:
    """Raise ValueError where the graph is asked for and another argument forbids it, naming every such argument.

    args: ServerArgs, once the release has applied its own rules for the piecewise graph. On releases where that graph is
    off unless asked for (0.5.9) asking for the breakable one asks for it, before memory is divided.
    """
    if not getattr(args, "enable_breakable_cuda_graph", False):
        return
    against = _against(args) or compat.argument_rules(args)
    if against:
        raise ValueError(f"{FLAG} cannot be honoured: {'; '.join(against)}. Leave one of them out.")
    compat.switch_on(args)


SPARSE_BACKEND = "nsa"


def admits_sparse_attention(args: Any) -> bool:
    """Whether a model that the release keeps from the piecewise graph is let in: its attention is sparse, and nothing is against it."""
    if not compat.has_sparse_attention(args.get_model_config()):
        return False
    reasons = against_sparse(args)
    if reasons:  # some of the arguments are still to be changed: these are what was typed
        args.prefill_graph_refusal = f"{sparse_reason(reasons)}; the release keeps such models from the graph"
    return not reasons


def against_sparse(args: Any) -> list[str]:
    """What keeps sparse attention (NSA) out of the piecewise graph: everything but the one setting in which it is proven.

    args: ServerArgs. An attention backend that is not set yet will be the sparse one (_handle_model_specific_adjustments,
    server_args.py:1790 in 0.5.12.post1).
    """
    found = [] if compat.on_cuda() else ["it needs an NVIDIA GPU"]
    for name in ("attention_backend", "prefill_attention_backend", "decode_attention_backend"):
        if getattr(args, name, None) not in (None, SPARSE_BACKEND):
            found.append(f"--{name.replace('_', '-')} is {getattr(args, name)}, not {SPARSE_BACKEND}")
    if getattr(args, "piecewise_cuda_graph_compiler", "eager") != "eager":
        found.append(f"--piecewise-cuda-graph-compiler is {args.piecewise_cuda_graph_compiler}: it swaps the indexer's kernels")
    for name in ("nsa_prefill_backend", "nsa_decode_backend"):
        if getattr(args, name, None) == "trtllm":  # with fp8 keys it rotates them itself, from positions that are padded in the graph
            found.append(f"--{name.replace('_', '-')} is trtllm")
    together = ("nsa_prefill_context_parallel", "prefill_context_parallel", "hisparse", "two_batch_overlap", "dp_attention", "lora")
    if now := compat.switch(args):  # where the graph must be asked for, its runner tells neither drafts nor mixed batches apart
        together += ("mixed_chunk",) if now.opt_in else ()
        if now.opt_in and getattr(args, "speculative_algorithm", None):
            found.append("--speculative-algorithm is given")
    found += [f"--enable-{name.replace('_', '-')} is given" for name in together if getattr(args, f"enable_{name}", False)]
    if getattr(args, "attn_cp_size", 1) > 1:
        found.append(f"--attention-context-parallel-size is {args.attn_cp_size}")
    return found


def sparse_reason(reasons: list[str]) -> str:
    """`against_sparse` in a sentence."""
    return f"sparse attention (NSA) is not run in the graph here: {'; '.join(reasons)}"


def _against(args: Any) -> list[str]:
    """The arguments that no release's breakable graph goes together with, and those that this package's does not."""
    found = []
    if getattr(args, "enable_memory_saver", False) and os.environ.get("SGLANG_MEMORY_SAVER_CUDA_GRAPH", "").lower() in ("1", "true"):
        found.append("--enable-memory-saver with SGLANG_MEMORY_SAVER_CUDA_GRAPH: the graph's memory cannot be paused")
    if getattr(args, "pp_size", 1) > 1:
        found.append("--pipeline-parallel-size: the layer stack is captured as a whole")
    if getattr(args, "enable_torch_compile", False):
        found.append("--enable-torch-compile: it compiles what is captured")
    if getattr(args, "enable_lora", False) or getattr(args, "lora_paths", None):
        found.append("--enable-lora: adapters are picked per batch")
    if getattr(args, "enable_dp_attention", False) and not compat.knows_idle_ranks():
        found.append("--enable-dp-attention: the graph of this release knows no idle ranks")
    if getattr(args, "moe_a2a_backend", "none") not in (None, "none") and not compat.knows_idle_ranks():
        found.append("--moe-a2a-backend: its dispatch waits for the host")
    if getattr(args, "attn_cp_size", 1) > 1:
        found.append("--attn-cp-size: tokens are spread over ranks")
    if getattr(args, "speculative_algorithm", None) and not compat.has_breakable():
        found.append("--speculative-algorithm: drafts are not captured")
    return found


BYPASSING = ("flashinfer_trtllm", "flashinfer_mxfp4", "experimental_sgl_trtllm")


def keep_bypassed_topk_eager(args: Any) -> None:
    """Turn the piecewise graph off for MoE kernels that pick the experts themselves, from more than the graph's op hands on.

    args: ServerArgs, once the MoE backend is final. A graph that was asked for stays, and so does GptOss's, which wraps its
    whole MoE block in an op of its own. The reason stays with the arguments as `prefill_graph_refusal`, for the report.
    """
    if args.moe_runner_backend not in BYPASSING or not compat.piecewise_unasked(args):
        return
    if args.get_model_config().hf_config.architectures[0] == "GptOssForCausalLM":
        return
    args.prefill_graph_refusal = f"the piecewise graph is incompatible with MoE runner backend {args.moe_runner_backend} (it bypasses top-k)"
    logger.warning("Prefill runs without a CUDA graph: %s", args.prefill_graph_refusal)
    compat.piecewise_off(args)
