#!/usr/bin/env python3
"""Find tiles for the kernel of routed experts (fused_moe_kernel) on this host's GPU, and write them
as the tables that sglang reads: `python sweep_experts.py --out RESULTS`.

A table is for a number of experts E and an intermediate size N of one rank; models of several
hidden sizes share one. Every candidate is timed at some numbers of tokens, and those near the best
at the others: the release's own sequence of kernels in a CUDA graph, with routing that changes
between calls, so that no call finds its experts' weights in the L2 cache. A tile whose results
differ from a sum in float32 is not timed. None is chosen at which Triton miscompiles the kernel, or
that is slower than the release's default for a hidden size.

RESULTS/configs/triton_X_Y_Z/E=…,N=…,device_name=….json are the tables, in the format of
get_moe_configs; RESULTS/sweep_experts.json has every time. How long a sweep takes is printed
first: an estimate for an H100 with 16 cores.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import machine
import sweeping
from expert_kernels import Batch, Experts, Release, Tile, as_words

TOKENS = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512),
    *(1024, 1536, 2048, 3072, 4096, 8192, 16384),
)
ANCHORS = (16, 128, 512, 4096)  # where every candidate is timed
# Tried on compute capability 9.0. Sweeps of all 388 tiles (2026-11-27: ten shapes on H100s and
# H200s, 39 pairs of a shape and an anchor) found no tile that is over 0.2 % faster than the best
# of these.
HOPPER: tuple[Tile, ...] = (
    *((16, 64, 64, 1, 4, 3), (16, 64, 64, 16, 4, 3), (16, 64, 64, 16, 4, 5)),
    *((16, 64, 128, 1, 4, stages) for stages in (3, 4, 5)),
    *((16, 64, 128, 16, 4, 2), (16, 64, 128, 16, 4, 5), (16, 128, 128, 1, 4, 2)),
    *((16, 128, 128, 1, 8, 2), (16, 128, 128, 1, 8, 3), (16, 128, 128, 16, 4, 2)),
    *((16, 128, 128, 16, 8, 3), (32, 64, 128, 1, 4, 2), (32, 128, 128, 1, 4, 2)),
    *((64, 128, 64, 1, 4, 3), (64, 128, 64, 1, 8, 3), (64, 128, 64, 1, 8, 4)),
    *((128, 128, 64, 1, 8, 3), (128, 128, 64, 16, 4, 3), (128, 128, 64, 16, 8, 3)),
    (128, 256, 64, 1, 8, 4),
)
NEAR = 1.03  # a tile this close to the best of a number of tokens may serve that number
FAR = 1.3  # a tile farther from the best of an anchor is not timed beside the anchor
SHARED_MEMORY = 227 * 1024  # bytes of a block on compute capability 9.0
END_S = 30  # to look for miscompiled kernels and to write the table


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
    if on_hopper():
        return [tile for tile in HOPPER if tile[0] in heights]
    tiles = itertools.product(heights, (32, 64, 128, 256), (64, 128), (1, 16), (4, 8), (2, 3, 4, 5))
    return [tile for tile in tiles if fits(tile)]


@functools.cache
def on_hopper() -> bool:
    """Whether the GPU has compute capability 9.0. Ends the run where there is no GPU."""
    return machine.visible()[0].compute_capability == "9.0"


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
        show(experts, rows[-1])
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
    """A tile for each number of tokens, from the rows of all hidden sizes that share a table: of
    those that _serving names. Few tiles in all: a server compiles each. None for a number where the
    default stays."""
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


def show(experts: Experts, row: Row) -> None:
    best = min(row["us"], key=row["us"].__getitem__, default=())
    us = f"{row['us'][best]:8.1f}" if best else "       -"
    default = f"default {row['default_us'] or 0:8.1f}"
    of = f"{experts.models[:24]:24} {row['tokens']:6} tokens"
    print(f"{of}: {default}, best {us} us {best}", flush=True)


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
    which = "E,N of a table, or E,N,HIDDEN,TOP_K of another model (default: all tables)"
    tabled = [*SHAPES.values()]
    parser.add_argument("--shape", type=shape, nargs="+", default=tabled, help=which)
    parser.add_argument("--tokens", type=int, nargs="+", default=[*TOKENS])
    options = parser.parse_args(words)
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.inside:  # again, where the tree's modules are found
        seconds = sum(experts.seconds for group in options.shape for experts in group)
        if on_hopper():  # 73 s for 2.2 GB: four hidden sizes on an H100 with 14 processes
            seconds /= 2
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
