"""Server arguments that cannot go together with sparse attention (NSA) in the piecewise graph.

With them that graph stays off, as these releases have it, and the report says why.
"""

from __future__ import annotations

from typing import Any

from ..compat import arguments, features

SPARSE_BACKEND = "nsa"


def admits_sparse_attention(args: Any) -> bool:
    """Whether a model that the release keeps from the piecewise graph is let in: its attention is
    sparse, and nothing is against it."""
    if not features.has_sparse_attention(args.get_model_config()):
        return False
    reasons = against_sparse(args)
    if reasons:  # some of the arguments are still to be changed: these are what was typed
        args.prefill_graph_refusal = (
            f"{sparse_reason(reasons)}; the release keeps such models from the graph"
        )
    return not reasons


def against_sparse(args: Any) -> list[str]:
    """What keeps sparse attention (NSA) out of the piecewise graph: everything but the one setting
    in which it is proven. An attention backend of ServerArgs that is not set yet will be the sparse
    one (_handle_model_specific_adjustments, server_args.py)."""
    found = [] if features.on_cuda() else ["it needs an NVIDIA GPU"]
    for name in ("attention_backend", "prefill_attention_backend", "decode_attention_backend"):
        backend = getattr(args, name, None)
        if backend not in (None, SPARSE_BACKEND):
            found.append(f"--{name.replace('_', '-')} is {backend}, not {SPARSE_BACKEND}")
    if getattr(args, "piecewise_cuda_graph_compiler", "eager") != "eager":
        found.append(
            f"--piecewise-cuda-graph-compiler is {args.piecewise_cuda_graph_compiler}: it swaps the"
            " indexer's kernels"
        )
    for name in ("nsa_prefill_backend", "nsa_decode_backend"):
        # with fp8 keys it rotates them itself, from positions that are padded in the graph
        if getattr(args, name, None) == "trtllm":
            found.append(f"--{name.replace('_', '-')} is trtllm")
    together = ["nsa_prefill_context_parallel", "prefill_context_parallel", "hisparse"]
    together += ["two_batch_overlap", "dp_attention", "lora"]
    # where the graph must be asked for, its runner tells neither drafts nor mixed batches apart
    now = arguments.switch(args)
    if now and now.opt_in:
        together += ["mixed_chunk"]
        if getattr(args, "speculative_algorithm", None):
            found.append("--speculative-algorithm is given")
    found += [
        f"--enable-{name.replace('_', '-')} is given"
        for name in together
        if getattr(args, f"enable_{name}", False)
    ]
    if getattr(args, "attn_cp_size", 1) > 1:
        found.append(f"--attention-context-parallel-size is {args.attn_cp_size}")
    return found


def sparse_reason(reasons: list[str]) -> str:
    """`against_sparse` in a sentence."""
    return f"sparse attention (NSA) is not run in the graph here: {'; '.join(reasons)}"
