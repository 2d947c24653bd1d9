"""The states that a captured Mamba2 layer leaves for the prefix cache, its kernels interpreted:
beside the release's mixer."""

from host.references import compare_ssd  # starts the interpreter

from types import SimpleNamespace

import torch
from host import interpreted
from host.references import compare_captured, compare_mamba2, compare_scan, mamba2
from sglang.srt.prefill_graph.captured import layers, tables
from sglang.srt.prefill_graph.captured import mamba2 as captured


def said_of(lengths, prefixes, wanted):
    """A batch's three fields. Request i leaves a state in slot count + 1 + i; wanted: behind how
    many of its new tokens, or one more where that is not the last whole chunk, as the scheduler
    asks for it; -1: none."""
    count = len(lengths)
    asked = torch.tensor(wanted)
    mask = asked > 0
    return dict(
        mamba_track_mask=mask,
        mamba_track_seqlens=torch.where(mask, asked + torch.tensor(prefixes), -1),
        mamba_track_indices=torch.arange(count + 1, 2 * count + 1),
    )


def compare(batches, rows, places, chunk=16, step=None):
    """Each batch, (lengths, prefixes, wanted), through the tables of one size, one after the other.
    wanted: as in said_of; None where the batch says nothing. NaN is behind every batch. Request i
    has slot i + 1.

    Returns, over all batches: `bits`, how many values of output and states differ from the
    release's mixer, run eagerly on the same batch; `others`: how many slots have changed that
    nobody writes to; `left`: how many states were left; `conv` and `ssm`: their largest differences
    from the plain mixer; `launched`: the kernels of the last batch.
    """
    step = step or chunk
    mixer = compare_mamba2.layer().mixer
    for projection in (mixer.in_proj, mixer.out_proj):
        projection.forward = compare_captured.row_by_row(projection)
    bits = others = left = 0
    worst = [0.0, 0.0]
    for number, (lengths, prefixes, wanted) in enumerate(batches):
        torch.manual_seed(number)
        count, total = len(lengths), sum(lengths)
        conv = torch.randn(2 * count + 3, mixer.conv_dim, 3)
        ssm = torch.randn(len(conv), mixer.num_heads, mixer.head_dim, mixer.ssm_state_size)
        hidden = torch.randn(rows, 128)
        hidden[total:] = float("nan")
        said = {} if wanted is None else said_of(lengths, prefixes, wanted)
        eager = compare_scan.eager(
            mixer, conv.clone(), ssm.clone(), hidden[:total], lengths, prefixes, chunk, said, step
        )
        now, then = conv.clone(), ssm.clone()
        cache = compare_mamba2.backend(now, then).req_to_token_pool.mamba2_layer_cache(0)
        batch = SimpleNamespace(
            extend_prefix_lens=torch.tensor(prefixes),
            extend_seq_lens=torch.tensor(lengths),
            **dict.fromkeys(("mamba_track_mask", "mamba_track_seqlens", "mamba_track_indices"))
            | said,
        )
        if not number:
            made = tables.Tables(rows, places, chunk, torch.device("cpu"), tracks=True)
        with torch.no_grad(), compare_scan.small(chunk), compare_ssd.Launches() as launches:
            made.fill(lengths, [prefix > 0 for prefix in prefixes], torch.arange(1, count + 1))
            layers.Captured(None, step).track(made, batch)
            output = captured.run(mixer, cache, made, hidden)
        bits += sum(
            (a != b).sum().item() for a, b in zip((output[:total], now, then), eager, strict=True)
        )
        kept = {i: asked // step * step for i, asked in enumerate(wanted or ()) if asked > 0}
        written = {*range(1, count + 1), *(count + 1 + i for i in kept)}
        left += len(kept)
        others += sum(
            not torch.equal(new[slot], old[slot])
            for new, old in ((now, conv), (then, ssm))
            for slot in range(len(conv))
            if slot not in written
        )
        for i, behind in kept.items():
            begin = sum(lengths[:i])
            old = [
                state[i + 1] if prefixes[i] else torch.zeros_like(state[i + 1])
                for state in (conv, ssm)
            ]
            with torch.no_grad():
                _, *states = mamba2.mixer(mixer, hidden[begin : begin + behind], *old)
            found = now[count + 1 + i], then[count + 1 + i]
            worst = [
                max(most, (a - b).abs().max().item())
                for most, a, b in zip(worst, found, states, strict=True)
            ]
    return dict(zip(("conv", "ssm"), worst)) | dict(
        bits=bits, others=others, left=left, launched=launches.names()
    )


if __name__ == "__main__":
    interpreted.main(compare)
