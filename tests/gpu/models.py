"""Small checkpoints with real random weights, for numbers that mean something: `python models.py
FOLDER [NAME …]`.

Uniform dummy weights give the same answer whatever the graph does. These are scaled by each
matrix's fan-in, so that activations neither vanish nor explode; time steps and decays span memories
of a few to a thousand tokens, so that a wrong state shows; experts are close relatives, so that a
router's tie costs little. Same seed, same bytes. models.json has the configs:

- deepseek-v32 is behind an indexer (NSA). Sizes that kernels insist on are as published: FlashMLA
  wants 64 or 128 heads of 512 + 64, the indexer's scores heads of 128, its selection 2048
  positions. The type of DeepSeek-V3 stands for those of their own, which not every release's
  transformers knows; releases go by the architecture (is_deepseek_nsa, configs/model_config.py).
- deepseek-v32-fp8 has a router in no layer: fp8 keys round coarsely, and experts that are picked
  otherwise would hide what they do.
- falcon-h1 has attention in every layer and, beside it on the same input, Mamba2. Multipliers are
  as neutral as a checkpoint may have them: they scale what random weights are already scaled for.
- kimi-linear has Kimi's linear attention (KDA) and latent attention without positions. The sizes of
  heads are as published. Layers are counted from 1 in linear_attn_config.
- nemotron-h-mtp has one layer of attention that drafts. A random one is seldom right: answers are
  the target's all the same.
- qwen3-next-buffer is wide, so that a forward takes the GPU longer than the host needs to launch
  one, and every expert is taken, so that no router hides or makes a difference.
- models of subjects.py have published sizes, for speed, with dummy weights. The letters of
  hybrid_override_pattern: M Mamba2, * attention, - MLP, E experts.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path


def read() -> dict[str, dict[str, dict]]:
    """models.json, each config whole: "like" names another one whose values it shares, "without"
    those of them that it lacks."""
    found = json.loads(Path(__file__).with_name("models.json").read_text(encoding="utf-8"))
    known: dict[str, dict] = {}

    def whole(config: dict) -> dict:
        config = {name: whole(of) if isinstance(of, dict) else of for name, of in config.items()}
        base = known[config.pop("like")] if "like" in config else {}
        without = config.pop("without", ())
        return {name: value for name, value in base.items() if name not in without} | config

    for group in found.values():
        for name, config in group.items():
            group[name] = known[name] = whole(config)
    return found


MODELS, OTHERS = read().values()
# Name -> why a run leaves it out unless it is named.
ONLY_ASKED_FOR = {
    "nemotron-h-buffer": (
        "the cache strategy extra_buffer, which releases before 0.5.13 refuse, and later ones"
        " choose for nemotron-h"
    ),
    "nemotron-h-no-buffer": (
        "the cache strategy no_buffer, which SGLANG_PREFILL_GRAPH_STATES=capture needs from"
        " 0.5.15 on"
    ),
    "qwen3-next-buffer": "the cache strategy extra_buffer, which releases before 0.5.7 do not have",
    "kimi-linear": "no release has been asked for it yet",
    "nemotron-h-mtp": "drafts beside the prefix cache, which releases before 0.5.13 refuse",
    "qwen3-next-triton": (
        "Triton's kernels compute its gated delta nets, which SGLANG_PREFILL_GRAPH_STATES=all needs"
        " on 0.5.23"
    ),
}
# Code of the rule by which the breakable graph of a release leaves prefills of a model out: from
# 0.5.15 on those with cached prompts, where latent attention has layers of the other kind for them
# (_has_unsupported_mha_prefix, model_executor/runner/prefill_cuda_graph_runner.py:666 in 0.5.16).
REFUSED = {"kimi-linear": "forward_batch.extend_prefix_lens_cpu"}
# Their Mamba2 beside attention is a break of the breakable graph alone.
BREAKABLE_ALONE = {"falcon-h1"}
DEFAULT = tuple(name for name in MODELS if name not in ONLY_ASKED_FOR)
# The words for what computes sparse attention: up to 0.5.12, and from 0.5.13 on.
SPARSE_KERNELS = (
    ("nsa_prefill_backend", "dsa_prefill_backend"),
    ("nsa_decode_backend", "dsa_decode_backend"),
)
# What a server with sparse attention needs beyond the others' arguments: bfloat16 keys, which
# FlashMLA's sparse kernel reads in prefill and decode; the defaults on Hopper decode with
# FlashAttention 3. Graphs for decoding prove nothing here.
SPARSE_ENGINE = dict(
    attention_backend="nsa",
    **{name: "flashmla_sparse" for names in SPARSE_KERNELS for name in names},
    kv_cache_dtype="bfloat16",
    page_size=64,
    disable_cuda_graph=True,
)
TRITON_NETS = dict(linear_attn_prefill_backend="triton")  # not known to 0.5.9
# What leaves Mamba2 states behind whole chunks: by its name up to 0.5.13, and from 0.5.14 on.
EXTRA_BUFFER = dict.fromkeys(
    ("mamba_scheduler_strategy", "mamba_radix_cache_strategy"), "extra_buffer"
)
# which goes with it
NO_BUFFER = dict.fromkeys(EXTRA_BUFFER, "no_buffer") | dict(disable_overlap_schedule=True)
DRAFTS = dict(
    speculative_algorithm="EAGLE",
    speculative_num_steps=2,
    speculative_eagle_topk=1,
    speculative_num_draft_tokens=3,
)
# the kernel made for decoding
FP8_KEYS = dict(
    kv_cache_dtype="fp8_e4m3",
    **{name: "flashmla_kv" for names in SPARSE_KERNELS for name in names},
)


def has_router(config: dict) -> bool:
    """Whether some layer picks experts."""
    return (
        not config.keys().isdisjoint(("num_experts_per_tok", "num_experts_per_token"))
        and config.get("first_k_dense_replace", 0) < config["num_hidden_layers"]
    )


def page_size(name: str) -> int:
    """Tokens of a page of the engine's cache; a release counts a request's tokens in whole pages
    when it fills a batch."""
    return engine(name).get("page_size", 1)


def is_sparse(config: dict) -> bool:
    """Whether attention reads what an indexer selected."""
    return "index_topk" in config


def has_drafts(name: str) -> bool:
    """Whether the model drafts for itself."""
    return bool(MODELS[name].get("num_nextn_predict_layers"))


def engine(name: str) -> dict:
    """sglang.Engine's words for this model on top of those for all. Where it drafts, engine.py adds
    where it lies."""
    if has_drafts(name):
        return EXTRA_BUFFER | DRAFTS
    if name in ("nemotron-h-buffer", "qwen3-next-buffer"):
        return EXTRA_BUFFER
    if name == "nemotron-h-no-buffer":
        return NO_BUFFER
    if name == "qwen3-next-triton":
        return TRITON_NETS
    if not is_sparse(MODELS[name]):
        return {}
    return SPARSE_ENGINE | (FP8_KEYS if name.endswith("-fp8") else {})


def shapes(config: dict) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Every tensor of a checkpoint as published ones name it: (name, shape, kind); kind says how it
    is drawn."""
    yield from {
        "nemotron_h": _nemotron_h,
        "qwen3_next": _qwen3_next,
        "llama": _llama,
        "deepseek_v3": _deepseek,
        "falcon_h1": _falcon_h1,
        "kimi_linear": _kimi_linear,
    }[config["model_type"]](config)


