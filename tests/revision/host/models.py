"""Real model classes of the release under test, small, on the meta device or on the CPU."""

import importlib
from dataclasses import dataclass, field
from typing import Any

import torch

from . import process, standin_packages

_ENDS = dict(
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    tie_word_embeddings=False,
    torch_dtype="bfloat16",
)

NEMOTRON_H = dict(
    _ENDS,
    architectures=["NemotronHForCausalLM"],
    model_type="nemotron_h",
    attention_bias=False,
    attention_dropout=0.0,
    attention_head_dim=32,
    head_dim=32,
    chunk_size=16,
    conv_kernel=4,
    expand=2,
    hidden_dropout=0.0,
    hidden_size=128,
    hybrid_override_pattern="M-M*M-",
    initializer_range=0.02,
    intermediate_size=256,
    layer_norm_epsilon=1e-5,
    mamba_head_dim=16,
    mamba_hidden_act="silu",
    mamba_num_heads=16,
    mamba_proj_bias=False,
    max_position_embeddings=4096,
    mlp_bias=False,
    mlp_hidden_act="relu2",
    n_groups=4,
    num_attention_heads=4,
    num_hidden_layers=6,
    num_key_value_heads=2,
    num_query_groups=2,
    rescale_prenorm_residual=True,
    residual_in_fp32=False,
    rms_norm_eps=1e-5,
    sliding_window=None,
    ssm_state_size=16,
    time_step_floor=1e-4,
    time_step_limit=[0.0, 1e9],
    time_step_max=0.1,
    time_step_min=0.001,
    time_step_rank=16,
    use_bias=False,
    use_cache=True,
    use_conv_bias=True,
    use_mamba_kernels=True,
    vocab_size=256,
)

QWEN3_NEXT = dict(
    _ENDS,
    architectures=["Qwen3NextForCausalLM"],
    model_type="qwen3_next",
    attention_bias=False,
    attention_dropout=0.0,
    decoder_sparse_step=1,
    full_attention_interval=4,
    head_dim=32,
    hidden_act="silu",
    hidden_size=128,
    initializer_range=0.02,
    intermediate_size=256,
    linear_conv_kernel_dim=4,
    linear_key_head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_value_head_dim=32,
    max_position_embeddings=4096,
    mlp_only_layers=[],
    moe_intermediate_size=64,
    norm_topk_prob=True,
    num_attention_heads=4,
    num_experts=4,
    num_experts_per_tok=2,
    num_hidden_layers=8,
    num_key_value_heads=2,
    output_router_logits=False,
    partial_rotary_factor=0.25,
    rms_norm_eps=1e-6,
    rope_scaling=None,
    rope_theta=1e7,
    router_aux_loss_coef=0.001,
    shared_expert_intermediate_size=64,
    use_cache=True,
    use_sliding_window=False,
    vocab_size=256,
)

LLAMA = dict(
    _ENDS,
    architectures=["LlamaForCausalLM"],
    model_type="llama",
    attention_bias=False,
    attention_dropout=0.0,
    head_dim=32,
    hidden_act="silu",
    hidden_size=128,
    initializer_range=0.02,
    intermediate_size=256,
    max_position_embeddings=4096,
    mlp_bias=False,
    num_attention_heads=4,
    num_hidden_layers=4,
    num_key_value_heads=2,
    rms_norm_eps=1e-6,
    rope_scaling=None,
    rope_theta=1e4,
    use_cache=True,
    vocab_size=256,
)

_YARN = dict(
    type="yarn",
    rope_type="yarn",
    factor=1.0,
    original_max_position_embeddings=4096,
    beta_fast=32,
    beta_slow=1,
    mscale=1.0,
    mscale_all_dim=1.0,
)

DEEPSEEK_V32 = dict(
    _ENDS,
    architectures=["DeepseekV32ForCausalLM"],
    model_type="deepseek_v3",
    attention_bias=False,
    attention_dropout=0.0,
    ep_size=1,
    first_k_dense_replace=1,
    hidden_act="silu",
    hidden_size=128,
    index_head_dim=128,
    index_n_heads=4,
    index_topk=64,
    initializer_range=0.02,
    intermediate_size=256,
    kv_lora_rank=64,
    max_position_embeddings=4096,
    moe_intermediate_size=64,
    moe_layer_freq=1,
    n_group=1,
    n_routed_experts=4,
    n_shared_experts=1,
    norm_topk_prob=True,
    num_attention_heads=4,
    num_experts_per_tok=2,
    num_hidden_layers=3,
    num_key_value_heads=4,
    num_nextn_predict_layers=0,
    q_lora_rank=64,
    qk_nope_head_dim=32,
    qk_rope_head_dim=64,
    rms_norm_eps=1e-6,
    rope_scaling=_YARN,
    rope_theta=1e4,
    routed_scaling_factor=1.0,
    scoring_func="sigmoid",
    topk_group=1,
    topk_method="noaux_tc",
    use_cache=True,
    v_head_dim=32,
    vocab_size=256,
)


