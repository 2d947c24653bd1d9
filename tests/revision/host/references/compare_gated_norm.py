"""The release's gated norm, its kernel interpreted, against the plain norm in float64, rank by
rank."""

import torch
from sglang.srt.layers.attention.fla import layernorm_gated
from sglang.srt.layers.attention.mamba import mixer2_rms_norm_gated as release

from host.references import mamba2

EPS = 1e-5


def rank_of(module, rank, ranks):
    """That rank's part of a tensor's last dimension."""
    width = module.per_rank_hidden_size
    assert width * ranks == module.full_hidden_size
    return slice(rank * width, (rank + 1) * width)


def made(hidden, groups, rank, ranks):
    """The layer of one rank, in float32, as a model builds it."""
    release.get_tensor_model_parallel_world_size = lambda: ranks
    release.get_tensor_model_parallel_rank = lambda: rank
    return release.Mixer2RMSNormGated(hidden, groups, eps=EPS)


def compare(tokens, groups, size, ranks=1, dtype="float32", wide=None, multiprocessors=1):
    """tokens: rows. size: channels of a group. wide: the columns of the tensor whose first ones are
    the gate, as they are in a layer; else the gate is a tensor of its own. multiprocessors: the
    kernel takes more rows at once where they are few.

    Returns the largest error relative to the output's size, in units of what rounding once to dtype
    may cost, and how many ranks went to PyTorch (these are not compared).
    """
    layernorm_gated._get_sm_count = lambda device: multiprocessors  # 0.5.8 and later ask
    torch.manual_seed(3)
    dtype, hidden = getattr(torch, dtype), groups * size
    y = torch.randn(tokens, hidden).to(dtype)
    projected = torch.randn(tokens, wide or hidden).to(dtype)
    y[0] *= 1e-4  # where EPS matters
    gate, weight = projected[:, :hidden], (1 + torch.randn(hidden) / 4).to(dtype)
    expected = mamba2.gated_group_norm(y.double(), gate.double(), weight.double(), groups, EPS)
    native, worst = [], 0.0
    for rank in range(ranks):
        module = made(hidden, groups, rank, ranks)
        module.forward_native = lambda x, gate: native.append(x)
        part = rank_of(module, rank, ranks)
        module.weight.data = weight[part].clone()
        got = module.forward_cuda(y[:, part].contiguous(), gate[:, part])
        if got is not None:
            assert got.dtype == dtype and got.shape == (tokens, hidden // ranks)
            allowed = torch.finfo(dtype).eps / 2 * expected[:, part].abs() + 1e-6
            worst = max(worst, ((got.double() - expected[:, part]).abs() / allowed).max().item())
    return dict(error=worst, native=len(native))
