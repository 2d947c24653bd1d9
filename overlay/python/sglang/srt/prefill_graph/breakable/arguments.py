"""Server arguments that cannot go together with --enable-breakable-cuda-graph: an error at start,
not a crash in warm-up. What a model cannot do is no error: it prefills eagerly (runner.refuse)."""

from __future__ import annotations

from typing import Any

from ..compat import arguments, features, resolving
from ..model import multimodal

FLAG = "--enable-breakable-cuda-graph"

# What the releases keep from the piecewise graph (0.5.10 to 0.5.13) because torch.compile cannot
# trace it, as if it were not given. Captured is what eager code does, so that these are as right as
# in eager prefill:
_TRACED = {
    # attention waits for what is fetched, and runs between the captured pieces
    "enable_hierarchical_cache": False,
    # arguments choose the kernels, and no row depends on how many are behind it
    "enable_deterministic_inference": False,
    # GGUF: the decode graphs capture its kernels too
    "load_format": "auto",
    "quantization": None,
    "model_path": "",
}


def add_breakable(parser: Any) -> None:
    """The option, where the release has none (before 0.5.11)."""
    help = (
        "Run prefill in a CUDA graph with eager breaks instead of the piecewise CUDA graph: no"
        " torch.compile."
    )
    parser.add_argument(FLAG, action="store_true", help=help)


def check_breakable(args: Any) -> None:
    """Raise ValueError where the graph is asked for and other arguments forbid it, naming each.

    args: ServerArgs, once the release has applied its own rules for the piecewise graph. Where that
    graph has to be asked for (0.5.9), this asks for it, before memory is divided.
    """
    if not getattr(args, "enable_breakable_cuda_graph", False):
        return
    against = _against(args) or arguments.argument_rules(args, as_breakable(args))
    if against:
        raise ValueError(f"{FLAG} cannot be honoured: {'; '.join(against)}. Leave one of them out.")
    resolving.switch_on(args)


def as_breakable(args: Any) -> Any:
    """The arguments as the release's rules for the piecewise graph are to see them: where the
    breakable graph is asked for, some rules of torch.compile's have nothing to find. A server that
    only prefills (--disaggregation-mode prefill) sends what it computed behind the forward."""
    if not getattr(args, "enable_breakable_cuda_graph", False):
        return args
    role = {"disaggregation_mode": "null"} if args.disaggregation_mode == "prefill" else {}
    return resolving.Seen(
        args, get_model_config=lambda: _as_text(args.get_model_config()), **_TRACED, **role
    )


def _as_text(model_config: Any) -> Any:
    """The model as the rule about multimodal ones is to see it: as another, where text alone is
    captured."""
    known = multimodal.is_known(model_config.hf_config.architectures)
    return resolving.Seen(model_config, is_multimodal=False) if known else model_config


def _against(args: Any) -> list[str]:
    """The arguments that no release's breakable graph goes together with, and those that this
    package's does not."""

    def given(name: str, *harmless: Any) -> bool:
        return getattr(args, name, None) not in (None, False, 0, *harmless)

    def unknown_to_ranks(name: str, *harmless: Any) -> bool:
        return given(name, *harmless) and not features.knows_idle_ranks()

    between, padded = "what runs between the captured pieces", "padded rows would count as tokens"
    lora = given("enable_lora") or given("lora_paths", [], {})
    drafts = given("speculative_algorithm") and not features.has_breakable()
    records = given("enable_eplb") or given("expert_distribution_recorder_mode")
    idle = "the graph of this release knows no idle ranks"
    rules = (
        (given("pp_size", 1), "--pipeline-parallel-size: the layer stack is captured as a whole"),
        (given("enable_torch_compile"), "--enable-torch-compile: it compiles what is captured"),
        (lora, "--enable-lora: adapters are picked per batch"),
        (unknown_to_ranks("enable_dp_attention"), f"--enable-dp-attention: {idle}"),
        (
            unknown_to_ranks("moe_a2a_backend", "none"),
            "--moe-a2a-backend: its dispatch waits for the host",
        ),
        (given("attn_cp_size", 1), "--attn-cp-size: tokens are spread over ranks"),
        (drafts, "--speculative-algorithm: drafts are not captured"),
        (
            given("disaggregation_mode", "null", "prefill"),
            "--disaggregation-mode decode: other servers prefill",
        ),
        (
            given("cpu_offload_gb"),
            f"--cpu-offload-gb: {between} would find its weights on the host",
        ),
        (
            given("enable_symm_mem"),
            f"--enable-symm-mem: {between} would get memory that these write",
        ),
        (records, f"--enable-eplb and --expert-distribution-recorder-mode: {padded}"),
        (given("dllm_algorithm"), "--dllm-algorithm: the decode graphs run its blocks"),
    )
    return [why for holds, why in rules if holds]
