"""Time the gated delta net kernels of a release's prefill, and look for faster launch settings.

    python sweep_gdn.py --tree work/v0.5.9/python --out results      # on a host with a GPU
    TRITON_INTERPRET=1 python sweep_gdn.py --tree TREE --out OUT --tiny  # on a CPU: does it run?

The release's own modules are loaded from its tree. Of the rest of sglang, only the names that they
import are stood in for. Launches are recorded, and each is repeated in a CUDA graph: as it was, and
with other settings. Of a kernel that the release tunes at its first call, the settings that it may
choose are timed too, and what five first calls of a few tokens chose is listed. A repeated kernel
finds data in the L2 cache, so compare its times with each other. Beside them stands a floor, from
the bytes to move once and the matrix products. At the end the whole layer is timed before and
after, without its projections, and its results are compared.

Only the Python standard library, torch and triton are needed. Up to 0.5.9 the releases take
sgl_kernel's convolution, which is timed too where it is installed. Before the convolution the
projections' results are put in order. That is timed as torch's operations do it, and as the later
releases' kernel does.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import itertools
import json
import os
import statistics
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton

Settings = dict[str, Any]
BYTES_PER_US, OPERATIONS_PER_US = 4.3e6, 790e6  # what an H200 reaches in bfloat16
CHUNK, WIDTH = 64, 4  # tokens of a chunk; taps of the convolution
LAYERS = 36  # of this kind in Qwen3-Next; 48 in Qwen3.5-27B, 30 in Qwen3.5-35B-A3B
REPEATS, REPLAYS = 10, 7
KEPT_HERE, KEPT_ELSEWHERE = 6, 3  # settings that are tried again: with these heads, and with fewer
THREADS = 12  # that compile


@dataclass(frozen=True)
class Sizes:
    """Of one prefill in one layer of one rank."""

    tokens: int
    requests: int
    key_heads: int = 16
    value_heads: int = 32
    head: int = 128

    @property
    def channels(self) -> int:
        return (2 * self.key_heads + self.value_heads) * self.head

    @property
    def lengths(self) -> list[int]:
        short, more = divmod(self.tokens, self.requests)
        return [short + (i < more) for i in range(self.requests)]

    @property
    def chunks(self) -> int:
        return sum(-(-length // CHUNK) for length in self.lengths)

    def __str__(self) -> str:
        heads = f"{self.key_heads}+{self.value_heads} heads"
        return f"{self.requests} x {self.tokens // self.requests} tokens, {heads}"


# ---------------------------------------------------------------- what a kernel moves and computes


def _cost(s: Sizes) -> dict[str, tuple[float, float]]:
    """Bytes and operations of each kernel. A key counts once for all heads that share it."""
    rows, n = s.tokens * s.value_heads, s.head
    key, value = 2 * s.tokens * s.key_heads * n, 2 * rows * n
    scalar, square = 4 * rows, rows * CHUNK
    states, pool = 2 * s.chunks * s.value_heads * n * n, 4 * s.requests * s.value_heads * n * n
    diagonal = 4 * rows * 16
    return {
        "chunk_local_cumsum_scalar_kernel": (2 * scalar, 0),
        "chunk_scaled_dot_kkt_fwd_kernel": (key + 2 * scalar + 4 * square, 2 * square * n),
        "solve_tril_16x16_kernel": (2 * diagonal, 0),
        "merge_16x16_to_64x64_inverse_kernel": (1.5 * square + diagonal + 2 * square, 2048 * rows),
        "chunk_gated_delta_rule_fwd_kkt_solve_kernel": (
            key + 2 * scalar + 2 * square,
            2 * square * n * 10 / 16 + 2048 * rows,
        ),
        "recompute_w_u_fwd_kernel": (key + 3 * value + 2 * square + 2 * scalar, 4 * square * n),
        "chunk_gated_delta_rule_fwd_kernel_h_blockdim64": (
            key + 3 * value + scalar + states + 2 * pool,
            4 * rows * n * n,
        ),
        "chunk_fwd_kernel_o": (
            2 * key + 2 * value + scalar + states,
            2 * rows * n * n + 4 * square * n,
        ),
        "l2norm_fwd_kernel": (2 * key, 0),
        "fused_gdn_gating_kernel": (2 * 2 * rows + 2 * scalar, 0),
        "_layer_norm_fwd_1pass_kernel": (3 * value, 0),
        "_causal_conv1d_fwd_kernel": (4 * s.tokens * s.channels, 0),
        "fused_qkv_split_gdn_prefill_kernel": (4 * s.tokens * s.channels, 0),
    }


def floor_us(name: str, sizes: Sizes) -> float:
    """The time that memory or tensor cores need at least; 0 for a kernel that is not known."""
    moved, computed = _cost(sizes).get(name, (0, 0))
    return max(moved / BYTES_PER_US, computed / OPERATIONS_PER_US)


# ---------------------------------------------------------------- other settings of each kernel


def _all(**axes: tuple[int, ...]) -> list[Settings]:
    """Every combination; names in small letters are short for the compiler's options."""
    names = [{"w": "num_warps", "s": "num_stages"}.get(name, name) for name in axes]
    return [dict(zip(names, values)) for values in itertools.product(*axes.values())]


