"""What the bench times: models of published shapes with dummy weights, and what each engine of one takes of the GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import load
import models
import modes

LOAD, FIRST_TOKEN = "load", "first-token"
TOKENS = 2048  # cached for each running request
STATES = 3  # per running request, with the prefix cache: MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO, model_runner_kv_cache_mixin.py


@dataclass(frozen=True)
class Subject:
    """One model to time.

    model: its published name, for the record. weights, rest: GiB that an engine takes for weights and for everything but
    pools, as nvidia-smi saw it on an H200 or by computation; request: GiB of pools for each running request. measures,
    modes: what is measured by default, and in which modes. words: sglang.Engine's words for so many running requests.
    shapes: (requests, tokens) of first tokens.
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


def _pools(running: int) -> dict:
    """Pools have stated sizes: mem_fraction_static is a share of what is free when an engine starts (init_memory_pool,
    model_runner_kv_cache_mixin.py), so beside others it would give each engine other pools."""
    return dict(load_format="dummy", max_running_requests=running, max_total_tokens=TOKENS * running, mem_fraction_static=0.98, chunked_prefill_size=load.CHUNK)


def _nemotron(running: int) -> dict:
    sizes = sorted({running, *(size for size in load.DECODE if size < running)})
    return _pools(running) | dict(max_mamba_cache_size=STATES * running, cuda_graph_max_bs=running, cuda_graph_bs=sizes)


def _sparse(running: int) -> dict:
    return _pools(running) | models.SPARSE_ENGINE


_STATE = 27 * (128 * 80 * 128 * 4 + 3 * (128 * 80 + 2 * 8 * 128) * 2) / 2**30  # of one request in 27 Mamba2 layers, float32 and bfloat16
_TOKEN = 4 * 2 * 8 * 128 * 2 / 2**30  # of one token in 4 attention layers
_SPARSE_TOKEN = 8 * (576 * 2 + 132) / 2**30  # in 8 layers: compressed keys in bfloat16, the indexer's in fp8 with a scale

SUBJECTS = {
    "nemotron": Subject(
        "NVIDIA-Nemotron-Nano-9B-v2", models.NANO_9B, 16.6, 4.5, STATES * _STATE + TOKENS * _TOKEN, (LOAD, FIRST_TOKEN), (modes.EAGER, modes.PIECEWISE, modes.INDUCTOR), _nemotron
    ),
    "deepseek-v32": Subject(
        "DeepSeek-V3.2, 8 of its 61 layers, 16 of its 256 experts", models.DEEPSEEK_V32_WIDE, 18.6, 6.0, TOKENS * _SPARSE_TOKEN, (FIRST_TOKEN,), (modes.EAGER, modes.PIECEWISE), _sparse,
        tuple(shape for shape in load.FIRST_TOKEN if shape[1] >= 256),
    ),
}  # fmt: skip