def _nemotron_h(c: dict) -> Iterator[tuple[str, tuple[int, ...], str]]:
    hidden = c["hidden_size"]
    yield "backbone.embeddings.weight", (c["vocab_size"], hidden), "embedding"
    for number, kind in enumerate(c["hybrid_override_pattern"]):
        layer = f"backbone.layers.{number}"
        yield f"{layer}.norm.weight", (hidden,), "norm"
        layer += ".mixer"
        if kind == "M":
            inner = c["mamba_num_heads"] * c["mamba_head_dim"]
            yield from _mamba2(
                layer,
                hidden,
                inner,
                c["mamba_num_heads"],
                2 * c["n_groups"] * c["ssm_state_size"],
                c["conv_kernel"],
            )
            yield f"{layer}.norm.weight", (inner,), "norm"
        elif kind == "*":
            yield from _attention(layer, c)
        elif kind == "-":
            yield from _two_matrices(layer, hidden, c["intermediate_size"], "matrix")
        else:
            yield f"{layer}.gate.weight", (c["n_routed_experts"], hidden), "matrix"
            yield f"{layer}.gate.e_score_correction_bias", (c["n_routed_experts"],), "bias"
            for expert in range(c["n_routed_experts"]):
                yield from _two_matrices(
                    f"{layer}.experts.{expert}", hidden, c["moe_intermediate_size"], "expert"
                )
            yield from _two_matrices(
                f"{layer}.shared_experts",
                hidden,
                c["moe_shared_expert_intermediate_size"],
                "matrix",
            )
    yield "backbone.norm_f.weight", (hidden,), "norm"
    yield "lm_head.weight", (c["vocab_size"], hidden), "head"
    if "mtp_hybrid_override_pattern" in c:
        yield from _nemotron_h_mtp("mtp.layers.0", c)


