"""What gain.py times: models of published shapes with dummy weights, and what each engine of one
takes of the GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import load
import models
from models import OTHERS

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

    model: its published name, for the record. weights: GiB that an engine takes for weights, as
    nvidia-smi saw it on an H200 or by computation. words: sglang.Engine's words for so many running
    requests. share: of the GPU's memory for weights and pools, where an engine has the GPU alone.
    enforce: the release keeps a piecewise graph off for the architecture unless it is told.
    """

    model: str
    config: dict = field(repr=False)
    weights: float
    words: Callable[[int], dict]
    share: float = 0.6
    enforce: bool = False

    @property
    def state(self) -> float:
        """GiB of one request's states: float32 of the scan, bfloat16 of the convolution."""
        c = self.config.get("text_config", self.config)
        if "mamba_num_heads" in c:
            heads, size, n = c["mamba_num_heads"], c["mamba_head_dim"], c["ssm_state_size"]
            convolved = heads * size + 2 * c["n_groups"] * n
            layers = c["hybrid_override_pattern"].count("M")
        elif "linear_num_value_heads" in c:
            heads, size, n = (
                c[f"linear_{name}"]
                for name in ("num_value_heads", "value_head_dim", "key_head_dim")
            )
            convolved = (2 * c["linear_num_key_heads"] + heads) * n
            layers = c["num_hidden_layers"] - _attention_layers(c)
        else:
            return 0.0
        return layers * (heads * size * n * 4 + 3 * convolved * 2) / 2**30

    @property
    def token(self) -> float:
        """GiB of one token's keys and values."""
        c = self.config.get("text_config", self.config)
        if models.is_sparse(c):  # compressed keys in bfloat16, the indexer's in fp8 with a scale
            return c["num_hidden_layers"] * (576 * 2 + 132) / 2**30
        return _attention_layers(c) * 2 * c["num_key_value_heads"] * c["head_dim"] * 2 / 2**30

    @property
    def request(self) -> float:
        """GiB of pools for each running request."""
        return STATES * self.state + TOKENS * self.token


def _attention_layers(c: dict) -> int:
    if "hybrid_override_pattern" in c:
        return c["hybrid_override_pattern"].count("*")
    return c["num_hidden_layers"] // c.get("full_attention_interval", 1)


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


SUBJECTS = {
    "nemotron": Subject("NVIDIA-Nemotron-Nano-9B-v2", OTHERS["nemotron"], 16.6, _nemotron),
    "llama": Subject("Llama-3.1-8B", OTHERS["llama-8b"], 15.0, _attention),
    "qwen3": Subject("Qwen3-8B", OTHERS["qwen3"], 15.3, _attention),
    "nemotron-3-nano": Subject(
        "NVIDIA-Nemotron-3-Nano-30B-A3B", OTHERS["nemotron-3-nano"], 59.0, _hybrid, share=0.85
    ),
    "qwen3-next": Subject(
        "Qwen3-Next-80B-A3B, 12 of its 48 layers",
        OTHERS["qwen3-next-12"],
        38.8,
        _hybrid,
        share=0.85,
        enforce=True,
    ),
    "qwen3-next-triton": Subject(
        "Qwen3-Next-80B-A3B, 12 of its 48 layers, nets by Triton's kernels",
        OTHERS["qwen3-next-12"],
        38.8,
        _nets_by_triton,
        share=0.85,
        enforce=True,
    ),
    "qwen3-next-32": Subject(
        "Qwen3-Next-80B-A3B, 32 of its 48 layers",  # as much as one H200 serves with room
        OTHERS["qwen3-next-32"],
        101.5,
        _hybrid,
        share=0.9,
        enforce=True,
    ),
    # Qwen3.5's vision tower is a small one, and the server runs without
    "qwen3.5": Subject(
        "Qwen3.5-27B, 16 of its 64 layers", OTHERS["qwen3.5"], 16.1, _text_alone, enforce=True
    ),
    "qwen3.5-moe": Subject(
        "Qwen3.5-35B-A3B", OTHERS["qwen3.5-moe"], 65.0, _text_alone, share=0.85, enforce=True
    ),
    "deepseek-v32": Subject(
        "DeepSeek-V3.2, 8 of its 61 layers, 16 of its 256 experts",
        OTHERS["deepseek-v32-wide"],
        18.6,
        _sparse,
    ),
}
