"""How far a tile of the scan's own kernels is from sums in float64: for sweep.py, on its layers.

A compiler can be wrong for one tile and right for the next: each tile is held against the formula
of Mamba2's recurrence, unrolled, before anyone may choose it. Uneven requests, some behind a state,
some with a state to keep. Every launch has to give the same bits again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

LENGTHS = (1, 127, 300, 129, 16)
WARM = (False, True, False, True, True)
TRACKED = (0, 127, 256, 128, 0)  # rows behind which a state is kept
AGAIN = 4  # launches more; a miscompiled kernel was right in some launches and wrong in others
# bfloat16 rounds to 1/256. A sum of roundings stays below one part in a hundred, taken over all
# elements; the worst of millions was below a twelfth of their root mean square.
MEAN, WORST = 0.01, 0.125


@dataclass(frozen=True)
class Apart:
    """mean: norm of the difference / norm. worst: largest difference / root mean square."""

    mean: float
    worst: float
    same_bits: bool

    @property
    def why(self) -> str:
        """Why these results cannot be used; "" if they can."""
        if not self.same_bits:
            return "launches differ in bits"
        if not (self.mean <= MEAN and self.worst <= WORST):  # NaN is neither
            return f"apart by {self.mean:.2g} in the mean, {self.worst:.2g} at worst"
        return ""


def apart(
    layer: Any, states: dict[str, int], scan: dict[str, int], chunk: int, device: str = "cuda"
) -> Apart:
    """layer: a sweep.Layer. Tiles as ssd.Launches takes them. Raises what a launch raises."""
    inputs = _inputs(layer, device)
    mine = [_launched(layer, inputs, states, scan, chunk) for _ in range(1 + AGAIN)]
    same = all(torch.equal(a, b) for other in mine[1:] for a, b in zip(mine[0], other))
    pairs = list(zip(mine[0], _sums(layer, inputs)))
    return Apart(max(_mean(*pair) for pair in pairs), max(_worst(*pair) for pair in pairs), same)


def _mean(mine: torch.Tensor, plain: torch.Tensor) -> float:
    return ((mine.double() - plain).norm() / plain.norm()).item()


def _worst(mine: torch.Tensor, plain: torch.Tensor) -> float:
    return ((mine.double() - plain).abs().max() / plain.square().mean().sqrt()).item()


def _inputs(layer: Any, device: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    rows, inner, shared = sum(LENGTHS), layer.heads * layer.size, layer.groups * layer.d_state
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    # A projection's columns in one tensor, as the mixer has them: rows are not contiguous.
    wide = torch.randn(rows, inner + 2 * shared + layer.heads, device=device, dtype=dtype)
    x, b, c, dt = wide.split([inner, shared, shared, layer.heads], dim=-1)
    slots = 2 * len(LENGTHS) + 1
    return {
        "x": x,
        "b": b,
        "c": c,
        "dt": dt - 3,
        "a": -torch.rand(layer.heads, device=device),
        "d": torch.rand(layer.heads, device=device),
        "dt_bias": torch.rand(layer.heads, device=device),
        "pool": torch.randn(slots, layer.heads, layer.size, layer.d_state, device=device),
    }


def _launched(
    layer: Any,
    inputs: dict[str, torch.Tensor],
    states: dict[str, int],
    scan: dict[str, int],
    chunk: int,
) -> list[torch.Tensor]:
    """The result's rows, and the whole pool: slots of nobody have to stay as they were."""
    from sglang.srt.prefill_graph.kernels import ssd

    device, count = inputs["x"].device, len(LENGTHS)
    shape = ssd.Shape.of(layer.heads, layer.groups, layer.size, layer.d_state, chunk)
    if shape is None:
        raise ValueError("no blocks for these sizes")
    plan = ssd.plan(LENGTHS, chunk, device, (TRACKED, range(count + 1, 2 * count + 1)))
    out = torch.full_like(inputs["x"].contiguous(), float("nan"))
    pool = inputs["pool"].clone()
    names = ("x", "b", "c", "dt", "a", "d", "dt_bias")
    launches = ssd.Launches(
        shape,
        plan,
        *(inputs[name] for name in names),
        out,
        pool,
        torch.arange(1, count + 1, device=device, dtype=torch.int32),
        torch.tensor(WARM, device=device),
    )
    launches.steps()
    launches.states(states)
    launches.scan(scan)
    return [out, pool]


def _sums(layer: Any, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The same in float64: y_l = sum over m <= l of exp(A_l - A_m) (c_l . b_m) dt'_m x_m + d
    x_l."""
    pool, outs, begin = inputs["pool"].double().clone(), [], 0
    for number, rows in enumerate(LENGTHS):
        part = {
            k: v[begin : begin + rows].double()
            for k, v in inputs.items()
            if k in "xbc" or k == "dt"
        }
        start = pool[number + 1] if WARM[number] else torch.zeros_like(pool[0])
        y, end, kept = request(layer, part, inputs, start, TRACKED[number])
        outs.append(y)
        pool[number + 1] = end
        if TRACKED[number]:
            pool[len(LENGTHS) + number + 1] = kept
        begin += rows
    return [torch.cat(outs), pool]


def request(
    layer: Any,
    part: dict[str, torch.Tensor],
    inputs: dict[str, torch.Tensor],
    start: torch.Tensor,
    keep: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = part["x"].unflatten(-1, (layer.heads, layer.size))
    b, c = (
        part[name]
        .unflatten(-1, (layer.groups, layer.d_state))
        .repeat_interleave(layer.heads // layer.groups, dim=1)
        for name in "bc"
    )
    step = torch.nn.functional.softplus(part["dt"] + inputs["dt_bias"].double())
    total = (step * inputs["a"].double()).cumsum(0)
    weight = torch.einsum("lhn,mhn->lmh", c, b) * past(total) * step[None]
    y = torch.einsum("lmh,mhp->lhp", weight, x) + inputs["d"].double()[None, :, None] * x
    y += total.exp()[..., None] * torch.einsum("lhn,hpn->lhp", c, start)

    def state(rows: int) -> torch.Tensor:
        left = (total[rows - 1] - total[:rows]).exp() * step[:rows]
        grown = torch.einsum("mh,mhp,mhn->hpn", left, x[:rows], b[:rows])
        return total[rows - 1].exp()[:, None, None] * start + grown

    return y.flatten(1), state(len(x)), state(keep) if keep else start


def past(total: torch.Tensor) -> torch.Tensor:
    """exp(A_l - A_m) for m <= l, else 0. total: (rows, heads); returns (rows, rows, heads)."""
    later = torch.ones(len(total), len(total), device=total.device, dtype=torch.bool).triu(1)
    return (total[:, None] - total[None]).masked_fill(later[..., None], -torch.inf).exp()
