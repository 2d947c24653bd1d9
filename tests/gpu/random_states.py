#!/usr/bin/env python3
"""Hold random prefills in captured layers against eager ones: states, outputs and what comes next.

    python random_states.py --out RESULTS       # in an unpacked bundle, or with --tree and --site
    python random_states.py --out RESULTS --family gdn --seed 7 --batches 72

One Mamba2 layer (Nemotron-Nano-9B-v2) and one gated delta net (Qwen3-Next), without a server: each
is captured in one CUDA graph for each size, with the queue's own tables, and replayed for random
batches. Requests begin, go on from a cached prefix or from an earlier part; some leave a state for
the prefix cache. Every size comes right behind every other. Rows behind a batch and slots of
requests that begin hold NaN, and slots of nobody a pattern.

Bit for bit: outputs and states as the eager prefill's, on a copy of the pool; a request alone as
among others; a state that is kept as that of a prefill that ends there; tokens that are decoded
from either. Within limits: the release's own scan, and the formulas in float64
(random_states_layers.py). Prints a table for each layer, and writes RESULTS/random_states.json.
Exit code 0: all held.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import commandline
from random_states_drawn import COLD, HIT, Batch, Drawn, Ledger, Request

FAMILIES = ("mamba2", "gdn")
SIZES = (16, 64, 256, 1024, 2048, 5120)
BATCHES = 300
# of the pool: a table's most requests, as many kept states, those that go on later, and spare ones
SLOTS = 64 + 64 + 24 + 8
STEPS = 3  # tokens that each request decodes
FORMULA_EVERY = 4  # batches of which one has a request computed in float64
FORMULA_ROWS = 384  # of that request at most: three chunks of the scan, six of the delta rule
TWO = 2  # two results that are within limits of the formula can be twice as far from each other


@dataclass(frozen=True)
class Replayed:
    """A batch, its rows of input, the pool before and behind it, and all rows of output."""

    batch: Batch
    rows: Any
    before: Any
    after: Any
    output: Any


def main() -> int:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.inside:  # again, where the tree's modules are found
        place = commandline.place_of(options)
        words = [place.python, __file__, *sys.argv[1:], "--inside"]
        return subprocess.run(words, env=place.environment()).returncode
    import random_states_layers as layers
    import sglang
    import torch

    record = {"sglang": sglang.__version__, "torch": torch.__version__}
    record |= {"gpu": torch.cuda.get_device_name(), "layers": {}}
    held = True
    for family in options.family:
        torch.manual_seed(options.seed)
        found, ledger = examine(layers.LAYERS[family]("cuda"), SIZES, options.seed, options.batches)
        record["layers"][family], held = found, held and ledger.held
        print("\n".join([said(family, found), *ledger.table()]), flush=True)
        file = options.out / "random_states.json"
        file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0 if held else 1


def said(family: str, found: dict[str, Any]) -> str:
    """One line above the table."""
    counts = found["requests"]
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))
    return (
        f"{family}: {found['batches']} batches, seed {found['seed']}, {found['seconds']:.0f} s\n"
        f"{found['orders']} of {found['all_orders']} orders of sizes; {kinds}"
    )


def examine(
    layer: Any, sizes: Sequence[int], seed: int, batches: int, slots: int = SLOTS
) -> tuple[dict[str, Any], Ledger]:
    """A layer of random_states_layers through `batches` random batches."""
    began, counts, last, orders = time.time(), Counter(), None, set()
    held = Held(layer, sizes, slots, seed)
    drawn = Drawn(seed, sizes, held.places, slots, layer.step)
    for first in range(0, batches, 2):
        # Nothing else is replayed between the two: the second comes right behind the first.
        pair = []
        for _ in range(first, min(first + 2, batches)):
            batch = drawn.batch()
            pair.append(held.replayed(batch))
            if len(pair) == TWO:
                orders.add((last, batch.size))
            last = batch.size
            counts.update(one.kind for one in batch.requests)
            counts["kept"] += len(batch.kept)
        for number, one in enumerate(pair, start=first):
            held.check(number, one)
        held.pool.copy_(pair[-1].after)
        if first % 50 == 0:
            commandline.say(f"{layer.name}: batch {first}")
    found = dict(seed=seed, batches=batches, sizes=list(sizes), seconds=time.time() - began)
    found |= dict(orders=len(orders), all_orders=len(sizes) ** 2, requests=dict(counts))
    found["checks"] = {what: asdict(check) for what, check in held.ledger.checks.items()}
    return found, held.ledger


class Held:
    """A layer, captured at each of `sizes`, and what is found of it."""

    def __init__(self, layer: Any, sizes: Sequence[int], slots: int, seed: int) -> None:
        from sglang.srt.prefill_graph.captured import layers, states, tables

        self.layer, self.ledger, self.source = layer, Ledger(), random.Random(seed)
        self.places, self.device = tables.places, layer.device
        self.pool, self.other, self.third = (layer.pool(slots) for _ in range(3))
        if reason := layer.why_not(self.pool):
            raise SystemExit(f"{layer.name} is not captured here: {reason}")
        pool = SimpleNamespace(get_mamba_indices=lambda requests: requests.int())
        self.states = states.States(layers.Captured(pool, layer.step, layer.chunk))
        self.static = layer.rows(max(sizes))
        self.graphs: dict[int, Callable[[], Any]] = {}
        self._capture(sizes)
        for part in self.pool.parts:  # what a slot of nobody holds; captures have written to 0
            numbers = self._tensor(range(slots)) + 0.5
            part.copy_(numbers.view(-1, *[1] * (part.dim() - 1)).expand_as(part))

    def _tensor(self, values: Iterable[Any], **kind: Any) -> Any:
        import torch

        return torch.tensor(list(values), device=self.device, **kind)

    def _capture(self, sizes: Sequence[int]) -> None:
        """The largest first, all in one pool of memory, each one run once before, as the runners
        do. On a CPU there is no graph: a replay is a call."""
        import torch

        memory = torch.cuda.graph_pool_handle() if self.device == "cuda" else None
        for size in sorted(sizes, reverse=True):
            self.graphs[size] = self._graph(size, memory)

    def _graph(self, size: int, memory: Any) -> Callable[[], Any]:
        import torch

        made, rows = self.states.placeholder(size, self.device), self.static[:size]

        def run() -> Any:
            with torch.no_grad():
                return self.layer.captured(self.pool, made, rows)

        if memory is None:
            return run
        run()  # kernels compile, and are timed where the release does that
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory):
            output = run()

        def replay() -> Any:
            graph.replay()
            return output

        return replay

    # ------------------------------------------------------------ replays

    def replayed(self, batch: Batch) -> Replayed:
        """A batch on the pool as it is, but for the slots that a scheduler would have filled."""
        conv, ssm = self.pool.parts
        for one in batch.requests:
            if one.kind == COLD:  # its slot is not read: it may hold anything
                conv[one.slot], ssm[one.slot] = float("nan"), float("nan")
            elif one.kind == HIT:
                conv[one.slot].normal_()
                ssm[one.slot] = self.layer.state()
        rows, before = self.layer.rows(batch.rows), self.pool.clone()
        output = self.replay(batch.requests, rows, batch.size)
        return Replayed(batch, rows, before, self.pool.clone(), output)

    def replay(self, requests: Sequence[Request], rows: Any, expected: int | None = None) -> Any:
        """All rows of the output, those behind the batch too, in the size that a runner chooses."""
        self.static.fill_(float("nan"))
        self.static[: len(rows)].copy_(rows)
        batch = self.forward_batch(requests)
        if reason := self.states.why_not(batch):
            raise RuntimeError(f"a batch would run eagerly: {reason}")
        size = self.states.size_for(batch)
        if expected not in (None, size):
            raise RuntimeError(f"a batch drawn for {expected} rows replays {size}")
        self.states.describe(batch, size)
        return self.graphs[size]().clone()

    def forward_batch(self, requests: Sequence[Request]) -> Any:
        """What a ForwardBatch says of these requests."""
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        lengths, prefixes = ([getattr(one, n) for one in requests] for n in ("length", "prefix"))
        made = SimpleNamespace(
            forward_mode=ForwardMode.EXTEND,
            input_ids=range(sum(lengths)),
            batch_size=len(requests),
            req_pool_indices=self._tensor(one.slot for one in requests),
            seq_lens=self._tensor(map(sum, zip(lengths, prefixes))),
            extend_num_tokens=sum(lengths),
            extend_seq_lens=self._tensor(lengths),
            extend_prefix_lens=self._tensor(prefixes),
            extend_seq_lens_cpu=lengths,
            extend_prefix_lens_cpu=prefixes,
            spec_info=None,
            mamba_track_mask=None,
        )
        if any(one.keep for one in requests):
            asked = [one.asked + one.prefix if one.keep else -1 for one in requests]
            made.mamba_track_mask = self._tensor(one.keep > 0 for one in requests)
            made.mamba_track_seqlens = self._tensor(asked)
            made.mamba_track_indices = self._tensor(one.keep_slot for one in requests)
        return made

    # ------------------------------------------------------------ what is compared

    def check(self, number: int, one: Replayed) -> None:
        import torch

        self.ledger.where = f"batch {number} of {one.batch.size} rows"
        with torch.no_grad():
            self._itself(one)
            self._windows(one)
            pools = {"graph": one.after, "eager": self._eager(one)}
            if self.layer.releases_own:
                self._release(one)
            decoded = self._decoded(one, pools)
            short = [i for i, length in enumerate(one.batch.lengths) if length <= FORMULA_ROWS]
            if number % FORMULA_EVERY == 0 and short:
                self._formula(one, self.source.choice(short), *decoded)
            self._alone(one)

    def _itself(self, one: Replayed) -> None:
        """What needs nothing to compare with."""
        batch, bits = one.batch, self.ledger.bits
        written = {*batch.slots, *(request.keep_slot for request in batch.kept)}
        bits("slots of others are as they were", len(changed(one.before, one.after) - written))
        own = self._tensor(sorted(written))
        values = [one.output[: batch.rows], *(part[own] for part in one.after.parts)]
        bits("no NaN is in outputs or own states", sum(map(infinite, values)))
        behind = one.output[batch.rows :]
        bits("rows behind the batch are zero", (behind != 0).sum().item())  # NaN is not 0

    def _windows(self, one: Replayed) -> None:
        """The convolution keeps the last three inputs."""
        import torch

        mixed, wanted, slots = self.layer.mixed(one.rows), [], []
        for number, request in enumerate(one.batch.requests):
            rows, start = mixed[one.batch.part(number)], self._start(one, request)[0]
            wanted.append(torch.cat([start, rows[-3:].T], 1)[:, -3:])
            slots.append(request.slot)
            if request.keep:
                wanted.append(rows[request.keep - 3 : request.keep].T)
                slots.append(request.keep_slot)
        found = one.after.conv[self._tensor(slots)]
        self.ledger.bits("windows are the last inputs", differing(found, torch.stack(wanted)))

    def _start(self, one: Replayed, request: Request) -> tuple[Any, Any]:
        """What a request goes on from: a window and a state."""
        found = tuple(part[request.slot] for part in one.before.parts)
        return tuple(map(zeros, found)) if request.kind == COLD else found

    def _begun(self, one: Replayed, into: Any) -> Any:
        """The pool before a batch, as the scheduler hands out slots: those of requests that begin
        are zero."""
        into.copy_(one.before)
        cold = [request.slot for request in one.batch.requests if request.kind == COLD]
        for part in into.parts if cold else ():
            part[self._tensor(cold)] = 0
        return into

    def _eager(self, one: Replayed) -> Any:
        """The patched release's eager prefill, on a copy of the pool, which is returned."""
        from sglang.srt.prefill_graph.kernels import tracked_states

        batch, pool, wanted = one.batch, self._begun(one, self.other), None
        if batch.kept:
            rows, slots = (
                [getattr(request, name) for request in batch.requests]
                for name in ("keep", "keep_slot")
            )
            wanted = tracked_states.WantedStates(self.layer.step, rows, slots)
        given = self.forward_batch(batch.requests), one.rows.clone(), wanted
        output, bits = self.layer.eager(pool, *given), self.ledger.bits
        bits("outputs are those of eager", differing(one.output[: batch.rows], output))
        other = [
            {slot for slot, same in enumerate(equal(*pair)) if not same}
            for pair in zip(one.after.parts, pool.parts)
        ]
        kept = {request.keep_slot for request in batch.kept}
        bits("windows are those of eager", len(other[0] & {*batch.slots}))
        bits("states are those of eager", len(other[1] & {*batch.slots}))
        if kept:  # their windows are held against the inputs
            bits("kept states are those of eager", len(other[1] & kept))
        return pool

    def _release(self, one: Replayed) -> None:
        batch, pool = one.batch, self._begun(one, self.third)
        output = self.layer.release(pool, self.forward_batch(batch.requests), one.rows.clone())
        own, near = self._tensor(batch.slots), self.ledger.near
        limits = self.layer.limits.times(TWO)
        near("outputs near the release's scan", apart(one.output[: batch.rows], output), limits)
        states = apart(one.after.ssm[own], pool.ssm[own])
        near("states near the release's scan", states, limits)

    def _decoded(self, one: Replayed, pools: dict[str, Any]) -> tuple[Any, Any, Any]:
        """A few tokens more of each request: their rows, the outputs, and the states behind them,
        from what the graph left."""
        import torch

        slots = self._tensor(one.batch.slots)
        tokens = self.layer.rows(STEPS * len(slots)).unflatten(0, (STEPS, -1))
        made = []
        for name, pool in pools.items():
            kept = self.third.copy_(pool) if name == "graph" else pool
            steps = [self.layer.decode(kept, slots, step.clone()) for step in tokens]
            made.append((torch.stack(steps), *(part[slots] for part in kept.parts)))
        bits = sum(differing(a, b) for a, b in zip(*made, strict=True))
        self.ledger.bits("decoding goes on as behind eager", bits)
        return tokens, made[0][0], made[0][2]

    def _formula(self, one: Replayed, number: int, tokens: Any, decoded: Any, then: Any) -> None:
        """One request, and its decoded tokens, in float64."""
        request, part = one.batch.requests[number], one.batch.part(number)
        limits, near = self.layer.limits.times(1), self.ledger.near
        output, state = self.layer.formula(one.rows[part], *self._start(one, request))
        near("outputs near float64", apart(one.output[part], output), limits)
        wide = (limits[0], self.layer.limits.states)
        near("states near float64", apart(one.after.ssm[request.slot], state), wide)
        window = one.after.conv[request.slot]  # held against the inputs
        output, state = self.layer.formula(tokens[:, number], window, state)
        near("decoded outputs near float64", apart(decoded[:, number], output), limits)
        near("decoded states near float64", apart(then[number], state), limits)

    def _alone(self, one: Replayed) -> None:
        """One request in a batch of its own, and again as far as its kept state. Those that keep
        one are chosen more often."""
        batch = one.batch
        kept = [i for i, request in enumerate(batch.requests) if request.keep]
        number = self.source.choice([*kept, self.source.randrange(len(batch.requests))])
        request, rows = batch.requests[number], one.rows[batch.part(number)]
        self.pool.copy_(one.before)
        output = self.replay([request], rows)[: len(rows)]
        slots = [request.slot, *([request.keep_slot] if request.keep else [])]
        pairs = [(output, one.output[batch.part(number)])]
        pairs += [(a[slots], b[slots]) for a, b in zip(self.pool.parts, one.after.parts)]
        bits = self.ledger.bits
        bits("a request alone is as among others", sum(differing(*pair) for pair in pairs))
        if request.keep:
            self.pool.copy_(one.before)
            ends = Request(request.keep, request.kind, request.slot, request.prefix)
            self.replay([ends], rows[: request.keep])
            pairs = zip(self.pool.parts, one.after.parts)
            off = sum(differing(a[request.slot], b[request.keep_slot]) for a, b in pairs)
            bits("a kept state is one of a prefill", off)


