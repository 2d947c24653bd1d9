"""A captured Mamba2 layer on the same requests in other company, its kernels interpreted: which
bits change."""

import torch
from sglang.srt.prefill_graph.captured import mamba2 as captured
from sglang.srt.prefill_graph.captured import tables

from host.references import compare_captured, compare_mamba2, compare_scan


class Layer:
    """A mixer and its pool. Request i has slot i + 1: a drawn state where it goes on from one, else
    NaN, as in all other slots."""

    def __init__(self, lengths, prefixes, sizes, chunk):
        torch.manual_seed(3)
        self.mixer, count = compare_captured.mixer_row_by_row(), len(lengths)
        self.lengths, self.prefixes = lengths, prefixes
        self.before = compare_mamba2.drawn_pool(self.mixer, count + 3)
        goes_on = [slot for slot, prefix in enumerate(prefixes, start=1) if prefix]
        for state in self.before:
            state[[slot for slot in range(count + 3) if slot not in goes_on]] = float("nan")
        self.hidden = [torch.randn(length, 128) for length in lengths]
        cpu = torch.device("cpu")
        self.tables = {size: tables.Tables(size, count, chunk, cpu) for size in sizes}

    def run(self, requests, size, pool, parts=None, goes_on=False):
        """Output of each request; parts: which of its rows are given; goes_on: all from their
        states. NaN is behind them."""
        given = [self.hidden[i][parts[i] if parts else slice(None)] for i in requests]
        lengths = [len(rows) for rows in given]
        hidden = torch.full((size, 128), float("nan"))
        hidden[: sum(lengths)] = torch.cat(given)
        warm = [goes_on or self.prefixes[i] > 0 for i in requests]
        cache = compare_mamba2.backend(*pool).req_to_token_pool.mamba2_layer_cache(0)
        with torch.no_grad():
            self.tables[size].fill(lengths, warm, torch.tensor(requests) + 1)
            output = captured.run(self.mixer, cache, self.tables[size], hidden)
        return output[: sum(lengths)].split(lengths)

    def pool(self):
        return tuple(state.clone() for state in self.before)


def bits(found, wanted):
    """How many values differ, NaN among them."""
    pairs = zip(found, wanted, strict=True)
    return sum((a.view(torch.int32) != b.view(torch.int32)).sum().item() for a, b in pairs)


def compare(lengths, prefixes, sizes, chunk=16):
    """All requests through the first of `sizes`; what differs from that, in output or any slot of
    the pool:

    `sizes`: through every size, up and down again, by the tables that served the others; `alone`:
    each request for itself; `order`: in reverse; `parts`: each request's first chunk for itself,
    and then the rest of it. `finite`: whether no NaN is in outputs or own slots; `others`: values
    of other slots that have changed.
    """
    layer, everyone = Layer(lengths, prefixes, sizes, chunk), list(range(len(lengths)))
    found = dict.fromkeys(("sizes", "alone", "order", "parts"), 0)
    with compare_scan.small(chunk):
        pool = layer.pool()
        wanted = layer.run(everyone, sizes[0], pool)

        def differs(outputs, states):
            return bits(outputs, wanted) + bits(states, pool)

        for size in [*sizes, *sizes[-2::-1]]:
            now = layer.pool()
            found["sizes"] += differs(layer.run(everyone, size, now), now)
        now = layer.pool()
        single = [layer.run([i], sizes[0], now)[0] for i in everyone]
        found["alone"] = differs(single, now)
        now = layer.pool()
        found["order"] = differs(layer.run(everyone[::-1], sizes[-1], now)[::-1], now)
        now = layer.pool()
        first = layer.run(everyone, sizes[0], now, [slice(0, chunk)] * len(lengths))
        rest = [i for i in everyone if lengths[i] > chunk]
        more = layer.run(rest, sizes[0], now, [slice(chunk, None)] * len(lengths), goes_on=True)
        whole = list(first)
        for i, rows in zip(rest, more, strict=True):
            whole[i] = torch.cat([whole[i], rows])
        found["parts"] = differs(whole, now)
    own = [i + 1 for i in everyone]
    others = [slot for slot in range(len(pool[0])) if slot not in own]
    kept = [state[others] for state in pool], [state[others] for state in layer.before]
    values = [*wanted, *(state[own] for state in pool)]
    return found | dict(
        others=bits(*kept), finite=all(part.isfinite().all().item() for part in values)
    )
