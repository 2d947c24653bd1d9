"""The release's kernel of routed experts (fused_moe_kernel) at a tile of one's choice: its time,
its error against float32, and whether Triton miscompiles it there."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import statistics
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import machine_code
import sweeping

Tile = tuple[int, ...]  # M, N and K of a block, group of blocks, warps, stages

FIELDS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
# from 0.5.10; before
PACKAGES = (
    "sglang.srt.layers.moe.moe_runner.triton_utils",
    "sglang.srt.layers.moe.fused_moe_triton",
)
ROUTINGS = 4  # in one graph
TOLERANCE = 1.2e-2  # relative error of bfloat16 results, Frobenius
# of one hidden size, and more for each GB of weights: 388 tiles are compiled in 532 variants, and
# timed in some 1900 graphs of four calls. One H200 and 16 cores took 158 s for Qwen3-Next, 3.2 GB,
# and 199 s with nothing compiled before for Qwen3.5-397B, 6.4 GB.
SECONDS, SECONDS_PER_GB = 120, 12
SLOW = 2  # times the best: a tile is timed once


@dataclass(frozen=True)
class Experts:
    """Routed experts of one rank, as published configs have them. size: a rank's intermediate
    size; gated: the first projection has a gate beside it (SwiGLU), else relu squared."""

    models: str
    experts: int
    size: int
    hidden: int
    top_k: int
    gated: bool = True

    @property
    def bytes_of_weights(self) -> int:
        return self.experts * self.size * self.hidden * (3 if self.gated else 2) * 2

    @property
    def seconds(self) -> float:
        """How long a sweep of all tiles is estimated to take."""
        return SECONDS + SECONDS_PER_GB * self.bytes_of_weights / 1e9


class Off:
    """In place of a server's arguments, and of their groups: every option is off. What enables
    something is a real False, since releases give it to kernels as a constant."""

    def __getattr__(self, name: str) -> Off | bool:
        return False if name.startswith("enable") else self

    def __call__(self, *args: object, **words: object) -> Off:
        return self

    def __bool__(self) -> bool:
        return False


class Release:
    """The release's fused experts. Ends the run where the tree has none."""

    def __init__(self) -> None:
        for package in PACKAGES:
            with contextlib.suppress(ModuleNotFoundError):
                self.package = importlib.import_module(package)
                self.tables = importlib.import_module(f"{package}.fused_moe_triton_config")
                self.module = importlib.import_module(f"{package}.fused_moe")
                break
        else:
            raise SystemExit("this tree has no fused experts")
        for module in (self.tables, self.module):
            for name in ("get_global_server_args", "get_server_args", "get_exec"):
                if hasattr(module, name):
                    setattr(module, name, Off())

    def default(self, tokens: int, experts: Experts) -> dict[str, int]:
        return self.tables.get_default_config(
            tokens, experts.experts, experts.size, experts.hidden, experts.top_k, None, False
        )

    def file_name(self, experts: Experts) -> str:
        return self.tables.get_config_file_name(experts.experts, experts.size, None)

    def config(self, experts: Experts) -> object:
        from sglang.srt.layers.moe import MoeRunnerConfig

        wanted = dict(
            num_experts=experts.experts,
            num_local_experts=experts.experts,
            hidden_size=experts.hidden,
            intermediate_size_per_partition=experts.size,
            top_k=experts.top_k,
            activation="silu" if experts.gated else "relu2",
            is_gated=experts.gated,
            inplace=False,
        )
        known = MoeRunnerConfig.__dataclass_fields__
        return MoeRunnerConfig(**{name: value for name, value in wanted.items() if name in known})