OPTIONS: dict[str, list[Settings]] = {
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64": [
        *_all(BV=(16, 32, 64), w=(2, 4), s=(2, 3)),
        *_all(BV=(32, 64), w=(4,), s=(1, 4)),
        *_all(BV=(64, 128), w=(8,), s=(2,)),
    ],
    "chunk_fwd_kernel_o": [
        *_all(BK=(64, 128), BV=(64, 128), w=(4, 8), s=(2, 3)),
        *_all(BK=(64,), BV=(64, 128), w=(4,), s=(4,)),
    ],
    "recompute_w_u_fwd_kernel": [
        *_all(BK=(64,), BV=(64,), w=(2, 4, 8), s=(2, 3, 4)),
        *_all(BK=(128,), BV=(128,), w=(4, 8), s=(2, 3)),
    ],
    "chunk_scaled_dot_kkt_fwd_kernel": _all(BK=(64, 128), w=(2, 4, 8), s=(2, 3)),
    "chunk_gated_delta_rule_fwd_kkt_solve_kernel": _all(BK=(32, 64, 128), w=(1, 2, 4), s=(2, 3)),
    "merge_16x16_to_64x64_inverse_kernel": _all(w=(1, 2, 4, 8), s=(2,)),
    "solve_tril_16x16_kernel": _all(w=(1, 2, 4), s=(2,)),
    "_causal_conv1d_fwd_kernel": _all(BLOCK_M=(8, 16, 32), BLOCK_N=(128, 256), w=(2, 4), s=(2,)),
    "_layer_norm_fwd_1pass_kernel": _all(ROWS_PER_BLOCK=(1, 2, 4, 8, 16), w=(1, 2, 4)),
    "l2norm_fwd_kernel": _all(BT=(8, 16, 32, 64), w=(1, 2, 4, 8)),
    "fused_gdn_gating_kernel": _all(BLK_HEADS=(8, 16, 32), w=(1, 2)),
    "fused_qkv_split_gdn_prefill_kernel": _all(w=(4, 8, 16)),
    "chunk_local_cumsum_scalar_kernel": _all(w=(1, 2, 4, 8)),
}

# Grids that a launcher computes from a setting before it launches. The others follow their
# settings, or do not depend on them.
GRIDS: dict[str, Callable[[tuple[int, ...], Settings], tuple[int, ...]]] = {
    "fused_gdn_gating_kernel": lambda grid, given: (
        *grid[:2],
        triton.cdiv(given["NUM_HEADS"], given["BLK_HEADS"]),
    ),
    "_layer_norm_fwd_1pass_kernel": lambda grid, given: (
        triton.cdiv(given["M"], given["ROWS_PER_BLOCK"]),
        grid[1],
    ),
}


# ---------------------------------------------------------------- launches, recorded and repeated


def _classes() -> list[type]:
    from triton.runtime import interpreter, jit

    known = (jit.KernelInterface, jit.JITFunction, interpreter.InterpretedFunction)
    return [known_class for known_class in known if "__getitem__" in vars(known_class)]


ORIGINAL = {known_class: vars(known_class)["__getitem__"] for known_class in _classes()}


