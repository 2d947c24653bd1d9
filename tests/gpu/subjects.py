"""What the bench times: models of published shapes with dummy weights, and what each engine of one
takes of the GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import load
import models
import modes

LOAD, FIRST_TOKEN = "load", "first-token"
TOKENS = 2048  # cached for each running request
ALONE_RUNNING, ALONE_TOKENS = 32, 131072  # of an engine that has the GPU alone
MOST = 0.9  # of the GPU's memory, for weights and pools: graphs and activations take the rest
# per running request, with the prefix cache: MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO,
# model_runner_kv_cache_mixin.py; and two more where the cache strategy is extra_buffer
# (kv_cache_configurator.py:1591 in 0.5.16), or fewer requests run than are asked for
STATES, TRACKED = 3, 2


@dataclass(frozen=True)
class Subject:
    """One model to time.

    model: its published name, for the record. weights, rest: GiB that an engine takes for weights
    and for everything but pools, as nvidia-smi saw it on an H200 or by computation; request: GiB of
    pools for each running request. measures, modes: what is measured by default, and in which
    modes. words: sglang.Engine's words for so many running requests. shapes: (requests, tokens) of
    first tokens. share: of the GPU's memory for weights and pools, where an engine has the GPU
    alone. enforce: the release keeps a piecewise graph off for the architecture unless it is told.
    """

    model: str
    config: dict = field(repr=False)
    weights: float
    rest: float
    request: float
    measures: tuple[str, ...]
    modes: tuple[str, ...]
    words: Callable[[int], dict]
    shapes: tuple[tuple[int, int], ...] = load.FIRST_TOKEN
    share: float = 0.6
    enforce: bool = False
    state: float = 0.0


def alone(subject: Subject) -> dict:
    """sglang.Engine's words for one engine that has the GPU alone: the same pools in every tree,
    and no prefix cache."""
    pools = dict(
        max_total_tokens=ALONE_TOKENS, mem_fraction_static=subject.share, disable_radix_cache=True
    )
    # decoding is not measured
    return subject.words(ALONE_RUNNING) | pools | dict(cuda_graph_max_bs=16, cuda_graph_bs=[1, 16])


def serving(subject: Subject, running: int, gpu_gib: float, tracked: bool = False) -> dict:
    """sglang.Engine's words for one engine that serves users alone: with its prefix cache, and
    decode graphs for as many requests as run.

    gpu_gib: the GPU's memory. Of one with 80 GB weights and pools take more than the subject's
    share, and fewer requests run where that does not do. tracked: states are kept inside of
    prompts too.
    """
    request = subject.request + (TRACKED * subject.state if tracked else 0)
    running = min(running, int((MOST * gpu_gib - subject.weights) / request))
    share = max(subject.share, min(MOST, (subject.weights + running * request) / gpu_gib))
    sizes = sorted({running, *(size for size in load.DECODE if size < running)})
    pools = dict(max_total_tokens=ALONE_TOKENS * 2, mem_fraction_static=round(share, 3))
    words = subject.words(running)
    if tracked and "max_mamba_cache_size" in words:
        words["max_mamba_cache_size"] += TRACKED * running
    return words | pools | dict(cuda_graph_max_bs=running, cuda_graph_bs=sizes)


def _pools(running: int) -> dict:
    """Pools have stated sizes: mem_fraction_static is a share of what is free when an engine starts
    (init_memory_pool, model_runner_kv_cache_mixin.py), so beside others it would give each engine
    other pools."""
    return dict(
        load_format="dummy",
        max_running_requests=running,
        max_total_tokens=TOKENS * running,
        mem_fraction_static=0.98,
        chunked_prefill_size=load.CHUNK,
    )


def _nemotron(running: int) -> dict:
    sizes = sorted({running, *(size for size in load.DECODE if size < running)})
    return _pools(running) | dict(
        max_mamba_cache_size=STATES * running, cuda_graph_max_bs=running, cuda_graph_bs=sizes
    )


def _hybrid(running: int) -> dict:
    return _pools(running) | dict(max_mamba_cache_size=STATES * running, cuda_graph_max_bs=running)


def _nets_by_triton(running: int) -> dict:
    return _hybrid(running) | models.TRITON_NETS


def _attention(running: int) -> dict:
    return _pools(running) | dict(cuda_graph_max_bs=running)


def _text_alone(running: int) -> dict:
    return _hybrid(running) | dict(enable_multimodal=False)


def _sparse(running: int) -> dict:
    return _pools(running) | models.SPARSE_ENGINE


# of one request in 27 Mamba2 layers, float32 and bfloat16
_STATE = 27 * (128 * 80 * 128 * 4 + 3 * (128 * 80 + 2 * 8 * 128) * 2) / 2**30
_TOKEN = 4 * 2 * 8 * 128 * 2 / 2**30  # of one token in 4 attention layers
# in 8 layers: compressed keys in bfloat16, the indexer's in fp8 with a scale
_SPARSE_TOKEN = 8 * (576 * 2 + 132) / 2**30

# The published sizes of NVIDIA-Nemotron-3-Nano-30B-A3B: 23 Mamba2, 23 expert and 6 attention
# layers.
NEMOTRON_3_NANO = models.nemotron_h(
    "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    2688,
    1856,
    (32, 2),
    (64, 64),
    131072,
    n_routed_experts=128,
    n_shared_experts=1,
    num_experts_per_tok=6,
    moe_intermediate_size=1856,
    moe_shared_expert_intermediate_size=3712,
    routed_scaling_factor=2.5,
    n_group=1,
    topk_group=1,
    norm_topk_prob=True,
    moe_latent_size=None,
)


def qwen3_next(layers: int) -> dict:
    """The published sizes of Qwen3-Next-80B-A3B, but for the number of layers: one in four has
    attention, the others a gated delta net, and each all 512 experts."""
    return models.QWEN3_NEXT | dict(
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=5120,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        num_experts=512,
        num_experts_per_tok=10,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
        max_position_embeddings=262144,
    )


QWEN3_NEXT = qwen3_next(12)
QWEN3_NEXT_32 = qwen3_next(32)  # 101.5 GiB of weights: as much as one H200 serves with room


def qwen3_5(kind: str, hidden: int, **text: object) -> dict:
    """A Qwen3.5 with these sizes of its text model, as published. kind: "" or "_moe", in names.

    Its vision tower is a small one, and the server runs without (enable_multimodal).
    """
    vision = dict(
        model_type="qwen3_5" + kind,
        deepstack_visual_indexes=[],
        depth=1,
        hidden_act="gelu_pytorch_tanh",
        hidden_size=64,
        in_channels=3,
        initializer_range=0.02,
        intermediate_size=128,
        num_heads=2,
        num_position_embeddings=16,
        out_hidden_size=hidden,
        patch_size=16,
        spatial_merge_size=2,
        temporal_patch_size=2,
    )
    rope = dict(
        rope_type="default",
        mrope_section=[11, 11, 10],
        mrope_interleaved=True,
        rope_theta=1e7,
        partial_rotary_factor=0.25,
    )
    shared = {name: value for name, value in models.QWEN3_NEXT.items() if name != "architectures"}
    return dict(
        architectures=[f"Qwen3_5{kind[1:].title()}ForConditionalGeneration"],
        model_type="qwen3_5" + kind,
        torch_dtype="bfloat16",
        tie_word_embeddings=False,
        image_token_id=248056,
        video_token_id=248057,
        vision_start_token_id=248053,
        vision_end_token_id=248054,
        vision_config=vision,
        text_config=shared
        | dict(
            model_type=f"qwen3_5{kind}_text",
            vocab_size=248320,
            hidden_size=hidden,
            head_dim=256,
            linear_num_key_heads=16,
            max_position_embeddings=262144,
            layer_types=(["linear_attention"] * 3 + ["full_attention"])
            * (text["num_hidden_layers"] // 4),
            rope_parameters=rope,
        )
        | text,
    )


# Qwen3.5-27B, but for the number of layers: 12 GDN and 4 attention layers.
QWEN3_5 = qwen3_5(
    "",
    5120,
    intermediate_size=17408,
    num_hidden_layers=16,
    num_attention_heads=24,
    num_key_value_heads=4,
    linear_num_value_heads=48,
    num_experts=0,
    num_experts_per_tok=0,
    moe_intermediate_size=0,
    shared_expert_intermediate_size=0,
)
# Qwen3.5-35B-A3B, whole: 30 GDN and 10 attention layers, with experts in each.
QWEN3_5_MOE = qwen3_5(
    "_moe",
    2048,
    intermediate_size=0,
    num_hidden_layers=40,
    num_attention_heads=16,
    num_key_value_heads=2,
    linear_num_value_heads=32,
    num_experts=256,
    num_experts_per_tok=8,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=512,
)
# The published sizes of Llama-3.1-8B.
LLAMA = models.LLAMA | dict(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=131072,
)
# Qwen/Qwen3-8B's config.json
QWEN3_8B = dict(
    architectures=["Qwen3ForCausalLM"],
    model_type="qwen3",
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=151936,
    max_position_embeddings=40960,
    rope_theta=1000000,
    rms_norm_eps=1e-6,
    hidden_act="silu",
    attention_bias=False,
    tie_word_embeddings=False,
    torch_dtype="bfloat16",
    bos_token_id=151643,
    eos_token_id=151645,
)
_TOKEN_LLAMA = 32 * 2 * 8 * 128 * 2 / 2**30  # of one token in 32 attention layers
_TOKEN_QWEN3 = 36 * 2 * 8 * 128 * 2 / 2**30  # of one token in 36 attention layers
# of one request in 23 Mamba2 layers
_STATE_3 = 23 * (64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2) / 2**30
_TOKEN_3 = 6 * 2 * 2 * 128 * 2 / 2**30  # of one token in 6 attention layers
# of one request in 9 GDN layers
_STATE_GDN = 9 * (32 * 128 * 128 * 4 + 3 * (2 * 16 + 32) * 128 * 2) / 2**30
# of one request in 12 GDN layers
_STATE_GDN_5 = 12 * (48 * 128 * 128 * 4 + 3 * (2 * 16 + 48) * 128 * 2) / 2**30
_TOKEN_5 = 4 * 2 * 4 * 256 * 2 / 2**30  # of one token in 4 attention layers
# of one request in 30 GDN layers
_STATE_GDN_5_MOE = 30 * (32 * 128 * 128 * 4 + 3 * (2 * 16 + 32) * 128 * 2) / 2**30
_TOKEN_5_MOE = 10 * 2 * 2 * 256 * 2 / 2**30  # of one token in 10 attention layers
_TOKEN_NEXT = 3 * 2 * 2 * 256 * 2 / 2**30  # of one token in 3 attention layers

SUBJECTS = {
    "nemotron": Subject(
        "NVIDIA-Nemotron-Nano-9B-v2",
        models.NANO_9B,
        16.6,
        4.5,
        STATES * _STATE + TOKENS * _TOKEN,
        (LOAD, FIRST_TOKEN),
        (modes.EAGER, modes.PIECEWISE, modes.INDUCTOR),
        _nemotron,
        state=_STATE,
    ),
    "llama": Subject(
        "Llama-3.1-8B",
        LLAMA,
        15.0,
        4.5,
        TOKENS * _TOKEN_LLAMA,
        (FIRST_TOKEN,),
        (modes.EAGER, modes.BREAKABLE),
        _attention,
    ),
    "qwen3": Subject(
        "Qwen3-8B",
        QWEN3_8B,
        15.3,
        4.5,
        TOKENS * _TOKEN_QWEN3,
        (FIRST_TOKEN,),
        (modes.EAGER, modes.BREAKABLE),
        _attention,
    ),
    "nemotron-3-nano": Subject(
        "NVIDIA-Nemotron-3-Nano-30B-A3B",
        NEMOTRON_3_NANO,
        59.0,
        5.0,
        STATES * _STATE_3 + TOKENS * _TOKEN_3,
        (FIRST_TOKEN,),
        (modes.EAGER, modes.BREAKABLE),
        _hybrid,
        share=0.85,
        state=_STATE_3,
    ),
    "qwen3-next": Subject(
        "Qwen3-Next-80B-A3B, 12 of its 48 layers",
        QWEN3_NEXT,
        38.8,
        5.0,
        STATES * _STATE_GDN + TOKENS * _TOKEN_NEXT,
        (FIRST_TOKEN,),
        (modes.EAGER, modes.BREAKABLE),
        _hybrid,
        share=0.85,
        enforce=True,
        state=_STATE_GDN,
    ),
    "qwen3-next-triton": Subject(
        "Qwen3-Next-80B-A3B, 12 of its 48 layers, nets by Triton's kernels",
        QWEN3_NEXT,
        38.8,
        5.0,
        STATES * _STATE_GDN + TOKENS * _TOKEN_NEXT,
        (FIRST_TOKEN,),
        (modes.EAGER, modes.BREAKABLE),
        _nets_by_triton,
        share=0.85,
        enforce=True,
        state=_STATE_GDN,
    ),
    "qwen3-next-32": Subject(
        "Qwen3-Next-80B-A3B, 32 of its 48 layers",
        QWEN3_NEXT_32,
        101.5,
        5.0,
        STATES * _STATE_GDN * 24 / 9 + TOKENS * _TOKEN_NEXT * 8 / 3,
        (FIRST_TOKEN,),
        (modes.EAGER, modes.BREAKABLE),
        _hybrid,
        share=0.9,
        enforce=True,
        state=_STATE_GDN * 24 / 9,
    ),
    "qwen3.5": Subject(
        "Qwen3.5-27B, 16 of its 64 layers",
        QWEN3_5,
        16.1,
        5.0,
        STATES * _STATE_GDN_5 + TOKENS * _TOKEN_5,
        (FIRST_TOKEN,),
        (modes.EAGER, modes.BREAKABLE),
        _text_alone,
        enforce=True,
        state=_STATE_GDN_5,
    ),
    "qwen3.5-moe": Subject(
        "Qwen3.5-35B-A3B",
        QWEN3_5_MOE,
        65.0,
        5.0,
        STATES * _STATE_GDN_5_MOE + TOKENS * _TOKEN_5_MOE,
        (FIRST_TOKEN,),
        (modes.EAGER, modes.BREAKABLE),
        _text_alone,
        share=0.85,
        enforce=True,
        state=_STATE_GDN_5_MOE,
    ),
    "deepseek-v32": Subject(
        "DeepSeek-V3.2, 8 of its 61 layers, 16 of its 256 experts",
        models.DEEPSEEK_V32_WIDE,
        18.6,
        6.0,
        TOKENS * _SPARSE_TOKEN,
        (FIRST_TOKEN,),
        (modes.EAGER, modes.PIECEWISE),
        _sparse,
        tuple(shape for shape in load.FIRST_TOKEN if shape[1] >= 256),
    ),
}
