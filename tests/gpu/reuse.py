#!/usr/bin/env python3
"""Whether breaks read their inputs rightly once a smaller size was captured in the same pool, and
what they hold for it: `python reuse.py --out FILE.json`, with a patched or untouched sglang on
PYTHONPATH. It takes the steps that sgl-project/sglang#37606 tells, without a model.

Size A is captured and replayed once. Whatever Python holds of its inputs goes. Then a smaller size
B is captured in the pool and replayed, and A is replayed again. Last, all free memory is handed out
and filled with NaN, and both are replayed once more. Every replay must have the bits of the same
operations without a graph. holding/ in front of PYTHONPATH with BREAK_HOLDS=main, strong or ours
switches what a break holds. lifetimes.py replays A behind B's capture alone, and looks at no
inputs that an earlier break made. Exit code 0: every replay was right.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import lifetimes
import torch

LARGE, SMALL, HIDDEN, LAYERS = 4096, 1024, 256, 8
DEVICE, MIB = "cuda", 1 << 20
Tensor = torch.Tensor
Break = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass
class Inputs:
    """The second input of each layer's break, of one size: by its layer, made by `origin`. graph:
    keeps the pool that it was captured in; dropped: nothing is made any more."""

    size: int
    origin: str
    made: dict[int, Tensor] = field(default_factory=dict)
    graph: Any = None
    dropped: bool = False

    def before(self, pool: Any) -> None:
        """What exists before the capture begins."""
        if self.origin == "ordinary memory":
            self.made |= {layer: constant(layer, self.size) for layer in range(LAYERS)}
        if self.origin == "an earlier capture":
            source = [constant(layer, self.size) for layer in range(LAYERS)]
            self.graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            self.graph.capture_begin(pool=pool)
            self.made |= {layer: value * 1 for layer, value in enumerate(source)}
            self.graph.capture_end()
            self.graph.replay()
            torch.cuda.synchronize()

    def at(self, layer: int, x: Tensor, break_at: Break) -> Tensor:
        if self.origin == "its own segments":
            return x * 0.25 + layer
        if self.origin == "an earlier break":
            break_at(self.keep)(layer)
        return self.made[layer]

    def keep(self, layer: int) -> None:
        """Run eagerly between segments: a table that is made once."""
        if layer not in self.made and not self.dropped:
            self.made[layer] = constant(layer, self.size)


ORIGINS = ("its own segments", "ordinary memory", "an earlier capture", "an earlier break")


def constant(layer: int, size: int) -> Tensor:
    return torch.full((size, HIDDEN), 0.125 * (layer + 1), device=DEVICE)


def add_into(a: Tensor, b: Tensor, out: Tensor) -> None:
    out.copy_(a + b)


def forward(x: Tensor, inputs: Inputs, break_at: Break) -> Tensor:
    for layer in range(LAYERS):
        inner = x * 1.5 + layer
        other = inputs.at(layer, inner, break_at)
        out = torch.empty_like(inner)
        break_at(add_into)(inner, other, out)
        x = torch.sin(out) + 0.5
    return x


class Size:
    """One captured size: its graph, its result, and what the result must be."""

    def __init__(self, primitive: lifetimes.Primitive, pool: Any, stream: Any, inputs: Inputs):
        self.x = torch.rand(inputs.size, HIDDEN, device=DEVICE)
        inputs.before(pool)
        same = Inputs(inputs.size, inputs.origin, all_of(inputs))
        self.right = forward(self.x, same, alone).cpu()
        torch.cuda.synchronize()
        self.graph = primitive.graph()
        with primitive.capture(self.graph, pool, stream):
            self.result = forward(self.x, inputs, primitive.break_at)

    def is_right(self) -> bool:
        self.graph.replay()
        torch.cuda.synchronize()
        return torch.equal(self.result.cpu(), self.right)


def all_of(inputs: Inputs) -> dict[int, Tensor]:
    """Every layer's input, made or yet to be made: the same numbers."""
    return inputs.made or {layer: constant(layer, inputs.size) for layer in range(LAYERS)}


def alone(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


@dataclass(frozen=True)
class Found:
    """What came of one origin. replays: each one's name, and whether it was right; held_mib: of A's
    inputs, once Python has let go of them."""

    origin: str
    replays: dict[str, bool]
    held_mib: float
    inputs_mib: float

    def told(self) -> str:
        wrong = [name for name, right in self.replays.items() if not right]
        verdict = f"WRONG: {', '.join(wrong)}" if wrong else "right"
        held = f"{self.held_mib:.0f} of {self.inputs_mib:.0f} MiB of inputs held"
        return f"inputs of {self.origin}: {verdict}; {held}"


def drop(inputs: Inputs) -> None:
    inputs.made.clear()
    inputs.dropped = True
    gc.collect()
    torch.cuda.synchronize()


def look(origin: str, primitive: lifetimes.Primitive, stream: Any) -> Found:
    """The steps of the report with inputs of one origin."""
    pool, replays = torch.cuda.graph_pool_handle(), {}
    before = torch.cuda.memory_allocated()
    of_large = Inputs(LARGE, origin)
    large = Size(primitive, pool, stream, of_large)
    replays["A alone"] = large.is_right()
    drop(of_large)
    held = torch.cuda.memory_allocated() - before - large.x.nbytes - large.result.nbytes
    of_small = Inputs(SMALL, origin)
    small = Size(primitive, pool, stream, of_small)
    replays["B"] = small.is_right()
    drop(of_small)
    replays["A behind B"] = large.is_right()
    others = [torch.full_like(one.x, float("nan")) for one in (large, small) for _ in range(64)]
    replays["A in used memory"] = large.is_right()
    replays["B in used memory"] = small.is_right()
    replays["other tensors kept"] = all(bool(other.isnan().all()) for other in others)
    inputs = 3 * LAYERS * LARGE * HIDDEN * 4  # a, b and out of each break
    return Found(origin, replays, held / MIB, inputs / MIB)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    options = parser.parse_args(words)
    primitive = lifetimes.find_primitive()
    if primitive is None:
        sys.exit("no graph with breaks here")
    found, stream = [], torch.cuda.Stream()
    for origin in ORIGINS:
        with torch.cuda.stream(stream):  # freed memory goes to tensors of the same stream
            found.append(look(origin, primitive, stream))
        print(found[-1].told(), flush=True)
    if options.out:
        record = {
            "primitive": primitive.module,
            "sglang": importlib.import_module("sglang.version").__version__,
            "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name(),
            "found": [asdict(one) for one in found],
        }
        options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0 if all(all(one.replays.values()) for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
