"""The least time of a forward: its matrix products alone, at the rate that the GPU reached."""

from __future__ import annotations

import math

import models

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


def flops(config: dict, count: int, length: int) -> float | None:
    """Floating-point operations of one prefill's matrix products; None of a model not known here.

    Two for each weight and token; of experts, those that a token picks; of the head, for one token
    of each request. The products of attention and of state spaces are left out.
    """
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
    dense = (
        {}
        if config["num_experts"]
        else {"shared_expert_intermediate_size": config["intermediate_size"]}
    )
    return config | {"model_type": "qwen3_next"} | dense


def _weights(config: dict, wanted: str) -> int:
    """The weights of all matrices of a kind; a convolution is none."""
    return sum(
        math.prod(shape)
        for _, shape, kind in models.shapes(config)
        if kind == wanted and len(shape) == 2
    )


def milliseconds(config: dict, count: int, length: int, tflops: float) -> float | None:
    """How long these take at `tflops`."""
    found = flops(config, count, length)
    return None if found is None else round(found / tflops / 1e9, 2)