def _nemotron_h_mtp(layer: str, c: dict) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """One layer of attention, the first and the last; embeddings and head are the target's."""
    hidden = c["hidden_size"]
    for norm in ("enorm", "hnorm", "norm", "final_layernorm"):
        yield f"{layer}.{norm}.weight", (hidden,), "norm"
    yield f"{layer}.eh_proj.weight", (hidden, 2 * hidden), "matrix"
    yield from _attention(f"{layer}.mixer", c)


def _mamba2(
    layer: str, hidden: int, inner: int, heads: int, groups: int, kernel: int
) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """All but the norm, which not every model has. groups: B and C of all groups together."""
    yield f"{layer}.in_proj.weight", (2 * inner + groups + heads, hidden), "matrix"
    yield f"{layer}.conv1d.weight", (inner + groups, 1, kernel), "matrix"
    yield f"{layer}.conv1d.bias", (inner + groups,), "bias"
    for name, how in (("A_log", "decay"), ("D", "norm"), ("dt_bias", "time-step")):
        yield f"{layer}.{name}", (heads,), how
    yield f"{layer}.out_proj.weight", (hidden, inner), "matrix"


def _attention(layer: str, c: dict) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Grouped queries, without norms and biases."""
    for name, heads in (
        ("q", c["num_attention_heads"]),
        ("k", c["num_key_value_heads"]),
        ("v", c["num_key_value_heads"]),
    ):
        yield f"{layer}.{name}_proj.weight", (heads * c["head_dim"], c["hidden_size"]), "matrix"
    yield (
        f"{layer}.o_proj.weight",
        (c["hidden_size"], c["num_attention_heads"] * c["head_dim"]),
        "matrix",
    )


def _two_matrices(
    layer: str, hidden: int, intermediate: int, kind: str
) -> Iterator[tuple[str, tuple[int, ...], str]]:
    yield f"{layer}.up_proj.weight", (intermediate, hidden), kind
    yield f"{layer}.down_proj.weight", (hidden, intermediate), kind


def _three_matrices(
    layer: str, hidden: int, intermediate: int, kind: str
) -> Iterator[tuple[str, tuple[int, ...], str]]:
    yield f"{layer}.gate_proj.weight", (intermediate, hidden), kind
    yield from _two_matrices(layer, hidden, intermediate, kind)


def _qwen3_next(c: dict) -> Iterator[tuple[str, tuple[int, ...], str]]:
    hidden, values = c["hidden_size"], c["linear_num_value_heads"]
    key_size, value_size = (
        c["linear_num_key_heads"] * c["linear_key_head_dim"],
        values * c["linear_value_head_dim"],
    )
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden), "embedding"
    for number in range(c["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", (hidden,), "norm-about-zero"
        yield f"{layer}.post_attention_layernorm.weight", (hidden,), "norm-about-zero"
        if (number + 1) % c["full_attention_interval"]:
            yield (
                f"{layer}.linear_attn.in_proj_qkvz.weight",
                (2 * key_size + 2 * value_size, hidden),
                "matrix",
            )
            yield f"{layer}.linear_attn.in_proj_ba.weight", (2 * values, hidden), "matrix"
            yield (
                f"{layer}.linear_attn.conv1d.weight",
                (2 * key_size + value_size, 1, c["linear_conv_kernel_dim"]),
                "matrix",
            )
            yield f"{layer}.linear_attn.A_log", (values,), "decay"
            yield f"{layer}.linear_attn.dt_bias", (values,), "time-step"
            yield f"{layer}.linear_attn.norm.weight", (c["linear_value_head_dim"],), "norm"
            yield f"{layer}.linear_attn.out_proj.weight", (hidden, value_size), "matrix"
        else:
            queries = c["num_attention_heads"] * c["head_dim"]
            # queries and their gates
            yield (f"{layer}.self_attn.q_proj.weight", (2 * queries, hidden), "matrix")
            for name in ("k", "v"):
                yield (
                    f"{layer}.self_attn.{name}_proj.weight",
                    (c["num_key_value_heads"] * c["head_dim"], hidden),
                    "matrix",
                )
            yield f"{layer}.self_attn.o_proj.weight", (hidden, queries), "matrix"
            yield f"{layer}.self_attn.q_norm.weight", (c["head_dim"],), "norm-about-zero"
            yield f"{layer}.self_attn.k_norm.weight", (c["head_dim"],), "norm-about-zero"
        yield f"{layer}.mlp.gate.weight", (c["num_experts"], hidden), "matrix"
        for expert in range(c["num_experts"]):
            yield from _three_matrices(
                f"{layer}.mlp.experts.{expert}", hidden, c["moe_intermediate_size"], "expert"
            )
        yield from _three_matrices(
            f"{layer}.mlp.shared_expert", hidden, c["shared_expert_intermediate_size"], "matrix"
        )
        yield f"{layer}.mlp.shared_expert_gate.weight", (1, hidden), "matrix"
    yield "model.norm.weight", (hidden,), "norm-about-zero"
    yield "lm_head.weight", (c["vocab_size"], hidden), "head"


def _llama(c: dict) -> Iterator[tuple[str, tuple[int, ...], str]]:
    hidden = c["hidden_size"]
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden), "embedding"
    for number in range(c["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", (hidden,), "norm"
        yield f"{layer}.post_attention_layernorm.weight", (hidden,), "norm"
        yield from _attention(f"{layer}.self_attn", c)
        yield from _three_matrices(f"{layer}.mlp", hidden, c["intermediate_size"], "matrix")
    yield "model.norm.weight", (hidden,), "norm"
    yield "lm_head.weight", (c["vocab_size"], hidden), "head"


def _falcon_h1(c: dict) -> Iterator[tuple[str, tuple[int, ...], str]]:
    hidden, groups = c["hidden_size"], 2 * c["mamba_n_groups"] * c["mamba_d_state"]
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden), "embedding"
    for number in range(c["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", (hidden,), "norm"
        yield f"{layer}.pre_ff_layernorm.weight", (hidden,), "norm"
        yield from _attention(f"{layer}.self_attn", c)
        yield from _mamba2(
            f"{layer}.mamba",
            hidden,
            c["mamba_d_ssm"],
            c["mamba_n_heads"],
            groups,
            c["mamba_d_conv"],
        )
        yield from _three_matrices(
            f"{layer}.feed_forward", hidden, c["intermediate_size"], "matrix"
        )
    yield "model.final_layernorm.weight", (hidden,), "norm"
    yield "lm_head.weight", (c["vocab_size"], hidden), "head"


def _deepseek(c: dict) -> Iterator[tuple[str, tuple[int, ...], str]]:
    hidden = c["hidden_size"]
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden), "embedding"
    for number in range(c["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", (hidden,), "norm"
        yield f"{layer}.post_attention_layernorm.weight", (hidden,), "norm"
        attention = f"{layer}.self_attn"
        yield from _latent(attention, c)
        yield (
            f"{attention}.indexer.wq_b.weight",
            (c["index_n_heads"] * c["index_head_dim"], c["q_lora_rank"]),
            "matrix",
        )
        yield f"{attention}.indexer.wk.weight", (c["index_head_dim"], hidden), "matrix"
        yield f"{attention}.indexer.k_norm.weight", (c["index_head_dim"],), "norm"
        yield f"{attention}.indexer.k_norm.bias", (c["index_head_dim"],), "bias"
        yield f"{attention}.indexer.weights_proj.weight", (c["index_n_heads"], hidden), "matrix"
        if number < c["first_k_dense_replace"]:
            yield from _three_matrices(f"{layer}.mlp", hidden, c["intermediate_size"], "matrix")
            continue
        yield f"{layer}.mlp.gate.weight", (c["n_routed_experts"], hidden), "matrix"
        yield f"{layer}.mlp.gate.e_score_correction_bias", (c["n_routed_experts"],), "bias"
        for expert in range(c["n_routed_experts"]):
            yield from _three_matrices(
                f"{layer}.mlp.experts.{expert}", hidden, c["moe_intermediate_size"], "expert"
            )
        yield from _three_matrices(
            f"{layer}.mlp.shared_experts",
            hidden,
            c["moe_intermediate_size"] * c["n_shared_experts"],
            "matrix",
        )
    yield "model.norm.weight", (hidden,), "norm"
    yield "lm_head.weight", (c["vocab_size"], hidden), "head"


def _kimi_linear(c: dict) -> Iterator[tuple[str, tuple[int, ...], str]]:
    hidden = c["hidden_size"]
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden), "embedding"
    for number in range(c["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", (hidden,), "norm"
        yield f"{layer}.post_attention_layernorm.weight", (hidden,), "norm"
        kda = number + 1 in c["linear_attn_config"]["kda_layers"]
        yield from (_kda if kda else _latent)(f"{layer}.self_attn", c)
        if number < c["first_k_dense_replace"]:
            yield from _three_matrices(f"{layer}.mlp", hidden, c["intermediate_size"], "matrix")
            continue
        experts = f"{layer}.block_sparse_moe"
        yield f"{experts}.gate.weight", (c["num_experts"], hidden), "matrix"
        yield f"{experts}.gate.e_score_correction_bias", (c["num_experts"],), "bias"
        size = c["moe_intermediate_size"]
        for expert in range(c["num_experts"]):
            for name, shape in (
                ("w1", (size, hidden)),
                ("w2", (hidden, size)),
                ("w3", (size, hidden)),
            ):
                yield f"{experts}.experts.{expert}.{name}.weight", shape, "expert"
        shared = size * c["num_shared_experts"]
        yield from _three_matrices(f"{experts}.shared_experts", hidden, shared, "matrix")
    yield "model.norm.weight", (hidden,), "norm"
    yield "lm_head.weight", (c["vocab_size"], hidden), "head"


def _kda(layer: str, c: dict) -> Iterator[tuple[str, tuple[int, ...], str]]:
    hidden, of = c["hidden_size"], c["linear_attn_config"]
    heads, size = of["num_heads"], of["head_dim"]
    for name in "qkv":
        yield f"{layer}.{name}_proj.weight", (heads * size, hidden), "matrix"
        shape = (heads * size, 1, of["short_conv_kernel_size"])
        yield f"{layer}.{name}_conv1d.weight", shape, "matrix"
    yield f"{layer}.b_proj.weight", (heads, hidden), "matrix"
    for name in "fg":  # of the forget gate and the output's gate
        yield f"{layer}.{name}_a_proj.weight", (size, hidden), "matrix"
        yield f"{layer}.{name}_b_proj.weight", (heads * size, size), "matrix"
    yield f"{layer}.A_log", (1, 1, heads, 1), "decay"
    yield f"{layer}.dt_bias", (heads * size,), "time-step"
    yield f"{layer}.o_norm.weight", (size,), "norm"
    yield f"{layer}.o_proj.weight", (hidden, heads * size), "matrix"


def _latent(layer: str, c: dict) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Latent attention (MLA). Without q_lora_rank its queries are not compressed."""
    hidden, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    plain, rope, values = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    queries = heads * (plain + rope)
    if compressed := c["q_lora_rank"]:
        yield f"{layer}.q_a_proj.weight", (compressed, hidden), "matrix"
        yield f"{layer}.q_a_layernorm.weight", (compressed,), "norm"
        yield f"{layer}.q_b_proj.weight", (queries, compressed), "matrix"
    else:
        yield f"{layer}.q_proj.weight", (queries, hidden), "matrix"
    yield f"{layer}.kv_a_proj_with_mqa.weight", (rank + rope, hidden), "matrix"
    yield f"{layer}.kv_a_layernorm.weight", (rank,), "norm"
    yield f"{layer}.kv_b_proj.weight", (heads * (plain + values), rank), "matrix"
    yield f"{layer}.o_proj.weight", (hidden, heads * values), "matrix"


