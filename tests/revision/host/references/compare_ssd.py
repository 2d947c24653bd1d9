"""The release's scan of a Mamba2 prefill, its kernels interpreted, against the recurrence in
float64; and the launches of a comparison."""

import torch
import torch.nn.functional as F
from sglang.srt.layers.attention.mamba import mamba, mamba2_metadata
from sglang.srt.prefill_graph.kernels import tiles
from triton.runtime import autotuner, interpreter

from host.references import mamba2

HEADS, GROUPS = 4, 2


class Launches:
    """Every launch while the context lasts. seen: (kernel, the words of its launch)."""

    def __enter__(self):
        self.seen = []
        self.before = interpreter.GridExecutor.__call__, autotuner.Autotuner.run
        launch, run = self.before

        def launched(executor, *args, **words):
            self.seen.append((executor.fn, words))
            return launch(executor, *args, **words)

        def untimed(kernel, *args, **words):
            kernel.configs = kernel.configs[:1]  # nothing to time here
            return run(kernel, *args, **words)

        interpreter.GridExecutor.__call__, autotuner.Autotuner.run = launched, untimed
        return self

    def __exit__(self, *_):
        interpreter.GridExecutor.__call__, autotuner.Autotuner.run = self.before

    def names(self):
        return [kernel.__name__ for kernel, _ in self.seen]

    def of_scan(self):
        return [name for name in self.names() if "conv1d" not in name and "norm" not in name]


def drawn(lengths, prefixes, size, d_state, dtype, heads=HEADS, groups=GROUPS):
    """Tensors of a layer's prefill, and its requests' states (zero for those without a prefix)."""
    tokens, states = sum(lengths), torch.randn(len(lengths), heads, size, d_state)
    x, b, c = (
        torch.randn(tokens, *shape).to(dtype)
        for shape in ((heads, size), (groups, d_state), (groups, d_state))
    )
    dt = torch.randn(tokens, heads).to(dtype)
    bias = torch.randn(heads)
    a = -2 * torch.rand(heads)
    d = torch.randn(heads)
    return x, dt, a, b, c, d, bias, states * (torch.tensor(prefixes) > 0)[:, None, None, None]


def expected(lengths, x, dt, a, b, c, d, bias, states):
    """The recurrence in float64: outputs of all requests, and each one's state behind them."""
    x, dt, a, b, c, d, bias, states = (
        tensor.double() for tensor in (x, dt, a, b, c, d, bias, states)
    )
    step, rows, made = F.softplus(dt + bias), 0, []
    for length, state in zip(lengths, states, strict=True):
        part = slice(rows, rows + length)
        made.append(mamba2.scan(x[part], step[part], a, b[part], c[part], d, state))
        rows += length
    return torch.cat([output for output, _ in made]), torch.stack([state for _, state in made])


def compare(lengths, prefixes, sizes=None, size=16, d_state=32, dtype="float32", chunk=32):
    """sizes: (head size, state size) whose measured tiles the kernels take; None: the safe ones.

    Returns the largest differences of the outputs and of the states.
    """
    torch.manual_seed(4)
    tiles.of_release = lambda kernel, *_: tile(kernel, sizes)
    values = drawn(lengths, prefixes, size, d_state, getattr(torch, dtype))
    x, dt, a, b, c, d, bias, states = values
    cu = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(torch.int32)
    warm = any(prefixes)
    indices = offsets = None
    if warm:
        indices, offsets = mamba2_metadata.Mamba2Metadata._query_start_loc_to_chunk_indices_offsets(
            cu, chunk, sum(lengths)
        )
    out = torch.full_like(x, float("nan"))
    with Launches():
        left = mamba.mamba_chunk_scan_combined(
            x[None],
            dt[None],
            a,
            b[None],
            c[None],
            chunk_size=chunk,
            D=d,
            z=None,
            dt_bias=bias,
            seq_idx=torch.repeat_interleave(
                torch.arange(len(lengths), dtype=torch.int32), cu.diff()
            )[None],
            chunk_indices=indices,
            chunk_offsets=offsets,
            cu_seqlens=cu,
            initial_states=states if warm else None,
            return_varlen_states=True,
            return_final_states=False,
            dt_softplus=True,
            dt_limit=(0.0, float("inf")),
            out=out[None],
            state_dtype=torch.float32,
        )
    wanted = expected(lengths, *values)
    return dict(
        output=(out - wanted[0]).abs().max().item(), state=(left - wanted[1]).abs().max().item()
    )


def tile(kernel, sizes):
    """The tile of a kernel of the release, whichever GPU or CPU it runs on."""
    key = (kernel, 0 if kernel == "bmm" else sizes[0], sizes[1]) if sizes else None
    return tiles.PLAIN.get(kernel) or tiles.RELEASE.get(key, tiles.SAFE)
