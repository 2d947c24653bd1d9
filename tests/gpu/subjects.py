"""What gain.py times: models of published shapes with dummy weights, what each engine of one takes
of the GPU, and the least time of a forward: its matrix products alone, at the rate that the GPU
reached. Qwen3.5's vision tower is a small one, and its server runs without."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

import models
import traffic
import weights

TOKENS = 2048  # cached for each running request
ALONE_RUNNING, ALONE_TOKENS = 32, 131072  # of an engine that has the GPU alone
MOST = 0.9  # of the GPU's memory, for weights and pools: graphs and activations take the rest
# per running request, with the prefix cache: MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO,
# model_runner_kv_cache_mixin.py; and two more where the cache strategy is extra_buffer
# (kv_cache_configurator.py:1591 in 0.5.16), or fewer requests run than are asked for
STATES, TRACKED = 3, 2
# One large product, over and over; the median of the later ones, so that clocks have settled.
RATE = """
import json, statistics, torch
size, spans = 8192, []
left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
for _ in range(60):
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    torch.mm(left, right)
    ended.record()
    ended.synchronize()
    spans.append(began.elapsed_time(ended))
tflops = 2 * size**3 / statistics.median(spans[20:]) / 1e9
print(json.dumps({"size": size, "tflops": round(tflops, 1)}))
"""


@dataclass(frozen=True)
class Subject:
    """One model to time. model: its published name, for the record. weights: GiB that an engine
    takes for weights, as nvidia-smi saw it on an H200 or by computation. share: of the GPU's memory
    for weights and pools, where an engine has the GPU alone. enforce: the release keeps a piecewise
    graph off for the architecture unless it is told. engine: sglang.Engine's words for it."""

    model: str
    config: dict = field(repr=False)
    weights: float
    share: float = 0.6
    enforce: bool = False
    engine: dict = field(default_factory=dict)

    def words(self, running: int) -> dict:
        """sglang.Engine's words for so many running requests."""
        found = dict(
            load_format="dummy", max_running_requests=running, chunked_prefill_size=traffic.CHUNK
        )
        if self.state:
            found["max_mamba_cache_size"] = STATES * running
        sparse = models.engine("deepseek-v32") if models.is_sparse(self.config) else {}
        return found | sparse | self.engine

    @property
    def state(self) -> float:
        """GiB of one request's states: float32 of the scan, bfloat16 of the convolution."""
        c = self.config.get("text_config", self.config)
        if "mamba_num_heads" in c:
            heads, size, n = c["mamba_num_heads"], c["mamba_head_dim"], c["ssm_state_size"]
            convolved = heads * size + 2 * c["n_groups"] * n
            layers = c["hybrid_override_pattern"].count("M")
        elif "linear_num_value_heads" in c:
            names = ("num_value_heads", "value_head_dim", "key_head_dim")
            heads, size, n = (c[f"linear_{name}"] for name in names)
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
    pools = dict(max_total_tokens=ALONE_TOKENS, mem_fraction_static=subject.share)
    decoding = dict(cuda_graph_max_bs=16, cuda_graph_bs=[1, 16])  # is not measured
    return subject.words(ALONE_RUNNING) | pools | dict(disable_radix_cache=True) | decoding


def serving(subject: Subject, running: int, gpu_gib: float, tracked: bool = False) -> dict:
    """sglang.Engine's words for one engine that serves users alone: with its prefix cache, and
    decode graphs for as many requests as run. gpu_gib: the GPU's memory. Of one with 80 GB weights
    and pools take more than the subject's share, and fewer requests run where that does not do.
    tracked: states are kept inside of prompts too."""
    request = subject.request + (TRACKED * subject.state if tracked else 0)
    running = min(running, int((MOST * gpu_gib - subject.weights) / request))
    share = max(subject.share, min(MOST, (subject.weights + running * request) / gpu_gib))
    sizes = sorted({running, *(size for size in traffic.DECODE if size < running)})
    pools = dict(max_total_tokens=ALONE_TOKENS * 2, mem_fraction_static=round(share, 3))
    words = subject.words(running)
    if tracked and "max_mamba_cache_size" in words:
        words["max_mamba_cache_size"] += TRACKED * running
    return words | pools | dict(cuda_graph_max_bs=running, cuda_graph_bs=sizes)


def flops(config: dict, count: int, length: int) -> float | None:
    """Floating-point operations of one prefill's matrix products; None of a model not known here.
    Two for each weight and token; of experts, those that a token picks; of the head, for one token
    of each request. The products of attention and of state spaces are left out."""
    config = _text(config)
    try:
        found = {kind: _weights(config, kind) for kind in ("matrix", "expert", "head")}
    except KeyError:
        return None
    picked = config.get("num_experts_per_tok", 0) / (
        config.get("n_routed_experts") or config.get("num_experts") or 1
    )
    return 2.0 * count * (length * (found["matrix"] + found["expert"] * picked) + found["head"])


def _text(config: dict) -> dict:
    """The text model's config. Qwen3.5's has the matrices of Qwen3-Next's; without experts its MLP
    is as large as what all tokens share there. Qwen3's has Llama's."""
    config = config.get("text_config", config)
    if config.get("model_type") == "qwen3":
        return config | {"model_type": "llama"}
    if not config.get("model_type", "").startswith("qwen3_5"):
        return config
    config = config | {"model_type": "qwen3_next"}
    if not config["num_experts"]:
        config["shared_expert_intermediate_size"] = config["intermediate_size"]
    return config


def _weights(config: dict, wanted: str) -> int:
    """The weights of all matrices of a kind; a convolution is none."""
    found = (shape for _, shape, kind in weights.shapes(config) if kind == wanted)
    return sum(math.prod(shape) for shape in found if len(shape) == 2)


def milliseconds(config: dict, count: int, length: int, tflops: float) -> float | None:
    """How long these take at `tflops`."""
    found = flops(config, count, length)
    return None if found is None else round(found / tflops / 1e9, 2)


def read() -> dict[str, Subject]:
    """tests/models/timed.json. A subject's config is its own name's in gpu.json, unless it names
    another."""
    subjects = json.loads(models.CONFIGS.with_name("timed.json").read_text(encoding="utf-8"))
    configs = {name: models.OTHERS[one.get("config", name)] for name, one in subjects.items()}
    return {name: Subject(**one | {"config": configs[name]}) for name, one in subjects.items()}


SUBJECTS = read()