def draw(name: str, shape: tuple[int, ...], kind: str, seed: int = 0):
    """One tensor in float32. The generator is seeded with the name, so that no tensor depends on
    another."""
    import torch

    def normal(of: str) -> torch.Tensor:
        return torch.randn(
            shape, generator=torch.Generator().manual_seed(zlib.crc32(f"{seed} {of}".encode()))
        )

    noise = normal(name)
    fan_in = math.sqrt(math.prod(shape[1:]))
    if kind == "matrix":
        return noise / fan_in
    if kind == "expert":  # mostly what all experts of the layer share
        head, _, tail = name.partition(".experts.")
        return (0.95 * normal(f"{head} {tail.partition('.')[2]}") + 0.31 * noise) / fan_in
    if kind == "embedding":
        return noise
    if kind == "head":
        return 2.0 * noise / fan_in  # logits of standard deviation 2
    if kind == "norm":
        return 1.0 + 0.1 * noise
    if kind in ("norm-about-zero", "bias"):
        return 0.1 * noise
    uniform = torch.special.ndtr(noise)
    if kind == "decay":  # log of a rate in 1 … 16
        return torch.log(1.0 + 15.0 * uniform)
    if kind == "time-step":  # a step of 0.001 … 0.1, as the softplus of this value
        step = torch.exp(math.log(0.001) + uniform * math.log(100.0))
        return step + torch.log(-torch.expm1(-step))
    raise ValueError(f"{name}: unknown kind {kind!r}")


def write(folder: Path, config: dict) -> Path:
    """The checkpoint in `folder`: config.json and model.safetensors. Needs torch and
    safetensors."""
    import torch
    from safetensors.torch import save_file

    write_config(folder, config)
    tensors = {
        name: draw(name, shape, kind).to(torch.bfloat16).contiguous()
        for name, shape, kind in shapes(config)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_config(folder: Path, config: dict) -> Path:
    """config.json alone, for load_format="dummy"."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return folder


if __name__ == "__main__":
    for chosen in sys.argv[2:] or DEFAULT:
        if not (Path(sys.argv[1]) / chosen / "model.safetensors").is_file():
            write(Path(sys.argv[1]) / chosen, MODELS[chosen])
