"""The gated delta net's split op, with the release's own layer and kernels interpreted, against the
plain reference."""

from host import interpreted

interpreted.start()

import contextlib
import functools
import importlib
from types import SimpleNamespace

import torch
from host import graph, models
from host.references import gdn

LAYER, SLOTS, TYPE = 1, 4, torch.float16  # the chunked kernels refuse float32


@functools.lru_cache
def fla():
    """The package of the release's kernels."""
    for package in ("sglang.srt.layers.attention.fla", "sglang.kernels.ops.attention.fla"):
        with contextlib.suppress(ImportError):  # the latter from 0.5.16
            return importlib.import_module(f"{package}.chunk").__package__
    raise ImportError("this release has no gated delta rule where it is known")


@functools.lru_cache
def layer(**changes):
    """A Qwen3GatedDeltaNet with weights that make every part of it matter. changes: to its model's
    config."""
    model = models.build(
        "qwen3_next",
        device="cpu",
        dtype=TYPE,
        num_hidden_layers=4,
        torch_dtype="float16",
        **changes,
    )
    made = model.model.layers[LAYER].linear_attn
    torch.manual_seed(1)
    with torch.no_grad():
        made.conv1d.weight.normal_(std=0.5)
        made.in_proj_qkvz.weight.normal_(std=0.1)
        made.in_proj_ba.weight.normal_(std=0.1)
        made.A_log.copy_(torch.rand_like(made.A_log))
        made.norm.weight.copy_(1 + 0.1 * torch.randn(made.norm.weight.shape))
    return made


def backend(conv, state):
    """The release's backend over a pool whose slot i belongs to request i."""
    from sglang.srt.layers.attention.hybrid_linear_attn_backend import GDNAttnBackend
    from sglang.srt.mem_cache.memory_pool import MambaPool

    interpreted.resolve_late("sglang.srt.layers.attention.fla")
    kept = MambaPool.State(conv=conv, temporal=state)
    made = GDNAttnBackend.__new__(GDNAttnBackend)
    made.device = "cpu"
    made.req_to_token_pool = SimpleNamespace(
        mamba2_layer_cache=lambda layer_id: kept,
        get_mamba_indices=lambda requests: requests.to(torch.int32),
    )
    made.forward = lambda q, k, v, layer, forward_batch, **kwargs: made.forward_extend(
        q, k, v, layer, forward_batch, **kwargs
    )
    return made


def compare(lengths, prefixes, rows, poison):
    """As compare_mamba2.compare."""
    torch.manual_seed(2)
    made, count, prefix = layer(), sum(lengths), torch.tensor(prefixes)
    requests = range(1, len(lengths) + 1)
    conv = torch.randn(SLOTS, made.conv_dim, 3).to(TYPE)
    state = 0.1 * torch.randn(SLOTS, made.num_v_heads, made.head_k_dim, made.head_v_dim)
    for request, cached in zip(requests, prefixes, strict=True):
        if not cached:  # the scheduler hands out cleared slots
            state[request] = 0
    before = conv.clone(), state.clone()
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    batch = graph.prefill_batch(
        count,
        batch_size=len(lengths),
        req_pool_indices=torch.tensor(list(requests)),
        seq_lens=torch.tensor(lengths) + prefix,
        extend_seq_lens=torch.tensor(lengths),
        extend_prefix_lens=prefix,
        extend_start_loc=torch.tensor(starts),
        extend_seq_lens_cpu=lengths,
        extend_prefix_lens_cpu=prefixes,
    )
    batch.attn_backend = backend(conv, state)
    batch.attn_backend.init_forward_metadata(batch)
    hidden_states = torch.randn(rows, 128).to(TYPE)
    hidden_states[count:] = float(poison)
    output = torch.full_like(hidden_states, float("nan"))
    with (
        graph.context_module().enable_piecewise_cuda_graph(),
        graph.forward_context(batch, [None] * LAYER + [made]),
        torch.no_grad(),
    ):
        output = made(hidden_states, batch)
    differences = []
    with torch.no_grad():
        for request, start, length, cached in zip(requests, starts, lengths, prefixes, strict=True):
            old = (
                before[0][request] if cached else torch.zeros_like(before[0][request]),
                before[1][request],
            )
            wanted = gdn.net(made, hidden_states[start : start + length], *old)
            found = output[start : start + length], conv[request], state[request]
            differences.append(
                [(a.float() - b).abs().max().item() for a, b in zip(found, wanted, strict=True)]
            )
    others = [slot for slot in range(SLOTS) if slot not in requests]
    return dict(
        output=max(output for output, _, _ in differences),
        conv=max(conv for _, conv, _ in differences),
        state=max(state for _, _, state in differences),
        padding=output[count:].abs().max().item() if rows > count else 0.0,
        size=output[:count].abs().max().item(),
        others_untouched=all(
            torch.equal(now[others], then[others])
            for now, then in zip((conv, state), before, strict=True)
        ),
    )


def uncovered():
    """The chunked kernel alone, on rows that no sequence covers, from an allocator that hands out
    NaN."""
    from sglang.srt.layers.attention.fla import chunk_o

    interpreted.resolve_late("sglang.srt.layers.attention.fla")
    rows, covered, heads, size = 96, 70, 2, 32
    draw = functools.partial(torch.randn, dtype=TYPE)
    ends = torch.tensor([0, covered])
    fresh, torch.empty_like = torch.empty_like, lambda like: torch.full_like(like, float("nan"))
    try:
        q, k, v = (draw(1, rows, heads, size) for _ in range(3))
        h = draw(1, len(chunk_o.prepare_chunk_indices(ends, 64)), heads, size, size)
        output = chunk_o.chunk_fwd_o(q, k, v, h, g=torch.zeros(1, rows, heads), cu_seqlens=ends)
    finally:
        torch.empty_like = fresh
    return dict(
        finite=output[:, :covered].isfinite().all().item(),
        zero=output[:, covered:].eq(0).all().item(),
    )


if __name__ == "__main__":
    interpreted.main(lambda **case: compare(**case) if case else uncovered())