class Batch:
    """Weights of one rank's experts, and inputs of some numbers of tokens."""

    def __init__(self, experts: Experts, release: Release, device: str = "cuda") -> None:
        import torch

        torch.manual_seed(1)
        self.experts, self.release, self.device = experts, release, device
        both = 2 if experts.gated else 1
        first = experts.experts, both * experts.size, experts.hidden
        second = experts.experts, experts.hidden, experts.size
        self.first, self.second = (
            torch.empty(shape, device=device, dtype=torch.bfloat16).normal_(0, shape[2] ** -0.5)
            for shape in (first, second)
        )
        self.config = release.config(experts)

    def inputs(self, tokens: int, seed: int) -> tuple:
        """Rows, weights of the chosen experts, and these experts: bfloat16 [tokens, hidden],
        float32 and int32 [tokens, top_k]."""
        import torch

        torch.manual_seed(seed)
        rows = torch.randn(tokens, self.experts.hidden, device=self.device, dtype=torch.bfloat16)
        scores = torch.randn(tokens, self.experts.experts, device=self.device)
        values, chosen = scores.topk(self.experts.top_k)
        return rows, values.softmax(-1), chosen.int()

    def run(self, inputs: tuple, tile: Mapping[str, int]) -> Any:
        rows, weights, chosen = inputs
        with self.release.package.override_config(dict(tile)):
            return self.release.module.fused_experts(
                rows, self.first, self.second, (weights, chosen, None), self.config
            )

    def naive(self, rows: Any, weights: Any, chosen: Any) -> Any:
        """The same in float32, expert by expert."""
        import torch

        out = torch.zeros(rows.shape, device=rows.device)
        for number in chosen.unique().tolist():
            token, place = (chosen == number).nonzero(as_tuple=True)
            inner = rows[token].float() @ self.first[number].float().T
            if self.experts.gated:
                gate, up = inner.chunk(2, -1)
                inner = torch.nn.functional.silu(gate) * up
            else:
                inner = inner.relu().square()
            part = inner @ self.second[number].float().T
            out.index_add_(0, token, part * weights[token, place, None])
        return out

    def checker(self) -> Callable[[Tile], str]:
        """Why a tile cannot be used; empty where it can."""
        inputs = self.inputs(64, 7)
        wanted = self.naive(*inputs)

        def wrong(tile: Tile) -> str:
            words = as_words(tile)
            try:
                error = float((self.run(inputs, words).float() - wanted).norm() / wanted.norm())
            except Exception as failure:  # shared memory, registers
                return f"{type(failure).__name__}: {str(failure)[:80]}"
            return f"{error:.3f} off" if error >= TOLERANCE else ""

        return wrong

    def miscompiled(self, tiles: Iterable[Tile]) -> set[Tile]:
        """Those at which Triton miscompiles a kernel. A disassembler takes most of a second for
        each: many run at once."""
        inputs, codes = self.inputs(64, 7), []
        for tile in tiles:
            kernels = sweeping.launched(lambda words: self.run(inputs, words), as_words(tile))
            codes += [(tile, kernel.asm["cubin"]) for kernel in kernels]
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            bad = threads.map(machine_code.miscompiled, (code for _, code in codes))
            return {tile for (tile, _), one in zip(codes, bad, strict=True) if one}

    def timer(self, tokens: int) -> Callable[..., float | None]:
        """Microseconds of one call with a tile; None where it does not fit on the GPU."""
        import torch

        batches = [self.inputs(tokens, seed) for seed in range(ROUTINGS)]

        def timed(words: Mapping, replays: int = 3, best: float = math.inf) -> float | None:
            try:
                self.run(batches[0], words)
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for inputs in batches:
                        self.run(inputs, words)
            except Exception as failure:  # shared memory, registers
                print(f"    {tuple(words.values())}: {str(failure)[:120]}", flush=True)
                return None
            return replayed(graph, replays, SLOW * ROUTINGS * best) / ROUTINGS

        return timed


def replayed(graph: Any, times: int, enough: float) -> float:
    """Median microseconds of a replay, the first one left out; of the first one where it takes
    more than `enough`."""
    import torch

    spans: list[float] = []
    while len(spans) <= times and (not spans or spans[0] <= enough):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        spans.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(spans[1:] or spans)


def as_words(tile: Tile) -> dict[str, int]:
    return dict(zip(FIELDS, tile, strict=True))
