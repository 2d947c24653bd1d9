#!/usr/bin/env python3
"""Find tiles for Mamba2's prefill kernels on this host's GPU: `python sweep.py --out RESULTS`.

Times every candidate of every kernel at the sizes that people serve, alone and in a batch, short
and long. Prints, for each kernel and layer, the three tiles that are best over all cases, beside
what the release launches, and writes RESULTS/sweep.json. The tables of kernels/tiles.py in the
overlay are made of it. Results of the overlay's kernels are held against those of plain tiles
first: a tile whose results are wrong is not timed. A tile at which Triton miscompiles a kernel is
timed and never proposed; the best of these is printed behind the three. A tile that crashes a
kernel ends its run: name the other kernels then.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import machine_code
import sweeping

# from 0.5.16; before
OPS = ("sglang.kernels.ops.mamba.triton_ops", "sglang.srt.layers.attention.mamba.ops")
CASES = ((512, 1), (512, 8), (4096, 1), (4096, 8))  # rows of a forward, requests


@dataclass(frozen=True)
class Layer:
    """A Mamba2 layer's sizes on one rank. name: whose they are."""

    name: str
    heads: int
    size: int
    d_state: int
    groups: int
    chunk: int

    def rank(self, width: int) -> Layer:
        """The same under tensor parallelism."""
        return Layer(
            f"{self.name}, tp {width}",
            self.heads // width,
            self.size,
            self.d_state,
            max(1, self.groups // width),
            self.chunk,
        )


NANO_2 = Layer("Nemotron Nano 9B v2", 128, 80, 128, 8, 128)
NANO_3 = Layer("Nemotron 3 Nano", 64, 64, 128, 8, 128)
SUPER_3 = Layer("Nemotron 3 Super", 128, 64, 128, 8, 256)
FALCON_1B = Layer("Falcon-H1 1.5B", 48, 64, 256, 1, 256)
FALCON_34B = Layer("Falcon-H1 34B", 32, 128, 256, 2, 256)
LAYERS = (
    NANO_2,
    NANO_2.rank(2),
    NANO_2.rank(4),
    NANO_2.rank(8),
    NANO_3,
    NANO_3.rank(4),
    SUPER_3,
    SUPER_3.rank(4),
    FALCON_1B,
    FALCON_34B,
)


def block(m: int, n: int, k: int, warps: int, stages: int) -> dict[str, int]:
    return dict(BLOCK_SIZE_M=m, BLOCK_SIZE_N=n, BLOCK_SIZE_K=k, num_warps=warps, num_stages=stages)


RELEASE = [
    block(*shape, *how)
    for shape in (
        (64, 64, 32),
        (64, 64, 64),
        (128, 64, 32),
        (128, 64, 64),
        (64, 128, 32),
        (64, 128, 64),
        (128, 128, 64),
        (32, 64, 64),
    )
    for how in ((4, 1), (8, 1), (4, 2), (4, 3), (8, 2))
]
PASSING = [
    dict(BLOCK_SIZE=size, num_warps=warps) for size in (256, 512, 1024, 2048) for warps in (4, 8)
]
HOW = [dict(num_warps=w, num_stages=s) for w, s in ((4, 2), (4, 3), (8, 2))]
# the releases' kernels: which of their modules has each, in release_ops' order, and its name there
KERNELS = {
    "bmm": (0, "_bmm_chunk_fwd_kernel"),
    "chunk_scan": (1, "_chunk_scan_fwd_kernel"),
    "chunk_state": (2, "_chunk_state_fwd_kernel"),
    "state_varlen": (2, "_chunk_state_varlen_kernel"),
    "state_passing": (3, "_state_passing_fwd_kernel"),
}
OURS = ("states", "scan")
PLAIN = {
    "states": dict(BLOCK_P=16, BLOCK_N=64, num_warps=4, num_stages=2),
    "scan": dict(BLOCK_HEADS=1, num_warps=4, num_stages=2),
}
# Of a tile: a miscompiled kernel is right in some launches and wrong in others. bfloat16 rounds to
# 1/256, and a sum of roundings stays below one part in a hundred, taken over all elements.
LAUNCHES, ROUNDED = 5, 0.01
CANDIDATES = {
    "bmm": RELEASE,
    "chunk_scan": RELEASE,
    "chunk_state": RELEASE,
    "state_varlen": RELEASE,
    "state_passing": PASSING,
    "states": [
        dict(CHUNK=q, BLOCK_P=p, BLOCK_N=n) | how
        for q, p, n in itertools.product((64, 128), (16, 32, 64, 128), (64, 128))
        for how in HOW
    ],
    "scan": [dict(CHUNK=128, BLOCK_HEADS=h) | how for h in (1, 2, 4, 8) for how in HOW],
}


def main(words: Sequence[str] | None = None) -> int:
    parser = sweeping.parser(__doc__, 560)
    parser.add_argument(
        "--kernel", nargs="+", choices=[*CANDIDATES], default=[*CANDIDATES], help="default: all"
    )
    parser.add_argument(
        "--layer", type=int, nargs="+", help="numbers in the list of layers (default: all)"
    )
    options = parser.parse_args(words)
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.inside:
        return sweeping.run_inside(options, __file__, words)
    layers = [LAYERS[n] for n in options.layer or range(len(LAYERS))]
    until = time.time() + options.limit
    sweeping.compile_all(work(options.kernel, layers), compile_some, options.processes, until)
    found = []
    for layer in layers:
        for name in options.kernel:
            found.append(sweep(layer, name, until))
            show(found[-1])
            (options.out / "sweep.json").write_text(json.dumps(found, indent=1) + "\n")
    return 0


def work(names: Sequence[str], layers: Sequence[Layer]) -> list[tuple[Layer, str, dict[str, int]]]:
    """What is to be compiled: each tile of each kernel, once for layers of one shape."""
    shapes = {
        (layer.size, layer.d_state, layer.chunk, layer.heads // layer.groups, layer.heads): layer
        for layer in layers
    }
    return [
        (layer, name, tile)
        for layer in shapes.values()
        for name in names
        for tile in candidates(name)
    ]


def candidates(name: str) -> list[dict[str, int]]:
    """The tiles of CANDIDATES, and those that the release's own autotuner chooses among."""
    tiles = list(CANDIDATES[name])
    if name in KERNELS:
        module, kernel = KERNELS[name]
        its = getattr(release_ops()[module], kernel)
        tiles += [tile for tile in tiles_of(its) if tile not in tiles]
    return tiles


def tiles_of(kernel: object) -> list[dict[str, int]]:
    """What an autotuned kernel is timed with; nothing for another."""
    return [
        {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
        for config in getattr(kernel, "configs", ())
    ]


def compile_some(work: list[tuple[Layer, str, dict[str, int]]], until: float) -> None:
    made: dict[tuple[Layer, str], Callable[[dict[str, int]], None]] = {}
    for layer, name, tile in work:
        if time.time() > until:
            return
        with contextlib.suppress(Exception):  # what does not fit is found again when it is timed
            key = (layer, name)
            if key not in made:
                made[key] = Batch(layer, 256, 1).launcher(name)
            made[key](tile)


def sweep(layer: Layer, name: str, until: float) -> dict:
    """Microseconds of each candidate in each case; "" is what the release launches by itself."""
    tiles = [*([] if name in OURS else [{}]), *candidates(name)]
    rows: list[dict] = [{"tile": tile, "us": []} for tile in tiles]
    if name in OURS:
        for row in rows:
            row["wrong"] = wrong(layer, name, row["tile"]) if time.time() < until else ""
        rows = [row for row in rows if not row["wrong"]]
    launch = Batch(layer, 256, 1).launcher(name)  # as compile_some has compiled it
    for row in (row for row in rows if row["tile"]):
        if time.time() < until:
            row["miscompiled"] = miscompiled(launch, row["tile"])
    for rows_of, requests in CASES:
        launch = Batch(layer, rows_of, requests).launcher(name)
        for row in rows:
            us = timed(lambda: launch(row["tile"])) if time.time() < until else None
            row["us"].append(us)
    return {"layer": layer.__dict__, "kernel": name, "cases": CASES, "tiles": rows}


def wrong(layer: Layer, name: str, tile: dict[str, int]) -> str:
    """Why this tile's results cannot be used, printed; "" if they can. The other kernel's is
    plain."""
    batch, chosen = Batch(layer, 512, 4), dict(tile)
    chunk = chosen.pop("CHUNK")
    try:
        plain, *mine = (
            batch.answers(PLAIN | words, chunk) for words in ({}, *[{name: chosen}] * LAUNCHES)
        )
        why = apart(plain, mine)
    except Exception as error:  # shared memory, registers, a head that no block holds
        why = f"{type(error).__name__}: {str(error)[:100]}"
    if why:
        print(f"    {name} {tuple(tile.values())}: {why}", flush=True)
    return why


def apart(plain: list[Any], mine: list[list[Any]]) -> str:
    """Why several launches' results cannot be used beside those of plain tiles; "" if they can."""
    if any(not a.equal(b) for other in mine[1:] for a, b in zip(mine[0], other)):
        return "launches differ in bits"
    off = max(float((a - b).norm() / b.norm()) for a, b in zip(mine[0], plain))
    return "" if off <= ROUNDED else f"apart by {off:.2g} in the mean"  # so is NaN


def miscompiled(launch: Callable[[dict[str, int]], None], tile: dict[str, int]) -> bool:
    """Whether Triton miscompiles a kernel that is launched with the tile. What does not fit on the
    GPU is not: it has no times."""
    try:
        kernels = sweeping.launched(launch, tile)
    except Exception:  # shared memory, registers: told where it is timed
        return False
    return any(machine_code.miscompiled(kernel.asm["cubin"]) for kernel in kernels)


def timed(launch: Callable[[], None]) -> float | None:
    """Median microseconds of one launch; None where the tile does not fit on the GPU."""
    import triton

    try:
        return triton.testing.do_bench_cudagraph(launch, rep=2, return_mode="median") * 1e3
    except Exception as error:  # shared memory, registers
        if "out of resource" not in str(error):
            print(f"    {type(error).__name__}: {str(error)[:200]}", flush=True)
        return None


def ranked(found: dict, wrong: bool = False) -> Iterator[tuple[float, dict]]:
    """Candidates by how far they are from each case's best: geometric mean, 1 is best everywhere.

    wrong: those at which Triton miscompiles the kernel, measured by the best of the others.
    """
    whole = [row for row in found["tiles"] if row["tile"] and all(row["us"])]
    right = [row for row in whole if not row.get("miscompiled")]
    if not right:
        return
    best = [min(column) for column in zip(*(row["us"] for row in right))]
    scored = [
        (math.prod(us / least for us, least in zip(row["us"], best)) ** (1 / len(best)), row)
        for row in whole
        if bool(row.get("miscompiled")) == wrong
    ]
    yield from sorted(scored, key=lambda pair: pair[0])


def show(found: dict) -> None:
    layer, first = found["layer"], [row["us"] for row in found["tiles"] if not row["tile"]]
    said = (
        ""
        if not first
        else " release " + " ".join("-" if us is None else f"{us:.1f}" for us in first[0])
    )
    print(f"{layer['name']:28} {found['kernel']:13}{said}")
    proposed = [(*pair, "") for pair in itertools.islice(ranked(found), 3)]
    wrong = [(*pair, " miscompiled") for pair in itertools.islice(ranked(found, wrong=True), 1)]
    for score, row, why in proposed + wrong:
        us = " ".join(f"{us:.1f}" for us in row["us"])
        print(f"    {score:.3f}  {us}  {tuple(row['tile'].values())}{why}", flush=True)


class Batch:
    """Random inputs of one layer's scan, and launches of each kernel on them."""

    def __init__(self, layer: Layer, rows: int, requests: int, device: str = "cuda"):
        import torch

        self.layer, self.ops = layer, release_ops()
        dtype = torch.bfloat16
        torch.manual_seed(1)
        inner, shared = layer.heads * layer.size, layer.groups * layer.d_state
        both = torch.randn(rows, inner + 2 * shared, device=device, dtype=dtype)
        self.flat = x, b, c = both.split([inner, shared, shared], dim=-1)
        self.x, self.b, self.c = (
            x.view(1, rows, layer.heads, -1),
            b.view(1, rows, layer.groups, -1),
            c.view(1, rows, layer.groups, -1),
        )
        self.dt = torch.randn(rows, layer.heads, device=device, dtype=dtype) - 3
        self.a, self.d = (
            -torch.rand(layer.heads, device=device),
            torch.ones(layer.heads, device=device),
        )
        self.lengths = [rows // requests] * requests
        self.cu = torch.arange(0, rows + 1, rows // requests, device=device, dtype=torch.int32)
        self.seq = torch.arange(requests, device=device, dtype=torch.int32).repeat_interleave(
            rows // requests
        )[None]
        self.out = torch.empty_like(self.x)
        self.pool = torch.zeros(requests + 1, layer.heads, layer.size, layer.d_state, device=device)
        self.slots = torch.arange(1, requests + 1, device=device, dtype=torch.int32)
        self.warm = torch.zeros(requests, device=device, dtype=torch.bool)

    def launcher(self, name: str) -> Callable[[dict[str, int]], None]:
        return self._ours(name) if name in OURS else self._release(name)

    def _release(self, name: str) -> Callable[[dict[str, int]], None]:
        bmm, scan, state, passing = self.ops
        layer = self.layer
        decay, dt = state._chunk_cumsum_fwd(
            self.dt[None], self.a, layer.chunk, dt_bias=self.d, dt_softplus=True
        )
        states = state._chunk_state_fwd(
            self.b, self.x, dt, decay, seq_idx=self.seq, states_in_fp32=True
        )

        def pass_on():
            return passing._state_passing_fwd(
                states.flatten(-2),
                decay,
                seq_idx=self.seq,
                chunk_size=layer.chunk,
                out_dtype=states.dtype,
                is_cont_batched=True,
            )

        def multiply():
            return bmm._bmm_chunk_fwd(
                self.c, self.b, layer.chunk, seq_idx=self.seq, output_dtype=states.dtype
            )

        before, products = pass_on()[0].unflatten(-1, (layer.size, layer.d_state)), multiply()
        calls = {
            "bmm": multiply,
            "state_passing": pass_on,
            "chunk_state": lambda: state._chunk_state_fwd(
                self.b, self.x, dt, decay, seq_idx=self.seq, states_in_fp32=True
            ),
            "chunk_scan": lambda: scan._chunk_scan_fwd(
                products,
                self.x,
                dt,
                decay,
                self.c,
                before,
                D=self.d,
                seq_idx=self.seq,
                out=self.out,
            ),
            "state_varlen": lambda: state.chunk_state_varlen(
                self.b[0], self.x[0], dt[0], decay[0], self.cu, before[0]
            ),
        }
        number, kernel = KERNELS[name]
        module, call = self.ops[number], calls[name]

        def launch(tile: dict[str, int]) -> None:
            with sweeping.replaced(module, kernel, With(getattr(module, kernel), tile)):
                call()

        return launch

    def _ours(self, name: str) -> Callable[[dict[str, int]], None]:
        made: dict[int, Any] = {}

        def launch(tile: dict[str, int]) -> None:
            words = dict(tile)
            chunk = words.pop("CHUNK")
            if chunk not in made:
                made[chunk] = self._launches(chunk)
            getattr(made[chunk], name)(words)

        return launch

    def _launches(self, chunk: int) -> Any:
        from sglang.srt.prefill_graph.kernels import ssd

        layer = self.layer
        shape = ssd.Shape.of(layer.heads, layer.groups, layer.size, layer.d_state, chunk)
        plan = ssd.plan(self.lengths, chunk, self.x.device)
        rest = dict(
            dt=self.dt,
            a=self.a,
            d=self.d,
            dt_bias=self.d,
            out=self.out[0].flatten(-2),
            pool=self.pool,
            slots=self.slots,
            warm=self.warm,
        )
        run = ssd.Launches(shape, plan, *self.flat, **rest)
        run.steps()
        return run

    def answers(self, tiles: dict[str, dict[str, int]], chunk: int) -> list[Any]:
        """Output and states of the whole scan, in float32."""
        self.pool.zero_()
        self.out.fill_(math.nan)  # rows that nobody writes show
        run = self._launches(chunk)
        run.states(tiles["states"])
        run.scan(tiles["scan"])
        return [self.out.clone().float(), self.pool.clone()]


class With:
    """A kernel that is launched with some more words."""

    def __init__(self, kernel: Any, words: dict[str, int]):
        if words and hasattr(kernel, "tile"):  # tiles.Fixed of a patched tree
            kernel = kernel.kernel
        tuned = hasattr(kernel, "configs")  # chooses these words itself, and takes no others
        self.kernel, self.words = kernel.fn if words and tuned else kernel, words

    def __getitem__(self, grid: object) -> Callable[..., object]:
        return lambda *args, **words: self.kernel[grid](*args, **{**words, **self.words})


def release_ops() -> tuple:
    """The release's modules: bmm, chunk scan, chunk state, state passing."""
    for package in OPS:
        with contextlib.suppress(ModuleNotFoundError):
            return tuple(
                importlib.import_module(f"{package}.{name}")
                for name in ("ssd_bmm", "ssd_chunk_scan", "ssd_chunk_state", "ssd_state_passing")
            )
    raise SystemExit("this tree has none of the kernels")


if __name__ == "__main__":
    sys.exit(main())
