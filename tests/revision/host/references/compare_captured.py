"""A captured Mamba2 layer, its kernels interpreted: beside the release's mixer and the plain
reference."""

from host.references import compare_ssd  # starts the interpreter

import torch
from host import interpreted
from host.references import compare_mamba2, compare_scan, mamba2
from sglang.srt.prefill_graph.captured import tables
from sglang.srt.prefill_graph.captured import mamba2 as captured


def row_by_row(projection):
    """A projection's forward whose bits do not depend on how many rows there are. Its `words` are
    what else it was told."""
    weight = projection.weight

    def forward(rows, **words):
        forward.words = words
        return torch.cat([torch.nn.functional.linear(row[None], weight) for row in rows]), None

    return forward


def compare(batches, rows, places, chunk=16, fuses_reduce=False, eagerly=True):
    """Each batch, (lengths, prefixes), through the tables of one size, one after the other. NaN is
    behind every batch. Request i has slot i + 1. fuses_reduce: the next norm sums over the ranks.
    eagerly: compare with the release's mixer, too.

    Returns, over all batches, the largest differences of `output`, `conv` and `ssm` from the plain
    mixer; `bits`: how many values of output and states differ from the release's mixer, run eagerly
    on the same batch; `others`: how many slots that nobody owns have changed; `launched`: the
    kernels of the last batch; `told`: what the last projection was told beside its rows.
    """
    mixer = compare_mamba2.layer().mixer
    for projection in (mixer.in_proj, mixer.out_proj):
        projection.forward = row_by_row(projection)
    found = [0.0, 0.0, 0.0]
    bits = others = 0
    made = tables.Tables(rows, places, chunk, torch.device("cpu"))
    for number, (lengths, prefixes) in enumerate(batches):
        torch.manual_seed(number)
        count, total = len(lengths), sum(lengths)
        conv = torch.randn(count + 3, mixer.conv_dim, 3)
        ssm = torch.randn(count + 3, mixer.num_heads, mixer.head_dim, mixer.ssm_state_size)
        hidden = torch.randn(rows, 128)
        hidden[total:] = float("nan")
        eager = eagerly and compare_scan.eager(
            mixer, conv.clone(), ssm.clone(), hidden[:total], lengths, prefixes, chunk
        )
        cache = compare_mamba2.backend(
            now := conv.clone(), then := ssm.clone()
        ).req_to_token_pool.mamba2_layer_cache(0)
        with torch.no_grad(), compare_scan.small(chunk), compare_ssd.Launches() as launches:
            assert captured.why_not(mixer, cache, hidden.dtype) is None
            made.fill(lengths, [prefix > 0 for prefix in prefixes], torch.arange(1, count + 1))
            output = captured.run(mixer, cache, made, hidden, fuses_reduce)
        bits += sum((a != b).sum().item() for a, b in zip((output[:total], now, then), eager or ()))
        others += sum(
            not torch.equal(new[slot], old[slot])
            for new, old in ((now, conv), (then, ssm))
            for slot in (0, count + 1, count + 2)
        )
        for i, _length in enumerate(lengths):
            part = slice(sum(lengths[:i]), sum(lengths[: i + 1]))
            old = [
                state[i + 1] if prefixes[i] else torch.zeros_like(state[i + 1])
                for state in (conv, ssm)
            ]
            with torch.no_grad():
                wanted = mamba2.mixer(mixer, hidden[part], *old)
            new = output[part], now[i + 1], then[i + 1]
            found = [
                max(most, (a - b).abs().max().item())
                for most, a, b in zip(found, new, wanted, strict=True)
            ]
    return dict(zip(("output", "conv", "ssm"), found)) | dict(
        bits=bits, others=others, launched=launches.names(), told=mixer.out_proj.forward.words
    )


if __name__ == "__main__":
    interpreted.main(compare)
