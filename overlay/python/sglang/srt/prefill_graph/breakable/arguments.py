"""Server arguments that cannot go together with the breakable graph.

With --enable-breakable-cuda-graph that is an error at start, not a crash in warm-up. What a model cannot do is no error: it
prefills eagerly (runner.refuse).
"""

from __future__ import annotations

from typing import Any

from ..compat import arguments, features

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
    against = _against(args) or arguments.argument_rules(args)
    if against:
        raise ValueError(f"{FLAG} cannot be honoured: {'; '.join(against)}. Leave one of them out.")
    arguments.switch_on(args)


def _against(args: Any) -> list[str]:
    """The arguments that no release's breakable graph goes together with, and those that this package's does not."""
    found = []
    if getattr(args, "pp_size", 1) > 1:
        found.append("--pipeline-parallel-size: the layer stack is captured as a whole")
    if getattr(args, "enable_torch_compile", False):
        found.append("--enable-torch-compile: it compiles what is captured")
    if getattr(args, "enable_lora", False) or getattr(args, "lora_paths", None):
        found.append("--enable-lora: adapters are picked per batch")
    if getattr(args, "enable_dp_attention", False) and not features.knows_idle_ranks():
        found.append("--enable-dp-attention: the graph of this release knows no idle ranks")
    if getattr(args, "moe_a2a_backend", "none") not in (None, "none") and not features.knows_idle_ranks():
        found.append("--moe-a2a-backend: its dispatch waits for the host")
    if getattr(args, "attn_cp_size", 1) > 1:
        found.append("--attn-cp-size: tokens are spread over ranks")
    if getattr(args, "speculative_algorithm", None) and not features.has_breakable():
        found.append("--speculative-algorithm: drafts are not captured")
    return found
