"""From how many tokens on eager prefill is as fast as a graph: where the GPU works longer than the
host launches. Both times are estimated from the weights alone, so that all ranks and all processes
come to the same number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ..kernels import tiles

# Host time of an eager prefill for each matrix product, with all launches around it. Measured on
# hosts of H200s with 0.5.12.post1: Nemotron-Nano-9B-v2 27 ms for 112, Qwen3-Next 24 ms for 90.
HOST_S = 0.3e-3
# 16-bit FLOP a second that prefills reach, by compute capability: H200s measured 709 to 792.
RATES = {tiles.HOPPER: 700e12}


def tokens(layers: Iterable[Any], device: torch.device) -> int | None:
    """The tokens of a prefill for which the GPU's products take as long as the host's launches.

    None where nothing was measured on such a GPU, or the weights do not say their work (packed
    ones, experts without a known share). layers: the modules of the layer stack, on this rank.
    """
    rate = RATES.get(tiles.capability(device))
    found = [] if rate is None else [work for layer in layers for work in _products(layer)]
    if not found or None in found:
        return None
    return int(HOST_S * len(found) * rate / sum(found))


def _products(layer: Any) -> Iterator[float | None]:
    """FLOP for one token of each matrix product of a module; None: unknown.

    A product of 8 bits takes half the time of one of 16, so that each byte of a weight counts as
    one FLOP. Experts are of (experts, rows, columns); a token goes through top_k of num_experts.
    """
    for module in layer.modules():
        for name, weight in module.named_parameters(recurse=False):
            if name == "qweight":
                yield None
            elif name.endswith("weight") and weight.dim() > 1 and min(weight.shape[-2:]) >= 16:
                share = _share(module, weight)
                yield share and share * weight.numel() * weight.element_size()


def _share(module: Any, weight: torch.Tensor) -> float | None:
    """Which part of a weight a token meets, or None."""
    if weight.dim() == 2:
        return 1.0
    chosen, experts = (getattr(module, name, None) for name in ("top_k", "num_experts"))
    return chosen / experts if chosen and experts else None
