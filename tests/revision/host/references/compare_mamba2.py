"""The release's own Mamba2 mixer and backend with interpreted kernels."""

import functools

import torch

from host import late, models, state_pool

LAYER = 2


@functools.lru_cache
def layer():
    """A NemotronHMambaDecoderLayer with weights that make every part of it matter."""
    from sglang.srt.layers.attention.mamba import mamba

    convolution = late.first(
        "sglang.kernels.ops.mamba.causal_conv1d_triton",  # from 0.5.16
        "sglang.srt.layers.attention.mamba.causal_conv1d_triton",
    )
    # mamba.py imports its kernels only where it finds CUDA.
    mamba.causal_conv1d_fn_triton = convolution.causal_conv1d_fn
    mamba.causal_conv1d_update_triton = convolution.causal_conv1d_update
    made = models.build(
        "nemotron_h", device="cpu", dtype=torch.float32, mamba_n_groups=4
    ).model.layers[LAYER]
    make_every_part_matter(made.mixer)
    return made


@torch.no_grad()
def make_every_part_matter(*mixers):
    """Draw their weights."""
    torch.manual_seed(1)
    for mixer in mixers:
        convolution = mixer.conv1d
        vectors = mixer.D, mixer.dt_bias, mixer.norm.weight
        for weight in (*vectors, convolution.weight, convolution.bias):
            weight.normal_()
        mixer.in_proj.weight.normal_(std=0.1)
        mixer.A.copy_(-2 * torch.rand_like(mixer.A))


def drawn_pool(mixer, slots):
    """Random states, (convolution's, SSM's)."""
    ssm = mixer.num_heads, mixer.head_dim, mixer.ssm_state_size
    return torch.randn(slots, mixer.conv_dim, 3), torch.randn(slots, *ssm)


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
    made = state_pool.backend(Mamba2AttnBackend, state)
    made.conv_states_shape = conv.shape
    name = "mamba_chunk_size"
    # a property in 0.5.23
    setattr(made, name if getattr(type(made), name, None) is None else f"_{name}", 16)
    return made


def words(mixer, hidden_states, output):
    """What a layer calls the backend with, beside the batch."""
    return dict(
        mixer=mixer,
        hidden_states=hidden_states,
        output=output,
        layer_id=LAYER,
        use_triton_causal_conv=True,
    )
