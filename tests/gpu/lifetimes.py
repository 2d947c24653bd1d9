#!/usr/bin/env python3
"""Prove on this host's GPU that a graph with breaks keeps what its breaks read and write, and no
more than that.

    python lifetimes.py --out FILE.json         with a patched sglang importable (its site or PYTHONPATH)

Two sizes are captured in one pool, memory is handed out again and filled with NaN, and then both
are replayed in every order on new inputs. Every result must be bit for bit what the same operations
give without a graph. Exit code 0: all held; 3: neither the release nor the queue has a graph with
breaks.
"""  # noqa: E501

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from compare import Verdict

DEVICE = "cuda"
SIZES = (4096, 1024)  # captured from the largest to the smallest, as the runners do
HIDDEN, LAYERS = 256, 16
MIB = 1 << 20
RELEASES_OWN = (
    # from 0.5.14
    "sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph.breakable_cuda_graph",
    "sglang.srt.model_executor.breakable_cuda_graph.breakable_cuda_graph",  # 0.5.11 to 0.5.13
)
QUEUES_OWN = "sglang.srt.prefill_graph.breakable.graph"
NO_PRIMITIVE = 3

Tensor = torch.Tensor
Forward = Callable[[Tensor, Callable[..., Any]], Tensor]


@dataclass(frozen=True)
class Primitive:
    """A graph with breaks. capture(graph, pool, stream): a context manager; break_at: makes a
    function a break."""

    module: str
    graph: Callable[[], Any]
    capture: Callable[[Any, Any, Any], contextlib.AbstractContextManager]
    break_at: Callable[[Callable[..., Any]], Callable[..., Any]]


def find_primitive() -> Primitive | None:
    """The release's own, else the one that the queue brings; None where there is neither. Raises
    what their imports raise."""
    for name in (*RELEASES_OWN, QUEUES_OWN):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(str(error.name)):
                raise
            continue
        if name == QUEUES_OWN:
            return Primitive(name, module.Graph, module.Capture, module.break_at)
        return Primitive(
            name,
            module.BreakableCUDAGraph,
            module.BreakableCUDAGraphCapture,
            module.eager_on_graph(True),
        )
    return None


class Captured:
    """Graphs of one forward, one for each size, in one pool."""

    def __init__(self, primitive: Primitive, stream: Any):
        self.primitive, self.stream = primitive, stream
        self.pool = torch.cuda.graph_pool_handle()
        self.static = torch.zeros(SIZES[0], HIDDEN, device=DEVICE)
        self.graphs: dict[int, tuple[Any, Tensor]] = {}

    def add(self, size: int, forward: Forward) -> None:
        torch.cuda.synchronize()
        graph = self.primitive.graph()
        with self.primitive.capture(graph, self.pool, self.stream):
            result = forward(self.static[:size], self.primitive.break_at)
        self.graphs[size] = graph, result

    def replay(self, size: int) -> tuple[Tensor, Tensor]:
        """The new input, and what the graph makes of it."""
        graph, result = self.graphs[size]
        self.static.uniform_(-1, 1)
        graph.replay()
        return self.static[:size], result

    def held(self) -> int:
        """Bytes of the pool that tensors keep, beside the results."""
        blocks = (
            block
            for segment in torch.cuda.memory_snapshot()
            if tuple(segment["segment_pool_id"]) == tuple(self.pool)
            for block in segment["blocks"]
            if block["state"] != "inactive"
        )
        return sum(block["size"] for block in blocks) - sum(
            result.nbytes for _, result in self.graphs.values()
        )


