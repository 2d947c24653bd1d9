"""Write a small checkpoint with real random weights: `python weights.py FOLDER NAME SEED`.

Uniform dummy weights give the same answer whatever the graph does. These are scaled by each
matrix's fan-in, so that activations neither vanish nor explode; time steps and decays span memories
of a few to a thousand tokens, so that a wrong state shows; experts are close relatives, so that a
router's tie costs little. Same seed, same bytes.
"""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import models

# of a module: a tensor's name -> its shape, and how it is drawn
Tensors = dict[str, tuple[tuple[int, ...], str]]
Modules = dict[str, Tensors]


def shapes(config: dict) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Every tensor of a checkpoint as published ones name it: (name, shape, kind); kind says how it
    is drawn."""
    family = {
        "nemotron_h": _nemotron_h,
        "qwen3_next": _qwen3_next,
        "qwen3_5": _qwen3_5,
        "llama": _llama,
        "deepseek_v3": _deepseek,
        "falcon_h1": _falcon_h1,
        "kimi_linear": _kimi_linear,
    }[config["model_type"]]
    for prefix, tensors in family(config):
        for name, (shape, kind) in tensors.items():
            yield f"{prefix}.{name}" if prefix else name, shape, kind


def _weights(kind: str, **shapes: int | tuple[int, ...]) -> Tensors:
    """Weights of one kind, by the names of their modules."""
    return {
        f"{name}.weight": (shape if isinstance(shape, tuple) else (shape,), kind)
        for name, shape in shapes.items()
    }


def _decoder(
    c: dict,
    model: str,
    block: Callable[[int], Modules],
    norm: str = "norm",
    norms: Sequence[str] = ("input_layernorm", "post_attention_layernorm"),
    kind: str = "norm",
    embedding: str = "embed_tokens",
) -> Iterator[tuple[str, Tensors]]:
    """A decoder. model: its module; block: of a layer's number, the modules of the layer beside its
    norms, which are of one kind with the last norm."""
    hidden, size = c["hidden_size"], (c["vocab_size"], c["hidden_size"])
    yield model, _weights("embedding", **{embedding: size}) | _weights(kind, **{norm: hidden})
    yield "", _weights("head", lm_head=size)
    for number in range(c["num_hidden_layers"]):
        layer = f"{model}.layers.{number}"
        yield layer, _weights(kind, **dict.fromkeys(norms, hidden))
        for name, tensors in block(number).items():
            yield f"{layer}.{name}", tensors


def _experts(module: str, count: int, one: Tensors) -> Modules:
    return {f"{module}.experts.{number}": one for number in range(count)}


def _nemotron_h(c: dict) -> Iterator[tuple[str, Tensors]]:
    hidden, pattern = c["hidden_size"], c["hybrid_override_pattern"]

    def block(number: int) -> Modules:
        if pattern[number] == "M":
            inner = c["mamba_num_heads"] * c["mamba_head_dim"]
            groups = 2 * c["n_groups"] * c["ssm_state_size"]
            mamba2 = _mamba2(hidden, inner, c["mamba_num_heads"], groups, c["conv_kernel"])
            return {"mixer": mamba2 | _weights("norm", norm=inner)}
        if pattern[number] == "*":
            return {"mixer": _attention(c)}
        if pattern[number] == "-":
            return {"mixer": _two_matrices(hidden, c["intermediate_size"])}
        one = _two_matrices(hidden, c["moe_intermediate_size"], "expert")
        shared = _two_matrices(hidden, c["moe_shared_expert_intermediate_size"])
        experts = c["n_routed_experts"]
        mixer = {"mixer": _router(hidden, experts), "mixer.shared_experts": shared}
        return mixer | _experts("mixer", experts, one)

    yield from _decoder(c, "backbone", block, "norm_f", ("norm",), embedding="embeddings")
    if "mtp_hybrid_override_pattern" in c:
        # one layer of attention, the first and the last; embeddings and head are the target's
        norms = ("enorm", "hnorm", "norm", "final_layernorm")
        yield "mtp.layers.0", _weights("norm", **dict.fromkeys(norms, hidden))
        yield "mtp.layers.0", _weights("matrix", eh_proj=(hidden, 2 * hidden))
        yield "mtp.layers.0.mixer", _attention(c)


def _router(hidden: int, experts: int) -> Tensors:
    return _weights("matrix", gate=(experts, hidden)) | {
        "gate.e_score_correction_bias": ((experts,), "bias")
    }


def _mamba2(hidden: int, inner: int, heads: int, groups: int, kernel: int) -> Tensors:
    """All but the norm, which not every model has. groups: B and C of all groups together."""
    return _weights(
        "matrix",
        in_proj=(2 * inner + groups + heads, hidden),
        conv1d=(inner + groups, 1, kernel),
        out_proj=(hidden, inner),
    ) | {
        "conv1d.bias": ((inner + groups,), "bias"),
        "A_log": ((heads,), "decay"),
        "D": ((heads,), "norm"),
        "dt_bias": ((heads,), "time-step"),
    }


def _attention(c: dict, gates: int = 1) -> Tensors:
    """Grouped queries, without norms and biases. gates: 2 where each query has a gate."""
    hidden, size = c["hidden_size"], c["head_dim"]
    queries, keys = c["num_attention_heads"] * size, c["num_key_value_heads"] * size
    return _weights(
        "matrix",
        q_proj=(gates * queries, hidden),
        k_proj=(keys, hidden),
        v_proj=(keys, hidden),
        o_proj=(hidden, queries),
    )


def _two_matrices(hidden: int, size: int, kind: str = "matrix") -> Tensors:
    return _weights(kind, up_proj=(size, hidden), down_proj=(hidden, size))


def _three_matrices(hidden: int, size: int, kind: str = "matrix") -> Tensors:
    return _weights(kind, gate_proj=(size, hidden)) | _two_matrices(hidden, size, kind)


def _net(c: dict, projections: dict[str, int]) -> Tensors:
    """A gated delta net. projections: rows by name."""
    values = c["linear_num_value_heads"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    out, hidden = values * c["linear_value_head_dim"], c["hidden_size"]
    return _weights(
        "matrix",
        **{f"in_proj_{name}": (rows, hidden) for name, rows in projections.items()},
        conv1d=(2 * keys + out, 1, c["linear_conv_kernel_dim"]),
        out_proj=(hidden, out),
    ) | {
        "A_log": ((values,), "decay"),
        "dt_bias": ((values,), "time-step"),
        "norm.weight": ((c["linear_value_head_dim"],), "norm"),
    }


def _qwen(
    c: dict, model: str, projections: Callable[[int, int, int], dict[str, int]], mlp: Modules
) -> Iterator[tuple[str, Tensors]]:
    """Qwen3-Next and Qwen3.5. projections: of a net, by the sizes of keys and values and the number
    of value heads."""
    about_zero, size = "norm-about-zero", c["head_dim"]
    values = c["linear_num_value_heads"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    net = _net(c, projections(keys, values * c["linear_value_head_dim"], values))
    attention = _attention(c, gates=2) | _weights(about_zero, q_norm=size, k_norm=size)

    def block(number: int) -> Modules:
        is_net = (number + 1) % c["full_attention_interval"]
        return ({"linear_attn": net} if is_net else {"self_attn": attention}) | mlp

    return _decoder(c, model, block, kind=about_zero)


def _qwen3_next(c: dict) -> Iterator[tuple[str, Tensors]]:
    hidden, experts = c["hidden_size"], c["num_experts"]
    one = _three_matrices(hidden, c["moe_intermediate_size"], "expert")
    mlp = _experts("mlp", experts, one) | {
        "mlp": _weights("matrix", gate=(experts, hidden), shared_expert_gate=(1, hidden)),
        "mlp.shared_expert": _three_matrices(hidden, c["shared_expert_intermediate_size"]),
    }
    return _qwen(
        c, "model", lambda keys, out, heads: {"qkvz": 2 * (keys + out), "ba": 2 * heads}, mlp
    )


def _qwen3_5(config: dict) -> Iterator[tuple[str, Tensors]]:
    """Without experts, and with a vision tower."""
    c = config["text_config"]
    yield from _qwen(
        c,
        "model.language_model",
        lambda keys, out, heads: {"qkv": 2 * keys + out, "z": out, "b": heads, "a": heads},
        {"mlp": _three_matrices(c["hidden_size"], c["intermediate_size"])},
    )
    yield "model.visual", _tower(config["vision_config"])


def _tower(v: dict) -> Tensors:
    """The vision tower: every matrix and norm has a bias."""
    hidden, merged = v["hidden_size"], v["hidden_size"] * v["spatial_merge_size"] ** 2
    patch = (v["in_channels"], v["temporal_patch_size"], v["patch_size"], v["patch_size"])
    found: Tensors = _weights("embedding", pos_embed=(v["num_position_embeddings"], hidden))
    matrices = {
        "patch_embed.proj": (hidden, *patch),
        "merger.linear_fc1": (merged, merged),
        "merger.linear_fc2": (v["out_hidden_size"], merged),
    }
    norms = ["merger.norm"]
    for number in range(v["depth"]):
        block = f"blocks.{number}"
        norms += [f"{block}.norm1", f"{block}.norm2"]
        matrices |= {
            f"{block}.attn.qkv": (3 * hidden, hidden),
            f"{block}.attn.proj": (hidden, hidden),
            f"{block}.mlp.linear_fc1": (v["intermediate_size"], hidden),
            f"{block}.mlp.linear_fc2": (hidden, v["intermediate_size"]),
        }
    found |= _weights("matrix", **matrices) | _weights("norm", **dict.fromkeys(norms, hidden))
    biases = {name: shape[:1] for name, shape in matrices.items()}
    biases |= dict.fromkeys(norms, (hidden,))
    return found | {f"{name}.bias": (shape, "bias") for name, shape in biases.items()}


def _llama(c: dict) -> Iterator[tuple[str, Tensors]]:
    mlp = _three_matrices(c["hidden_size"], c["intermediate_size"])
    return _decoder(c, "model", lambda _: {"self_attn": _attention(c), "mlp": mlp})


def _falcon_h1(c: dict) -> Iterator[tuple[str, Tensors]]:
    hidden, groups = c["hidden_size"], 2 * c["mamba_n_groups"] * c["mamba_d_state"]
    layer = {
        "self_attn": _attention(c),
        "mamba": _mamba2(hidden, c["mamba_d_ssm"], c["mamba_n_heads"], groups, c["mamba_d_conv"]),
        "feed_forward": _three_matrices(hidden, c["intermediate_size"]),
    }
    norms = ("input_layernorm", "pre_ff_layernorm")
    return _decoder(c, "model", lambda _: layer, "final_layernorm", norms)


def _deepseek(c: dict) -> Iterator[tuple[str, Tensors]]:
    hidden, size, experts = c["hidden_size"], c["moe_intermediate_size"], c["n_routed_experts"]
    sparse = _experts("mlp", experts, _three_matrices(hidden, size, "expert")) | {
        "mlp": _router(hidden, experts),
        "mlp.shared_experts": _three_matrices(hidden, size * c["n_shared_experts"]),
    }
    dense = {"mlp": _three_matrices(hidden, c["intermediate_size"])}
    attention = {"self_attn": _latent(c), "self_attn.indexer": _indexer(c)}
    first = c["first_k_dense_replace"]
    return _decoder(c, "model", lambda number: attention | (dense if number < first else sparse))


def _indexer(c: dict) -> Tensors:
    heads, size = c["index_n_heads"], c["index_head_dim"]
    return _weights(
        "matrix",
        wq_b=(heads * size, c["q_lora_rank"]),
        wk=(size, c["hidden_size"]),
        weights_proj=(heads, c["hidden_size"]),
    ) | {"k_norm.weight": ((size,), "norm"), "k_norm.bias": ((size,), "bias")}


def _kimi_linear(c: dict) -> Iterator[tuple[str, Tensors]]:
    hidden, size, experts = c["hidden_size"], c["moe_intermediate_size"], c["num_experts"]
    moe, kda = "block_sparse_moe", c["linear_attn_config"]["kda_layers"]
    one = _weights("expert", w1=(size, hidden), w2=(hidden, size), w3=(size, hidden))
    sparse = _experts(moe, experts, one) | {
        moe: _router(hidden, experts),
        f"{moe}.shared_experts": _three_matrices(hidden, size * c["num_shared_experts"]),
    }
    dense = {"mlp": _three_matrices(hidden, c["intermediate_size"])}

    def block(number: int) -> Modules:
        attention = (_kda if number + 1 in kda else _latent)(c)
        return {"self_attn": attention} | (dense if number < c["first_k_dense_replace"] else sparse)

    return _decoder(c, "model", block)


def _kda(c: dict) -> Tensors:
    hidden, of = c["hidden_size"], c["linear_attn_config"]
    heads, size = of["num_heads"], of["head_dim"]
    found = _weights("matrix", b_proj=(heads, hidden), o_proj=(hidden, heads * size))
    for name in "qkv":
        found |= _weights("matrix", **{f"{name}_proj": (heads * size, hidden)})
        shape = (heads * size, 1, of["short_conv_kernel_size"])
        found |= _weights("matrix", **{f"{name}_conv1d": shape})
    for name in "fg":  # of the forget gate and the output's gate
        found |= _weights("matrix", **{f"{name}_a_proj": (size, hidden)})
        found |= _weights("matrix", **{f"{name}_b_proj": (heads * size, size)})
    return found | {
        "A_log": ((1, 1, heads, 1), "decay"),
        "dt_bias": ((heads * size,), "time-step"),
        "o_norm.weight": ((size,), "norm"),
    }


def _latent(c: dict) -> Tensors:
    """Latent attention (MLA). Without q_lora_rank its queries are not compressed."""
    hidden, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    plain, rope, values = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    queries = heads * (plain + rope)
    found = _weights(
        "matrix",
        kv_a_proj_with_mqa=(rank + rope, hidden),
        kv_b_proj=(heads * (plain + values), rank),
        o_proj=(hidden, heads * values),
    ) | _weights("norm", kv_a_layernorm=rank)
    if not (compressed := c["q_lora_rank"]):
        return found | _weights("matrix", q_proj=(queries, hidden))
    found |= _weights("matrix", q_a_proj=(compressed, hidden), q_b_proj=(queries, compressed))
    return found | _weights("norm", q_a_layernorm=compressed)


def draw(name: str, shape: tuple[int, ...], kind: str, seed: int = 0):
    """One tensor in float32. The generator is seeded with the name, so that no tensor depends on
    another."""
    import torch

    def normal(of: str) -> torch.Tensor:
        seeded = torch.Generator().manual_seed(zlib.crc32(f"{seed} {of}".encode()))
        return torch.randn(shape, generator=seeded)

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


def write(folder: Path, config: dict, seed: int = 0) -> Path:
    """The checkpoint in `folder`, whose weights `seed` settles. Needs torch and safetensors; for a
    model that takes images tokenizers too."""
    import torch
    from safetensors.torch import save_file

    models.write_config(folder, config)
    if "vision_config" in config:
        import images

        images.write_small(folder)
    tensors = {
        name: draw(name, shape, kind, seed).to(torch.bfloat16).contiguous()
        for name, shape, kind in shapes(config)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


if __name__ == "__main__":
    written, chosen, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    if not (written / "model.safetensors").is_file():
        write(written, (models.MODELS | models.OTHERS)[chosen], seed)