KIMI_LINEAR = dict(
    _ENDS,
    architectures=["KimiLinearForCausalLM"],
    first_k_dense_replace=1,
    head_dim=32,
    hidden_size=128,
    initializer_range=0.02,
    intermediate_size=256,
    kv_lora_rank=64,
    linear_attn_config=dict(
        kda_layers=[1],
        full_attn_layers=[2],
        num_heads=4,
        head_dim=32,
        short_conv_kernel_size=4,
    ),
    mla_use_nope=True,
    moe_intermediate_size=64,
    num_attention_heads=4,
    num_experts=4,
    num_experts_per_token=2,
    num_hidden_layers=2,
    num_key_value_heads=4,
    num_shared_experts=1,
    q_lora_rank=None,
    qk_nope_head_dim=32,
    qk_rope_head_dim=16,
    rms_norm_eps=1e-5,
    v_head_dim=32,
    vocab_size=256,
)

FALCON_H1 = dict(
    _ENDS,
    architectures=["FalconH1ForCausalLM"],
    model_type="falcon_h1",
    attention_dropout=0.0,
    attention_in_multiplier=1.0,
    attention_out_multiplier=1.0,
    embedding_multiplier=1.0,
    head_dim=32,
    hidden_act="silu",
    hidden_size=128,
    initializer_range=0.02,
    intermediate_size=256,
    key_multiplier=1.0,
    lm_head_multiplier=1.0,
    mamba_chunk_size=16,
    mamba_d_conv=4,
    mamba_d_head=16,
    mamba_d_ssm=256,
    mamba_d_state=16,
    mamba_expand=2,
    mamba_n_groups=4,
    mamba_n_heads=16,
    max_position_embeddings=4096,
    mlp_multipliers=[1.0, 1.0],
    num_attention_heads=4,
    num_hidden_layers=2,
    num_key_value_heads=2,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    ssm_in_multiplier=1.0,
    ssm_multipliers=[1.0] * 5,
    ssm_out_multiplier=1.0,
    vocab_size=256,
)

# of positions with images
_AXES = dict(
    rope_type="default",
    type="default",
    mrope_section=[2, 1, 1],
    mrope_interleaved=True,
    rope_theta=1e4,
)
_VISION = dict(
    deepstack_visual_indexes=[],
    depth=1,
    hidden_act="gelu_pytorch_tanh",
    hidden_size=64,
    in_channels=3,
    initializer_range=0.02,
    intermediate_size=128,
    num_heads=2,
    num_position_embeddings=16,
    out_hidden_size=128,
    patch_size=4,
    spatial_merge_size=2,
    temporal_patch_size=2,
)

_PLACES = dict(
    image_token_id=250, video_token_id=251, vision_start_token_id=252, vision_end_token_id=253
)
_TEXT = dict(
    attention_bias=False,
    attention_dropout=0.0,
    head_dim=32,
    hidden_act="silu",
    hidden_size=128,
    initializer_range=0.02,
    intermediate_size=256,
    max_position_embeddings=4096,
    num_attention_heads=4,
    num_hidden_layers=3,
    num_key_value_heads=2,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    rope_scaling=_AXES | dict(mrope_section=[6, 5, 5]),
    tie_word_embeddings=False,
    use_cache=True,
    vocab_size=256,
)

QWEN3_5 = _PLACES | dict(
    architectures=["Qwen3_5ForConditionalGeneration"],
    initializer_range=0.02,
    vision_config=_VISION,
    text_config={
        name: value
        for name, value in QWEN3_NEXT.items()
        if name not in ("architectures", "model_type")
    }
    | dict(rope_scaling=_AXES, rope_parameters=_AXES),
)