def no_break(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def churn() -> list[Tensor]:
    """Tensors of NaN in whatever memory is free, of the sizes that the graphs use."""
    return [
        torch.full((size, HIDDEN), float("nan"), device=DEVICE) for size in SIZES for _ in range(64)
    ]


def wrong_replays(
    captured: Captured, forwards: dict[int, Forward], others: list[Tensor]
) -> list[str]:
    """Replays every size in every order, twice; says what was not right."""
    found = []
    for order in list(itertools.permutations(SIZES)) * 2:
        for size in order:
            new, result = captured.replay(size)
            if not torch.equal(result, forwards[size](new, no_break)):
                found.append(f"size {size} in order {order} is wrong")
    damaged = sum(not other.isnan().all() for other in others)
    return (
        [*found, f"replays wrote into {damaged} tensors that are not the graph's"]
        if damaged
        else found
    )


def verdict(what: str, wrong: list[str], **numbers: Any) -> Verdict:
    why = f"{len(wrong)} faults, first: {wrong[0]}" if wrong else "as without a graph"
    return Verdict(what, not wrong, why, numbers)


# The checks. Each forward is f(x, break_at), so that the same operations also run without a graph.


def add_into(a: Tensor, b: Tensor, out: Tensor) -> None:
    out.copy_(a + b)


def with_outside(outside: list[Tensor]) -> Forward:
    """Reads outside[0] in a break. It is looked up when the forward runs, so that the caller may
    drop it afterwards."""

    def forward(x: Tensor, break_at: Callable[..., Any]) -> Tensor:
        doubled = x * 2
        out = torch.empty_like(doubled)
        break_at(add_into)(doubled, outside[0], out)
        return out * 3

    return forward


def check_outside(primitive: Primitive, stream: Any) -> Verdict:
    """(a) An input that no segment made, dropped after the capture."""
    captured, eager = Captured(primitive, stream), {}
    for size in SIZES:
        outside = [torch.rand(size, HIDDEN, device=DEVICE)]
        eager[size] = outside[0].cpu()
        captured.add(size, with_outside(outside))
        del outside[:]
    others = churn()
    forwards = {size: with_outside([value.to(DEVICE)]) for size, value in eager.items()}
    return verdict(
        "an input from outside of the segments", wrong_replays(captured, forwards, others)
    )


def check_earlier(primitive: Primitive, stream: Any) -> Verdict:
    """(a) An input in the graphs' own pool, from an earlier capture: the next capture would get its
    memory."""
    captured, eager = Captured(primitive, stream), {}
    for size in SIZES:
        value = torch.rand(size, HIDDEN, device=DEVICE)
        made, cache = torch.cuda.CUDAGraph(), []
        torch.cuda.synchronize()
        made.capture_begin(pool=captured.pool)
        cache.append(value * 1)
        made.capture_end()
        made.replay()
        eager[size] = value.cpu()
        captured.add(size, with_outside(cache))
        del cache[:]
    forwards = {size: with_outside([value.to(DEVICE)]) for size, value in eager.items()}
    captured.add(512, with_layers)
    captured.replay(512)
    return verdict(
        "an input that an earlier capture made", wrong_replays(captured, forwards, churn())
    )


def with_layers(x: Tensor, break_at: Callable[..., Any]) -> Tensor:
    for layer in range(LAYERS):
        inner = x * 1.5 + layer
        out = torch.empty_like(inner)
        break_at(add_into)(inner, inner, out)
        x = torch.sin(out) + 0.5
    return x


def check_own(primitive: Primitive, stream: Any) -> Verdict:
    """(b) Inputs that segments of the same graph make: right, and not held."""
    captured = Captured(primitive, stream)
    for size in SIZES:
        captured.add(size, with_layers)
    wrong = wrong_replays(captured, dict.fromkeys(SIZES, with_layers), churn())
    held, all_inputs = captured.held(), 2 * LAYERS * sum(SIZES) * HIDDEN * 4
    if held > all_inputs / 4:
        wrong.append(
            f"{held / MIB:.1f} MiB are held; all inputs of all breaks are"
            f" {all_inputs / MIB:.1f} MiB"
        )
    return verdict(
        "inputs of the graph's own segments",
        wrong,
        held_mib=held / MIB,
        inputs_mib=all_inputs / MIB,
    )


def with_output(x: Tensor, break_at: Callable[..., Any]) -> Tensor:
    made = break_at(lambda a: torch.sin(a) + 1)(x * 2)
    again = break_at(lambda a: torch.cos(a))(made)  # another break's output
    return made * 3 + again


def check_output(primitive: Primitive, stream: Any) -> Verdict:
    """(c) A break's output that the next segment and the next break read."""
    captured = Captured(primitive, stream)
    for size in SIZES:
        captured.add(size, with_output)
    others = churn()
    return verdict(
        "a break's output", wrong_replays(captured, dict.fromkeys(SIZES, with_output), others)
    )


CHECKS = (check_outside, check_earlier, check_own, check_output)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    options = parser.parse_args(words)
    primitive = find_primitive()
    if primitive is None:
        print(
            "no graph with breaks here: neither the release nor the queue brings one",
            file=sys.stderr,
        )
        return NO_PRIMITIVE
    found, stream = [], torch.cuda.Stream()
    for check in CHECKS:
        with torch.cuda.stream(stream):  # freed memory goes to tensors of the same stream
            try:
                found.append(check(primitive, stream))
            except Exception as error:
                found.append(
                    Verdict(
                        (check.__doc__ or "").strip(), False, f"{type(error).__name__}: {error}"
                    )
                )
        print(
            f"{'ok  ' if found[-1].good else 'FAIL'} {found[-1].what}: {found[-1].why}", flush=True
        )
    record = {
        "primitive": primitive.module,
        "sglang": importlib.import_module("sglang.version").__version__,
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "checks": [one.as_json() for one in found],
    }
    options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0 if all(one.good for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