def zeros(tensor: Any) -> Any:
    return tensor.new_zeros(tensor.shape)


def infinite(tensor: Any) -> int:
    return (~tensor.isfinite()).sum().item()


def integers(tensor: Any) -> Any:
    """The bits of its values: NaN is then as any other, and 0.0 is not -0.0."""
    import torch

    return tensor.contiguous().view(torch.int16 if tensor.element_size() == TWO else torch.int32)


def differing(one: Any, other: Any) -> int:
    """How many values have other bits."""
    if one.shape != other.shape or one.dtype != other.dtype:
        raise ValueError(f"{one.shape} of {one.dtype}, and {other.shape} of {other.dtype}")
    return (integers(one) != integers(other)).sum().item()


def equal(one: Any, other: Any) -> list[bool]:
    """Of each slot, whether it has the same bits in both."""
    return (integers(one) == integers(other)).flatten(1).all(1).tolist()


def changed(before: Any, after: Any) -> set[int]:
    """The slots of a pool of which a bit is another."""
    pairs = zip(before.parts, after.parts)
    return {slot for pair in pairs for slot, same in enumerate(equal(*pair)) if not same}


def apart(found: Any, wanted: Any) -> tuple[float, float]:
    """In the mean and at worst, as scan_answers.Apart says."""
    off, plain = found.double() - wanted.double(), wanted.double()
    worst = off.abs().max() / plain.square().mean().sqrt()
    return (off.norm() / plain.norm()).item(), worst.item()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commandline.add_place(parser)
    parser.add_argument(
        "--family", nargs="+", choices=FAMILIES, default=FAMILIES, help="default: both"
    )
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    parser.add_argument(
        "--batches",
        type=commandline.count,
        default=BATCHES,
        help=f"of each layer (default {BATCHES}; {2 * len(SIZES) ** 2} have all orders of sizes)",
    )
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