def _original(kernel: Any, grid: Any) -> Callable[..., Any]:
    getitem = next(ORIGINAL[parent] for parent in type(kernel).__mro__ if parent in ORIGINAL)
    return getitem(kernel, grid)


@dataclass
class Launch:
    """One launch, by the names of its arguments. kernel: without autotuning and heuristics.

    tuned: the settings that the release chooses from at its first call; none where it has one.
    """

    name: str
    kernel: Any
    grid: Any
    arguments: Settings
    tuned: list[Settings] = field(default_factory=list)

    def settings(self) -> Settings:
        """Those of the release that other settings would replace."""
        names = {name for option in OPTIONS.get(self.name, []) for name in option}
        return {name: self.arguments[name] for name in sorted(names) if name in self.arguments}

    def __call__(self, settings: Settings | None = None) -> None:
        given = {**self.arguments, **(settings or {})}
        grid = GRIDS[self.name](self.grid, given) if settings and self.name in GRIDS else self.grid
        _original(self.kernel, grid)(**given)


def _autotuner(kernel: Any) -> Any:
    """What tunes the kernel at its first call; None where nothing does."""
    while not isinstance(kernel, types.FunctionType) and hasattr(kernel, "fn"):
        if isinstance(getattr(kernel, "configs", None), list):
            return kernel if len(kernel.configs) > 1 else None
        kernel = kernel.fn
    return None


def _undressed(kernel: Any, arguments: Settings) -> tuple[Any, Settings]:
    """A kernel without autotuning and heuristics, and its arguments with what these have chosen."""
    while not isinstance(kernel, types.FunctionType) and hasattr(kernel, "fn"):
        if hasattr(kernel, "configs"):
            arguments = {**arguments, **kernel.best_config.all_kwargs()}
        elif hasattr(kernel, "values"):
            arguments = {**arguments, **{k: of(arguments) for k, of in kernel.values.items()}}
        else:
            break
        kernel = kernel.fn
    return kernel, arguments


def _plain(config: triton.Config) -> Settings:
    given = config.all_kwargs()
    return {name: value for name, value in given.items() if name != "num_ctas"}


@contextlib.contextmanager
def launches(chosen: dict[str, Settings] | None = None) -> Iterator[list[Launch]]:
    """Note every launch inside; kernels named in `chosen` run with these settings."""
    seen: list[Launch] = []

    def getitem(kernel: Any, grid: Any) -> Callable[..., Any]:
        def launch(*arguments: Any, **named: Any) -> Any:
            named = {**dict(zip(kernel.arg_names, arguments)), **named}
            settings = (chosen or {}).get(_name(kernel))
            if settings is None:
                _original(kernel, grid)(**named)
            bare, named = _undressed(kernel, named)
            tuner = _autotuner(kernel)
            tuned = [_plain(config) for config in tuner.configs] if tuner else []
            seen.append(Launch(_name(kernel), bare, grid, named, tuned))
            if settings is not None:
                seen[-1](settings)

        return launch

    try:
        for known_class in ORIGINAL:
            known_class.__getitem__ = getitem
        yield seen
    finally:
        for known_class, before in ORIGINAL.items():
            known_class.__getitem__ = before


def _name(kernel: Any) -> str:
    while not isinstance(kernel, types.FunctionType):
        kernel = kernel.fn
    return kernel.__name__


# ---------------------------------------------------------------- the release's modules


