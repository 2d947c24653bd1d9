"""What sglang takes from vllm up to 0.5.7 without a GPU: the same parameters and mathematics."""

import torch
from torch import nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """Over the last dimension; with a residual it is added first and returned beside the result."""

    offset = 0.0

    def __init__(self, hidden_size, eps=1e-6, *_, **__):
        super().__init__()
        self.weight = nn.Parameter(torch.full((hidden_size,), 1.0 - self.offset))
        self.variance_epsilon = eps

    def forward(self, x, residual=None):
        total = x if residual is None else x + residual
        wide = total.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        out = (wide * (self.weight.float() + self.offset)).to(x.dtype)
        return out if residual is None else (out, total)


class GemmaRMSNorm(RMSNorm):
    """Its weight is the distance from one."""

    offset = 1.0


class SiluAndMul(nn.Module):
    """silu(first half) * second half of the last dimension."""

    def forward(self, x):
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate) * up


class GeluAndMul(nn.Module):
    def __init__(self, approximate="tanh"):
        super().__init__()
        self.approximate = approximate

    def forward(self, x):
        gate, up = x.chunk(2, dim=-1)
        return functional.gelu(gate, approximate=self.approximate) * up
