"""The captured layers' convolution, interpreted: a short request before a long one, run first."""

import torch
from sglang.srt.prefill_graph.kernels import convolution, ssd


def compare(rows):
    """A request of `rows` rows, one of 5 behind it in the batch and before it in the table, and
    rows of none.

    Returns whether each request has the outputs that it has alone, and the rows behind them are as
    they were.
    """
    torch.manual_seed(rows)
    features, lengths, total = 32, (5, rows), 5 + rows
    x = torch.randn(16, features)
    weight = torch.randn(features, 4)
    pool = torch.randn(3, features, 3)
    place = [slice(rows, total), slice(0, rows)]  # of each request, in the table's order

    def run(x, lengths, starts, slots):
        def table(values):
            return torch.tensor(values, dtype=torch.int32)

        ends = table([0, *lengths]).cumsum(0, dtype=torch.int32)
        first = table(range(len(lengths) + 1))
        plan = ssd.Plan(16, len(lengths), len(lengths), ends, first, table(starts), table(lengths))
        out = torch.full_like(x, 7.0)
        warm = table([1] * len(lengths))
        convolution.convolve(
            x, weight, None, pool.clone(), out, plan, first[:-1], table(slots), warm
        )
        return out

    both = run(x, lengths, [part.start for part in place], [1, 2])
    alone = [
        run(x[part].clone(), [length], [0], [slot])
        for part, length, slot in zip(place, lengths, (1, 2))
    ]
    return bool((both[total:] == 7).all()) and all(
        torch.equal(both[part], one) for part, one in zip(place, alone)
    )