class _Named(types.ModuleType):
    """A module of sglang that is not loaded: no platform but CUDA, no feature in use."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return KNOWN.get(name, lambda *_, **__: name in ("is_cuda",))


class _Any:
    def __getattr__(self, name: str) -> str:
        return name


def _no_arguments() -> None:
    raise ValueError("no server")


def _modern(minor: int = 0) -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, minor)


KNOWN: dict[str, Any] = {
    "cdiv": triton.cdiv,
    "next_power_of_2": triton.next_power_of_2,
    "device_context": lambda device: _device(device),
    "torch_release": tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]),
    "get_global_server_args": _no_arguments,
    "is_arch_support_pdl": _modern,
    "Backend": _Any(),
    "Phase": _Any(),
}
PACKAGES = (
    "sglang",
    "sglang.srt",
    "sglang.srt.layers",
    "sglang.srt.layers.attention",
    "sglang.srt.layers.attention.fla",
    "sglang.srt.layers.attention.mamba",
    "sglang.kernels",
    "sglang.kernels.ops",
    "sglang.kernels.ops.attention",
    "sglang.kernels.ops.attention.fla",
    "sglang.kernels.ops.mamba",
    "sglang.jit_kernel",
    "sglang.jit_kernel.triton",
)
STOOD_IN = (
    "sglang.srt.utils",
    "sglang.srt.utils.common",
    "sglang.srt.server_args",
    "sglang.srt.batch_invariant_ops",
    "sglang.srt.model_executor",
    "sglang.srt.model_executor.cuda_graph_config",
    "sglang.jit_kernel.utils",
)


def _device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@dataclass(frozen=True)
class Release:
    """The functions of one layer's prefill; split and order: None where there is no such kernel."""

    chunk: types.ModuleType
    gating: Callable[..., Any]
    norm: Callable[..., Any]
    convolutions: dict[str, Callable[..., Any]]
    split: Callable[..., Any] | None
    order: Callable[..., Any] | None
    folder: str


def load(tree: Path, tiny: bool) -> Release:
    """Import the modules below `tree` without the packages that they lie in."""
    for name in PACKAGES:
        module = types.ModuleType(name)
        module.__path__ = [str(tree / name.replace(".", "/"))]
        sys.modules[name] = module
    for name in STOOD_IN:
        sys.modules[name] = _Named(name)
    with contextlib.suppress(ImportError):
        importlib.import_module("einops")
    sys.modules.setdefault("einops", _Named("einops"))
    fla = _first(tree, "sglang.kernels.ops.attention.fla", "sglang.srt.layers.attention.fla")
    mamba = _first(tree, "sglang.kernels.ops.mamba", "sglang.srt.layers.attention.mamba")
    norm = importlib.import_module(f"{fla}.layernorm_gated")
    found = Release(
        chunk=importlib.import_module(f"{fla}.chunk"),
        gating=importlib.import_module(f"{fla}.fused_gdn_gating").fused_gdn_gating,
        norm=norm.rms_norm_gated,
        convolutions=_convolutions(mamba, tiny),
        split=_split(tree),
        order=_fused(tree, "fused_qkvzba_split_reshape_cat"),
        folder=fla,
    )
    if tiny:
        norm._get_sm_count = lambda device: 1
        _interpretable()
    return found


def _first(tree: Path, *names: str) -> str:
    return next(name for name in names if (tree / name.replace(".", "/")).is_dir())


def _convolutions(mamba: str, tiny: bool) -> dict[str, Callable[..., Any]]:
    """Triton's, and sgl_kernel's where the release takes that: up to 0.5.9."""
    found = {}
    with contextlib.suppress(ImportError, OSError, RuntimeError):
        if not tiny:
            own = importlib.import_module("sglang.srt.layers.attention.mamba.causal_conv1d")
            if not hasattr(own, "_causal_conv1d_fn_triton"):
                found["sgl_kernel"] = own.causal_conv1d_fn
    found["triton"] = importlib.import_module(f"{mamba}.causal_conv1d_triton").causal_conv1d_fn
    return found


def _split(tree: Path) -> Callable[..., Any] | None:
    used = tree / "sglang/srt/layers/attention/linear/gdn_backend.py"
    if not used.is_file() or "fused_qkv_split_gdn_prefill" not in used.read_text():
        return None
    return _fused(tree, "fused_qkv_split_gdn_prefill")


def _fused(tree: Path, name: str) -> Callable[..., Any] | None:
    if not (tree / "sglang/jit_kernel/triton/gdn_fused_proj.py").is_file():
        return None
    return getattr(importlib.import_module("sglang.jit_kernel.triton.gdn_fused_proj"), name, None)