# as get_config leaves it
QWEN3_VL = (
    _PLACES
    | _TEXT
    | dict(
        architectures=["Qwen3VLForConditionalGeneration"], vision_config=_VISION, text_config=_TEXT
    )
)


@dataclass(frozen=True)
class Kind:
    """A model family: where its class is, where its config class is, and a small config."""

    module: str
    name: str
    config: tuple[str, str]
    values: dict[str, Any] = field(repr=False)


KINDS = {
    "nemotron_h": Kind(
        "sglang.srt.models.nemotron_h",
        "NemotronHForCausalLM",
        ("sglang.srt.configs.nemotron_h", "NemotronHConfig"),
        NEMOTRON_H,
    ),
    "nemotron_h_mtp": Kind(
        "sglang.srt.models.nemotron_h_mtp",
        "NemotronHForCausalLMMTP",
        ("sglang.srt.configs.nemotron_h", "NemotronHConfig"),
        NEMOTRON_H,
    ),
    "qwen3_next": Kind(
        "sglang.srt.models.qwen3_next",
        "Qwen3NextForCausalLM",
        ("sglang.srt.configs.qwen3_next", "Qwen3NextConfig"),
        QWEN3_NEXT,
    ),
    "falcon_h1": Kind(
        "sglang.srt.models.falcon_h1",
        "FalconH1ForCausalLM",
        ("sglang.srt.configs.falcon_h1", "FalconH1Config"),
        FALCON_H1,
    ),
    "kimi_linear": Kind(
        "sglang.srt.models.kimi_linear",
        "KimiLinearForCausalLM",
        ("sglang.srt.configs.kimi_linear", "KimiLinearConfig"),
        KIMI_LINEAR,
    ),
    "qwen3_5": Kind(
        "sglang.srt.models.qwen3_5",
        "Qwen3_5ForConditionalGeneration",
        ("sglang.srt.configs.qwen3_5", "Qwen3_5Config"),
        QWEN3_5,
    ),
    "qwen3_vl": Kind(
        "sglang.srt.models.qwen3_vl",
        "Qwen3VLForConditionalGeneration",
        ("sglang.srt.configs.qwen3_vl", "Qwen3VLConfig"),
        QWEN3_VL,
    ),
    "llama": Kind(
        "sglang.srt.models.llama", "LlamaForCausalLM", ("transformers", "LlamaConfig"), LLAMA
    ),
    "glm_moe_dsa": Kind(
        "sglang.srt.models.glm4_moe",
        "GlmMoeDsaForCausalLM",
        ("transformers", "DeepseekV3Config"),
        DEEPSEEK_V32,
    ),
    "deepseek_v32": Kind(
        "sglang.srt.models.deepseek_v2",
        "DeepseekV32ForCausalLM",
        ("transformers", "DeepseekV3Config"),
        DEEPSEEK_V32,
    ),
}


def config_of(kind, **changes):
    """The config object of `kind` (a key of KINDS) with `changes` to its values."""
    module, name = KINDS[kind].config
    return getattr(importlib.import_module(module), name)(**{**KINDS[kind].values, **changes})


def build(kind, device="meta", dtype=torch.bfloat16, seed=0, server_args=None, **changes):
    """The release's own model class for `kind`, from a small config with `changes`.

    device: "meta" (shapes only, nothing computed) or "cpu" (weights are normals of the config's
    initializer_range drawn from `seed`, vectors that scale are left at what the class set them to).
    server_args: fields of ServerArgs other than their defaults.
    """
    standin_packages.install()
    config = config_of(kind, **changes)
    model = construct(
        getattr(importlib.import_module(KINDS[kind].module), KINDS[kind].name),
        config,
        device,
        dtype,
        server_args,
    )
    if device != "meta":
        _draw_weights(model, config.initializer_range, seed)
    return model.eval()


def construct(model_class, config, device="meta", dtype=torch.bfloat16, server_args=None):
    """model_class(config) as a model runner calls it, for a class that KINDS does not have; see
    build."""
    args = process.default_server_args(**(server_args or {}))
    process.use_server_args(args)
    process.start_groups()
    process.start_dp_attention(args, getattr(config, "hidden_size", 128), dtype)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device), process.cpu_device_module():
            return model_class(config=config, quant_config=None)
    finally:
        torch.set_default_dtype(before)


def _draw_weights(model, scale, seed):
    """Matrices come uninitialised from sglang's layers, for a checkpoint to fill."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.is_floating_point():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
