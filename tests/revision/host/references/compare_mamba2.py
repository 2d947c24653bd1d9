"""The Mamba2 split op, with the release's own mixer and kernels interpreted, against the plain
reference."""

from host import interpreted

interpreted.start()

import functools
from types import SimpleNamespace

import torch
from host import graph, models
from host.references import mamba2

LAYER, SLOTS = 2, 5


@functools.lru_cache
def layer():
    """A NemotronHMambaDecoderLayer with weights that make every part of it matter."""
    from sglang.srt.layers.attention.mamba import mamba

    try:
        from sglang.kernels.ops.mamba import causal_conv1d_triton as convolution  # from 0.5.16
    except ImportError:
        from sglang.srt.layers.attention.mamba import causal_conv1d_triton as convolution
    # mamba.py imports its kernels only where it finds CUDA.
    mamba.causal_conv1d_fn_triton = convolution.causal_conv1d_fn
    mamba.causal_conv1d_update_triton = convolution.causal_conv1d_update
    made = models.build(
        "nemotron_h", device="cpu", dtype=torch.float32, mamba_n_groups=4
    ).model.layers[LAYER]
    torch.manual_seed(1)
    mixer = made.mixer
    with torch.no_grad():
        for weight in (
            mixer.D,
            mixer.dt_bias,
            mixer.norm.weight,
            mixer.conv1d.weight,
            mixer.conv1d.bias,
        ):
            weight.normal_()
        mixer.in_proj.weight.normal_(std=0.1)
        mixer.A.copy_(-2 * torch.rand_like(mixer.A))
    return made


def backend(conv, ssm):
    """The release's Mamba2 backend over a pool whose slot i belongs to request i."""
    from sglang.srt.layers.attention.hybrid_linear_attn_backend import Mamba2AttnBackend
    from sglang.srt.mem_cache.memory_pool import MambaPool

    # 0.5.5 keeps a list for KDA alone, and says Union
    kept = (
        [conv]
        if str(MambaPool.State.__annotations__["conv"]).removeprefix("typing.").startswith("List")
        else conv
    )
    state = MambaPool.State(conv=kept, temporal=ssm)
    made = Mamba2AttnBackend.__new__(Mamba2AttnBackend)
    made.device = "cpu"
    name = "mamba_chunk_size"
    # a property in 0.5.23
    setattr(made, name if getattr(type(made), name, None) is None else f"_{name}", 16)
    made.req_to_token_pool = SimpleNamespace(
        mamba2_layer_cache=lambda layer_id: state,
        get_mamba_indices=lambda requests: requests.to(torch.int32),
        translate_mamba_indices=lambda slots: slots,  # from 0.5.15
    )
    return made


def compare(lengths, prefixes, rows, poison):
    """Lengths and cached prefixes per request, rows of the captured size. poison: what stands in
    the padded rows.

    Returns the largest differences from the reference, of the output and of both states, the
    largest value in the padded rows, and whether slots of other requests are as they were.
    """
    torch.manual_seed(2)
    made, count, prefix = layer(), sum(lengths), torch.tensor(prefixes)
    mixer, requests = made.mixer, range(1, len(lengths) + 1)
    conv, ssm = (
        torch.randn(SLOTS, mixer.conv_dim, 3),
        torch.randn(SLOTS, mixer.num_heads, mixer.head_dim, mixer.ssm_state_size),
    )
    before = conv.clone(), ssm.clone()
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
    linear = backend(conv, ssm)
    batch.attn_backend = SimpleNamespace(linear_attn_backend=linear)
    linear.init_forward_metadata(batch)
    hidden_states = torch.randn(rows, 128)
    hidden_states[count:] = float(poison)
    output = torch.full_like(hidden_states, float("nan"))
    with graph.forward_context(batch, [None] * LAYER + [made]), torch.no_grad():
        torch.ops.sglang.nemotron_mamba2_with_output(hidden_states, output, LAYER)
    differences = []
    with torch.no_grad():
        for request, start, length, cached in zip(requests, starts, lengths, prefixes, strict=True):
            old = [
                state[request] if cached else torch.zeros_like(state[request]) for state in before
            ]
            wanted = mamba2.mixer(mixer, hidden_states[start : start + length], *old)
            found = output[start : start + length], conv[request], ssm[request]
            differences.append(
                [(a - b).abs().max().item() for a, b in zip(found, wanted, strict=True)]
            )
    others = [slot for slot in range(SLOTS) if slot not in requests]
    return dict(
        output=max(output for output, _, _ in differences),
        conv=max(conv for _, conv, _ in differences),
        ssm=max(ssm for _, _, ssm in differences),
        padding=output[count:].abs().max().item() if rows > count else 0.0,
        others_untouched=all(
            torch.equal(now[others], then[others])
            for now, then in zip((conv, ssm), before, strict=True)
        ),
    )


if __name__ == "__main__":
    interpreted.main(compare)
