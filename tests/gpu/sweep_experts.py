#!/usr/bin/env python3
"""Find tiles for the kernel of routed experts (fused_moe_kernel) on this host's GPU, and write them
as the tables that sglang reads: `python sweep_experts.py --out RESULTS`.

A table is for a number of experts E and an intermediate size N of one rank; models of several
hidden sizes share one. Every candidate is timed at some numbers of tokens, and those near the best
at the others: the release's own sequence of kernels in a CUDA graph, with routing that changes
between calls, so that no call finds its experts' weights in the L2 cache. A tile whose results
differ from a sum in float32 is not timed, and one at which Triton miscompiles the kernel is not
chosen. A table names for each number of tokens a tile that is best there and at the neighbouring
numbers, for all hidden sizes, and never one that is slower than the release's default.

RESULTS/configs/triton_X_Y_Z/E=…,N=…,device_name=….json are the tables, in the format of
get_moe_configs; RESULTS/sweep_experts.json has every time. How long a sweep takes is printed
first: an estimate for an H100 with 16 cores.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import itertools
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import machine_code
import sweeping

Tile = tuple[int, ...]  # M, N and K of a block, group of blocks, warps, stages

FIELDS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
# from 0.5.10; before
PACKAGES = (
    "sglang.srt.layers.moe.moe_runner.triton_utils",
    "sglang.srt.layers.moe.fused_moe_triton",
)
TOKENS = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512),
    *(1024, 1536, 2048, 3072, 4096, 8192, 16384),
)
ANCHORS = (16, 128, 512, 4096)  # where every candidate is timed
ROUTINGS = 4  # in one graph
NEAR = 1.03  # a tile this close to the best of a number of tokens may serve that number
FAR = 1.3  # a tile farther from the best of an anchor is not timed beside the anchor
TOLERANCE = 1.2e-2  # relative error of bfloat16 results, Frobenius
SHARED_MEMORY = 227 * 1024  # bytes of a block on compute capability 9.0
# of one hidden size, and more for each GB of weights: 388 tiles are compiled in 532 variants, and
# timed in some 1900 graphs of four calls. One H200 and 16 cores took 158 s for Qwen3-Next, 3.2 GB,
# and 199 s with nothing compiled before for Qwen3.5-397B, 6.4 GB.
SECONDS, SECONDS_PER_GB = 120, 12
END_S = 30  # to look for miscompiled kernels and to write the table
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
        """How long a sweep is estimated to take."""
        return SECONDS + SECONDS_PER_GB * self.bytes_of_weights / 1e9

    def floor_us(self, tokens: int, bytes_per_us: float, flops_per_us: float = 750e6) -> float:
        """The larger of reading the weights of the experts that are hit once, and of the
        arithmetic, in microseconds. flops_per_us: of bfloat16 on a Hopper GPU, as measured."""
        hit = 1 - (1 - self.top_k / self.experts) ** tokens
        flops = tokens * self.top_k * self.bytes_of_weights / self.experts
        return max(hit * self.bytes_of_weights / bytes_per_us, flops / flops_per_us)


def read() -> dict[tuple[int, int], tuple[Experts, ...]]:
    """tests/models/experts.json: which models share a table, by E and N of its file's name. The
    hidden size of Nemotron-3-Super's experts is its moe_latent_size."""
    file = Path(__file__).resolve().parents[1] / "models/experts.json"
    known = json.loads(file.read_text(encoding="utf-8"))
    found = {}
    for table, models in known["tables"].items():
        experts, size = map(int, table.split(","))
        group = (Experts(models=name, size=size, **known["models"][name]) for name in models)
        found[experts, size] = tuple(group)
    return found


SHAPES = read()