def _interpretable() -> None:
    """What the interpreter needs: no device, late names of its functions, one configuration."""
    torch.cuda.device = torch.cpu.device = lambda *_: contextlib.nullcontext()
    interpreter = importlib.import_module("triton.runtime.interpreter")
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())  # NumPy 2.4 asks for it

    interpreter._patch_lang_tensor = patched
    language = importlib.import_module("triton.language")
    for module in [module for name, module in sys.modules.items() if name.startswith("sglang.")]:
        for name, value in list(vars(module).items()):
            for function in ("exp", "exp2", "log", "log2"):
                if value is getattr(language, function):
                    setattr(module, name, lambda *a, f=function: getattr(language, f)(*a))
            while value is not None and not isinstance(value, types.FunctionType):
                if isinstance(getattr(value, "configs", None), list):
                    value.configs = value.configs[:1]
                ours = type(value).__module__.startswith("triton")
                value = getattr(value, "fn", None) if ours else None


# ---------------------------------------------------------------- one layer


@dataclass
class Layer:
    """From the projections' results to the gated norm, as Qwen3-Next's layer does it."""

    release: Release
    sizes: Sizes
    device: str
    dtype: torch.dtype
    convolution: str
    given: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        s = self.sizes
        torch.manual_seed(0)
        draw = lambda *shape: torch.randn(*shape, device=self.device, dtype=self.dtype)  # noqa: E731
        ends = torch.tensor([0, *itertools.accumulate(s.lengths)], dtype=torch.int32)
        self.given = dict(
            qkv=draw(s.tokens, s.channels),
            z=draw(s.tokens * s.value_heads, s.head),
            a=draw(s.tokens, s.value_heads),
            b=draw(s.tokens, s.value_heads),
            a_log=torch.rand(s.value_heads, device=self.device),
            dt_bias=draw(s.value_heads).float(),
            taps=draw(s.channels, WIDTH) / 2,
            weight=draw(s.head),
            conv=draw(s.requests + 1, s.channels, WIDTH - 1),
            state=torch.randn(s.requests + 1, s.value_heads, s.head, s.head, device=self.device)
            / 10,
            ends=ends.to(self.device),
            slots=torch.arange(1, s.requests + 1, dtype=torch.int32, device=self.device),
            cached=torch.ones(s.requests, dtype=torch.bool, device=self.device),
        )
        self.before = {name: self.given[name].clone() for name in ("conv", "state")}

    def __call__(self) -> torch.Tensor:
        s, t = self.sizes, self.given
        qkv = self.release.convolutions[self.convolution](
            t["qkv"].transpose(0, 1),
            t["taps"],
            None,
            activation="silu",
            conv_states=t["conv"],
            has_initial_state=t["cached"],
            cache_indices=t["slots"],
            query_start_loc=t["ends"],
            seq_lens_cpu=s.lengths,
        ).transpose(0, 1)
        g, beta = self.release.gating(t["a_log"], t["a"], t["b"], t["dt_bias"])
        q, k, v = self._parts(qkv)
        output = self.release.chunk.chunk_gated_delta_rule(
            q=q,
            k=k,
            v=v,
            g=g,
            beta=beta,
            initial_state=t["state"],
            initial_state_indices=t["slots"],
            cu_seqlens=t["ends"],
            head_first=False,
            use_qk_l2norm_in_kernel=True,
        )[0]
        return self.release.norm(
            x=output.reshape(-1, s.head),
            weight=t["weight"],
            bias=None,
            z=t["z"],
            norm_before_gate=True,
            is_rms_norm=True,
        )

    def _parts(self, qkv: torch.Tensor) -> tuple[torch.Tensor, ...]:
        s = self.sizes
        heads = s.key_heads, s.key_heads, s.value_heads
        if self.release.split is not None and s.channels <= 8192:
            return self.release.split(qkv, *heads, s.head, s.head, s.head)
        parts = qkv.split([count * s.head for count in heads], dim=-1)
        return tuple(part.view(1, s.tokens, -1, s.head) for part in parts)

    def fresh(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and states of a prefill from the states that the layer began with."""
        for name, before in self.before.items():
            self.given[name].copy_(before)
        return self().clone(), self.given["state"].clone()


def put_in_order(s: Sizes, qkvz: torch.Tensor, ba: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """As fix_query_key_value_ordering and cat do it up to 0.5.9 (models/qwen3_next.py:334)."""
    shared = s.value_heads // s.key_heads
    sizes = [s.head, s.head, shared * s.head, shared * s.head]
    q, k, v, z = qkvz.view(s.tokens, s.key_heads, -1).split(sizes, dim=2)
    b, a = ba.view(s.tokens, s.key_heads, -1).split([shared, shared], dim=2)
    v, z = (part.reshape(s.tokens, -1, s.head) for part in (v, z))
    b, a = (part.reshape(s.tokens, s.value_heads) for part in (b, a))
    return torch.cat([part.reshape(s.tokens, -1) for part in (q, k, v)], dim=-1), z, b, a


# ---------------------------------------------------------------- time


def microseconds(call: Callable[[], Any], device: str) -> float:
    """Of one call on the GPU, without the host: the median of a CUDA graph's replays."""
    call()
    if device == "cpu":
        return 0.0
    graph, times = _captured(call), []
    for _ in range(REPLAYS + 1):  # the first one warms up
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / REPEATS)
    return statistics.median(times[1:])


