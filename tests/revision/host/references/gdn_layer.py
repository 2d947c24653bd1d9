"""The release's own gated delta net layer, and where its kernels are."""

import functools

import torch

from host import late, models

LAYER, TYPE = 1, torch.float16  # the chunked kernels refuse float32


def fla():
    """The package of the release's kernels."""
    packages = "sglang.srt.layers.attention.fla", "sglang.kernels.ops.attention.fla"
    return late.first(*(f"{package}.chunk" for package in packages)).__package__


@functools.lru_cache
def layer(**changes):
    """A Qwen3GatedDeltaNet with weights that make every part matter. changes: to the config."""
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