def shape(text: str) -> tuple[Experts, ...]:
    """E,N of SHAPES, or E,N,HIDDEN,TOP_K of another model; with ,relu2 if its experts have no
    gate."""
    try:
        numbers = tuple(map(int, text.removesuffix(",relu2").split(",")))
    except ValueError:
        numbers = ()
    if len(numbers) == 4:
        experts, size, hidden, top_k = numbers
        gated = not text.endswith(",relu2")
        return (Experts("named on the command line", experts, size, hidden, top_k, gated),)
    if numbers not in SHAPES:
        known = " ".join(f"{experts},{size}" for experts, size in SHAPES)
        raise argparse.ArgumentTypeError(f"{text!r} is none of {known} and no E,N,HIDDEN,TOP_K")
    return SHAPES[numbers]


def fits(tile: Tile) -> bool:
    """Whether a tile is worth a try: operands of two bytes an element fit shared memory, and each
    warp has some of the block, and not more than its registers hold."""
    m, n, k, _, warps, stages = tile
    elements = m * n // warps
    return (m + n) * k * 2 * stages <= SHARED_MEMORY and 256 <= elements <= 8192


def candidates(tokens: int, experts: Experts) -> list[Tile]:
    """Blocks of about as many rows as an expert gets, up to 16 times as many or as few."""
    rows = tokens * experts.top_k / experts.experts
    heights = [m for m in (16, 32, 64, 128) if m <= max(16, 8 * rows) and 16 * m >= rows]
    tiles = itertools.product(heights, (32, 64, 128, 256), (64, 128), (1, 16), (4, 8), (2, 3, 4, 5))
    return [tile for tile in tiles if fits(tile)]


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
        shapes = (
            (experts.experts, both * experts.size, experts.hidden),
            (experts.experts, experts.hidden, experts.size),
        )
        self.first, self.second = (
            torch.empty(shape, device=device, dtype=torch.bfloat16).normal_(0, shape[2] ** -0.5)
            for shape in shapes
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

        def timed(
            words: Mapping[str, int], replays: int = 3, best: float = math.inf
        ) -> float | None:
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


def variants(experts: Experts, tokens: Sequence[int]) -> list[tuple[Tile, int]]:
    """What is compiled: every candidate, and for how many tokens. Triton compiles a kernel anew
    where a number of rows is a multiple of 16 or no longer is, and moe_align_block_size pads by
    another rule where no more rows are routed than there are experts."""
    found: dict[tuple[Tile, bool, bool], int] = {}
    for count in sorted(tokens):
        routed = count * experts.top_k
        for tile in candidates(count, experts):
            found.setdefault((tile, routed % 16 == 0, routed <= experts.experts), count)
    return [(tile, min(count, 64)) for (tile, *_), count in found.items()]


def compile_some(experts: Experts, work: Sequence[tuple[Tile, int]], until: float) -> None:
    """Compile in a process of its own: the very launches that are timed afterwards."""
    batch, inputs = Batch(experts, Release()), {}
    for tile, count in work:
        if time.time() > until:
            return
        if count not in inputs:
            inputs[count] = batch.inputs(count, 1)
        with contextlib.suppress(Exception):  # what does not fit is found again when it is timed
            batch.run(inputs[count], as_words(tile))


def processes_for(experts: Experts, most: int) -> int:
    """How many processes may hold the weights at once: at most `most`, in nine tenths of the
    GPU's free memory, with a GB for each process's own use."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    return max(1, min(most, int(0.9 * free / (experts.bytes_of_weights + 1e9))))


Row = dict[str, Any]  # tokens, default_us, and us by tile


def sweep(experts: Experts, tokens: Sequence[int], until: float) -> list[Row]:
    """Times of one hidden size: the anchors first."""
    release = Release()
    batch = Batch(experts, release)
    # torch.cuda.graph collects garbage before every capture: without the modules' own objects
    gc.freeze()
    wrong, known, rows = batch.checker(), {}, []
    for count in sorted(tokens, key=lambda count: (count not in ANCHORS, count)):
        if time.time() > until:
            print(f"{experts.models}: no time left for {count} tokens", flush=True)
            continue
        timed, times = batch.timer(count), {}
        for tile in candidates(count, experts) if count in ANCHORS else promising(rows, count):
            if time.time() > until:
                print(f"{experts.models}: no time left for more tiles", flush=True)
                break
            if tile not in known:
                known[tile] = wrong(tile)
            best = min(times.values(), default=math.inf)
            if not known[tile] and (us := timed(as_words(tile), best=best)):
                times[tile] = us
        for tile in sorted(times, key=times.__getitem__)[:6]:  # again, beside the default
            times[tile] = timed(as_words(tile), 15) or math.inf
        if not times:
            continue
        default = timed(release.default(count, experts), 15)
        rows.append({"tokens": count, "default_us": default, "us": times})
        show(experts, rows[-1], memory_rate())
    said = [why for why in known.values() if why]
    print(f"    {len(said)} of {len(known)} tiles cannot be used", flush=True)
    return sorted(rows, key=lambda row: row["tokens"])


def promising(rows: Sequence[Row], count: int) -> list[Tile]:
    """The tiles that were near the best of the anchors on both sides of a number of tokens."""
    anchors = [row for row in rows if row["tokens"] in ANCHORS and row["us"]]
    below = [row for row in anchors if row["tokens"] < count][-1:]
    above = [row for row in anchors if row["tokens"] > count][:1]
    near = (
        tile
        for row in (*below, *above)
        for tile, us in row["us"].items()
        if us <= FAR * min(row["us"].values())
    )
    return list(dict.fromkeys(near))


def chosen(swept: Sequence[Sequence[Row]]) -> dict[int, Tile]:
    """A tile for each number of tokens, from the rows of all hidden sizes that share a table and
    were timed there: of those that are not slower than the default for any of them, and within
    NEAR of the best where some are for all. Few tiles in all: a server compiles each. None for a
    number where the default stays."""
    at: dict[int, list[Row]] = {}
    for row in itertools.chain(*swept):
        at.setdefault(row["tokens"], []).append(row)
    serving = {count: _serving(rows) for count, rows in sorted(at.items())}
    left = {count for count, costs in serving.items() if costs}
    tiles: list[Tile] = []
    while left:
        served = {
            tile: [serving[count][tile] for count in left if tile in serving[count]]
            for tile in sorted(set().union(*(serving[count] for count in left)))
        }
        tiles.append(max(served, key=lambda tile: (len(served[tile]), -sum(served[tile]))))
        left = {count for count in left if tiles[-1] not in serving[count]}
    return {
        count: min((tile for tile in tiles if tile in costs), key=costs.__getitem__)
        for count, costs in serving.items()
        if costs
    }


def _serving(rows: Sequence[Row]) -> dict[Tile, float]:
    """The tiles that may be chosen at a number of tokens, from the rows of its hidden sizes. The
    cost of each: the logs of how many times the best it takes, added up; without those that are
    not near, the cheapest alone."""
    tiles = set.intersection(*({*row["us"]} for row in rows))
    costs = {
        tile: sum(math.log(row["us"][tile] / min(row["us"].values())) for row in rows)
        for tile in tiles
        if all(row["us"][tile] <= (row["default_us"] or math.inf) for row in rows)
    }
    near = {tile for tile in costs if all(_near(row, tile) for row in rows)}
    near = near or {min(sorted(costs), key=costs.__getitem__)} if costs else near
    return {tile: costs[tile] for tile in near}


def chosen_right(
    swept: Sequence[Sequence[Row]], miscompiled: Callable[[set[Tile]], set[Tile]]
) -> dict[int, Tile]:
    """What `chosen` chooses once the tiles at which a kernel is miscompiled are out of the rows."""
    looked_at: set[Tile] = set()
    while new := {*chosen(swept).values()} - looked_at:
        looked_at |= new
        bad = miscompiled(new)
        for row in itertools.chain(*swept):
            row["us"] = {tile: us for tile, us in row["us"].items() if tile not in bad}
    return chosen(swept)


def _near(row: Row, tile: Tile) -> bool:
    return row["us"][tile] <= NEAR * min(row["us"].values())


def table_of(tiles: Mapping[int, Tile], defaults: Mapping[int, Mapping[str, int]]) -> dict:
    """The file's content. A number without a tile of its own, or that no time was left for, names
    the default's, so that the release does not take a neighbour's."""
    return {
        str(count): as_words(tiles[count]) if count in tiles else dict(defaults[count])
        for count in sorted({*tiles, *defaults})
    }


def memory_rate() -> float:
    """Bytes per microsecond that nine tenths of the GPU's memory bandwidth are: what a kernel that
    only reads reaches. Two transfers a clock, as HBM and GDDR make them."""
    import torch

    gpu = torch.cuda.get_device_properties(0)
    return 0.9 * 2 * gpu.memory_clock_rate * 1e3 * gpu.memory_bus_width / 8 / 1e6


def show(experts: Experts, row: Row, bytes_per_us: float) -> None:
    best = min(row["us"], key=row["us"].__getitem__, default=())
    us = f"{row['us'][best]:8.1f}" if best else "       -"
    floor = experts.floor_us(row["tokens"], bytes_per_us)
    print(
        f"{experts.models[:24]:24} {row['tokens']:6} tokens: floor {floor:7.0f}, default"
        f" {row['default_us'] or 0:8.1f}, best {us} us {best}",
        flush=True,
    )


def tables(shapes: Sequence[Sequence[Experts]], options: argparse.Namespace) -> Iterator[dict]:
    """Sweep each shape, and write its table."""
    import triton

    until = time.time() + options.limit - END_S
    folder = options.out / "configs" / f"triton_{triton.__version__.replace('.', '_')}"
    folder.mkdir(parents=True, exist_ok=True)
    release = Release()
    for group in shapes:
        if time.time() > until:
            print(f"no time left for {group[0].experts},{group[0].size}", flush=True)
            continue
        swept = []
        for experts in group:
            work = variants(experts, options.tokens)
            processes = processes_for(experts, options.processes)
            sweeping.compile_all(work, compile_some, processes, until, experts)
            swept.append(sweep(experts, options.tokens, until))
        defaults = {count: release.default(count, group[0]) for count in options.tokens}
        file = folder / release.file_name(group[0])
        tiles = chosen_right(swept, Batch(group[0], release).miscompiled)
        file.write_text(json.dumps(table_of(tiles, defaults), indent=4) + "\n")
        print(f"{file} written", flush=True)
        rows = [[row | {"us": [*row["us"].items()]} for row in rows] for rows in swept]
        yield {"file": file.name, "experts": [*map(asdict, group)], "rows": rows}


def main(words: Sequence[str] | None = None) -> int:
    parser = sweeping.parser(__doc__, 3600)
    parser.add_argument(
        "--shape",
        type=shape,
        nargs="+",
        default=[*SHAPES.values()],
        help="E,N of a table, or E,N,HIDDEN,TOP_K of another model (default: all tables)",
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[*TOKENS])
    options = parser.parse_args(words)
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.inside:  # again, where the tree's modules are found
        seconds = sum(experts.seconds for group in options.shape for experts in group)
        print(f"about {math.ceil(seconds / 60)} minutes; tables in {options.out}/configs/")
        return sweeping.run_inside(options, __file__, words)
    refuse_without_gpu()
    found = []
    for one in tables(options.shape, options):
        found.append(one)
        (options.out / "sweep_experts.json").write_text(json.dumps(found) + "\n")
    print("copy a table to where a server without one said, or beside those of sglang:")
    print("…/configs/triton_X_Y_Z/; the next start reads it")
    return 0


def refuse_without_gpu() -> None:
    """End the run with a sentence where no NVIDIA GPU can be used."""
    import torch

    if not torch.cuda.is_available() or torch.version.hip:
        raise SystemExit("no NVIDIA GPU can be used here: a table is for the GPU that it ran on")


if __name__ == "__main__":
    sys.exit(main())