def _captured(call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """torch.cuda.graph() would collect garbage and give memory back each time."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    gc.disable()
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin()
            try:
                for _ in range(REPEATS):
                    call()
            finally:
                graph.capture_end()
    finally:
        gc.enable()
    return graph


def host_microseconds(call: Callable[[], Any], device: str) -> float:
    """Of one call on the host, while the GPU is not waited for."""
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(REPEATS):
        call()
    spent = (time.perf_counter() - began) * 1e6 / REPEATS
    if device == "cuda":
        torch.cuda.synchronize()
    return spent


def profiled(call: Callable[[], Any]) -> list[tuple[str, int, float]]:
    """Every kernel of one call, the longest first: name, count, microseconds."""
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            for _ in range(REPEATS):
                call()
            torch.cuda.synchronize()
    except RuntimeError as error:  # no CUPTI, or somebody else has it
        print(f"  not profiled: {error}")
        return []
    rows = []
    for event in seen.key_averages():
        spent = getattr(event, "self_device_time_total", 0) / REPEATS
        if spent and str(event.device_type).endswith("CUDA"):
            rows.append((event.key[:80], round(event.count / REPEATS), round(spent, 1)))
    return sorted(rows, key=lambda row: -row[2])


# ---------------------------------------------------------------- the sweep


@dataclass
class Sweep:
    """names: of the kernels whose settings are tried. kept: the settings of each kernel that were
    best where all were tried."""

    release: Release
    device: str
    dtype: torch.dtype
    deadline: float
    few: bool
    names: list[str]
    kept: dict[str, list[Settings]] = field(default_factory=dict)

    def shape(self, sizes: Sizes, convolution: str) -> dict[str, Any]:
        """Time each kernel of a layer, and the layer, as released and with the best settings."""
        layer = Layer(self.release, sizes, self.device, self.dtype, convolution)
        with torch.no_grad():
            layer()
            with launches() as seen:
                layer()
            print(f"\n{sizes}, convolution: {convolution}", flush=True)
            kernels = [self._kernel(launch, sizes) for launch in _each_once(seen)]
            chosen = {row["name"]: row["best"] for row in kernels if row["best"] is not None}
            return {
                "sizes": vars(sizes),
                "convolution": convolution,
                "kernels": kernels,
                "layer": self._whole(layer, chosen),
                "profile": profiled(layer) if self.device == "cuda" else [],
                "order": self._order(sizes),
            }

    def _order(self, s: Sizes) -> dict[str, float]:
        """Microseconds of putting the projections' results in order, by torch and by one kernel."""
        wide = s.channels + s.value_heads * s.head
        qkvz = torch.randn(s.tokens, wide, device=self.device, dtype=self.dtype)
        ba = torch.randn(s.tokens, 2 * s.value_heads, device=self.device, dtype=self.dtype)
        heads = s.key_heads, s.value_heads, s.head, s.head
        found = {"torch": round(microseconds(lambda: put_in_order(s, qkvz, ba), self.device), 1)}
        if self.release.order is not None:
            fused = self.release.order
            spent = microseconds(lambda: fused(qkvz, ba, *heads), self.device)
            found["one kernel"] = round(spent, 1)
        print(f"  before it, results put in order, us: {found}", flush=True)
        return found

    def _kernel(self, launch: Launch, sizes: Sizes) -> dict[str, Any]:
        released, results, failed = microseconds(launch, self.device), [], 0
        candidates = [option for option in self._candidates(launch) if option != launch.settings()]
        self._compile(launch, candidates)
        for option in candidates:
            if time.monotonic() > self.deadline:
                break
            try:
                results.append((microseconds(lambda: launch(option), self.device), option))
            except Exception:  # it does not compile, or wants more than the GPU has
                failed += 1
                if self.few:
                    raise
        results.sort(key=lambda result: result[0])
        if launch.name not in self.kept or len(results) > len(self.kept[launch.name]):
            self.kept[launch.name] = [option for _, option in results[:KEPT_HERE]]
        faster = bool(results) and (self.few or results[0][0] < 0.97 * released)
        row = {
            "name": launch.name,
            "floor_us": round(floor_us(launch.name, sizes), 1),
            "released_us": round(released, 1),
            "released": launch.settings(),
            "best_us": round(results[0][0] if faster else released, 1),
            "best": results[0][1] if faster else None,
            "next": [(round(spent, 1), option) for spent, option in results[1:4]],
            "tried": len(results),
            "failed": failed,
            "tuned": self._tuned(launch),
        }
        print(
            f"  {row['name'][:44]:44s} floor {row['floor_us']:7.1f}"
            f"  released {row['released_us']:7.1f}  best {row['best_us']:7.1f}"
            f"  {row['released']} -> {row['best'] or 'as released'}",
            flush=True,
        )
        return row

    def _tuned(self, launch: Launch) -> list[dict[str, Any]]:
        """Of each setting that the release may choose: its time, and whether its bits are the
        first's."""
        found: list[dict[str, Any]] = []
        first: dict[str, torch.Tensor] = {}
        for option in launch.tuned:
            launch(option)
            made = {k: v.clone() for k, v in launch.arguments.items() if torch.is_tensor(v)}
            first = first or made
            same = all(torch.equal(made[name], first[name]) for name in first)
            spent = round(microseconds(lambda: launch(option), self.device), 1)
            found.append({"us": spent, "settings": option, "bits_of_first": same})
        if found:
            said = ", ".join(
                f"{one['us']} {'' if one['bits_of_first'] else '(other bits)'}" for one in found
            )
            print(f"    may be chosen at a first call, us: {said}", flush=True)
        return found

    def _candidates(self, launch: Launch) -> list[Settings]:
        if launch.name not in self.names:
            return []
        options = self.kept.get(launch.name, OPTIONS.get(launch.name, []))
        known = set(launch.arguments) | {"num_warps", "num_stages"}
        fitting = [option for option in options if set(option) <= known]
        return fitting[:2] if self.few else fitting

    def _compile(self, launch: Launch, candidates: list[Settings]) -> None:
        """Launch each once, in threads: the compiler lets go of Python's lock."""

        def once(option: Settings) -> None:
            if time.monotonic() < self.deadline:
                with contextlib.suppress(Exception):
                    launch(option)

        if self.device == "cuda" and candidates:
            with ThreadPoolExecutor(THREADS) as threads:
                list(threads.map(once, candidates))
            torch.cuda.synchronize()

    def _whole(self, layer: Layer, chosen: dict[str, Settings]) -> dict[str, Any]:
        released, states = layer.fresh()
        with launches(chosen):
            output, swept_states = layer.fresh()
        row = {
            "released_us": round(microseconds(layer, self.device), 1),
            "host_us": round(host_microseconds(layer, self.device), 1),
            "output_apart": (output.float() - released.float()).abs().max().item(),
            "states_apart": (swept_states - states).abs().max().item(),
        }
        with launches(chosen):
            row["best_us"] = round(microseconds(layer, self.device), 1)
        print(
            f"  the layer: {row['released_us']} -> {row['best_us']} us on the GPU"
            f" ({LAYERS} layers: {row['released_us'] * LAYERS / 1e3:.2f} ->"
            f" {row['best_us'] * LAYERS / 1e3:.2f} ms), host {row['host_us']} us; results apart by"
            f" {row['output_apart']:.2g}, states by {row['states_apart']:.2g}",
            flush=True,
        )
        return row


def first_calls(release: Release, device: str, dtype: torch.dtype) -> dict[str, list[Settings]]:
    """What each tuned kernel chose at five first calls of six tokens, as a server warms up."""
    layer = Layer(release, Sizes(6, 1), device, dtype, "triton")
    tuners = {}
    with torch.no_grad(), launches() as seen:
        layer()
    names = {launch.name for launch in seen if launch.tuned}
    for module in [module for name, module in sys.modules.items() if name.startswith("sglang.")]:
        for value in list(vars(module).values()):
            if hasattr(value, "fn") and type(value).__module__.startswith("triton"):
                tuner = _autotuner(value)
                if tuner is not None and _name(value) in names:
                    tuners[_name(value)] = tuner
    chosen: dict[str, list[Settings]] = {name: [] for name in tuners}
    for _ in range(5):
        for tuner in tuners.values():
            tuner.cache.clear()
        with torch.no_grad():
            layer()
        for name, tuner in tuners.items():
            chosen[name].append(_plain(tuner.best_config))
    for tuner in tuners.values():
        tuner.cache.clear()
    for name, found in chosen.items():
        print(f"{name} at five first calls of six tokens: {found}", flush=True)
    return chosen


def _each_once(seen: list[Launch]) -> list[Launch]:
    """The heaviest tuning first. Of equal launches, as of queries and keys, one."""
    order = list(OPTIONS)
    first: dict[str, Launch] = {}
    for launch in seen:
        first.setdefault(launch.name, launch)
    return sorted(first.values(), key=lambda launch: ([*order, launch.name]).index(launch.name))


def shapes(tiny: bool) -> list[Sizes]:
    """All settings are tried on the first; those that were best there, on the others."""
    if tiny:
        return [Sizes(70, 1, 1, 2, 32), Sizes(70, 2, 1, 2, 32)]
    cases = [(2048, 1), (2048, 8), (512, 1), (512, 8), (4096, 1), (4096, 8)]
    # Of Qwen3-Next and Qwen3.5-35B-A3B, of Qwen3.5-27B, and of the first two under tensor
    # parallelism.
    heads = ((16, 32), (16, 48), (8, 16), (4, 8))
    return [Sizes(tokens, requests, *pair) for pair in heads for tokens, requests in cases]


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tree", type=Path, required=True, help="the folder that holds sglang/")
    parser.add_argument("--out", type=Path, required=True, help="the folder for sweep-gdn.json")
    parser.add_argument("--tiny", action="store_true", help="small sizes on the CPU, without times")
    parser.add_argument(
        "--seconds", type=float, default=150, help="try no more settings after that"
    )
    parser.add_argument(
        "--kernel", nargs="+", choices=[*OPTIONS], default=[*OPTIONS], help="default: all"
    )
    options = parser.parse_args(words)
    began = time.monotonic()
    os.environ["FLA_CACHE_RESULTS"] = "0"  # a choice that is kept on disk would be no first call
    device, dtype = ("cpu", torch.float16) if options.tiny else ("cuda", torch.bfloat16)
    release = load(options.tree.resolve(), options.tiny)
    until = began + options.seconds
    sweep = Sweep(release, device, dtype, until, options.tiny, options.kernel)
    rows: list[dict[str, Any]] = []
    first = {} if options.tiny else first_calls(release, device, dtype)
    for sizes in shapes(options.tiny):
        if sizes.key_heads != 16 and not options.tiny:
            sweep.kept = {name: kept[:KEPT_ELSEWHERE] for name, kept in sweep.kept.items()}
        for convolution in release.convolutions:
            if time.monotonic() > began + 1.15 * options.seconds:
                print(f"left out for want of time: {sizes}, convolution: {convolution}")
                continue
            try:
                rows.append(sweep.shape(sizes, convolution))
            except Exception:  # the other sizes are worth their time
                if options.tiny:
                    raise
                traceback.print_exc()
    facts = {
        "device": device if options.tiny else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "modules": release.folder,
        "seconds": round(time.monotonic() - began, 1),
        "first_calls": first,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "sweep-gdn.json").write_text(
        json.dumps({**facts, "rows": rows}, indent=1) + "\n"
    )
    print(f"\n{facts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
