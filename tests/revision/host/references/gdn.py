"""Gated delta net (Yang, Kautz and Hatamizadeh, arXiv 2412.06464), the recurrence as written: one
step per token.

For a layer with k key heads of size n, each shared by r value heads of size p.
"""

import torch
import torch.nn.functional as F

from .mamba2 import causal_convolution


def net(module, hidden_states, conv_state, state):
    """The whole layer on one sequence, in float32.

    module: Qwen3GatedDeltaNet. hidden_states: [tokens, hidden]. conv_state: [channels, width - 1].
    state: [k * r, n, p]. Returns output [tokens, hidden] and the two states after it.
    """
    heads, n, p = module.num_k_heads, module.head_k_dim, module.head_v_dim
    r = module.num_v_heads // heads
    hidden_states = hidden_states.float()
    weights = {name: value.float() for name, value in module.named_parameters()}
    qkvz = F.linear(hidden_states, weights["in_proj_qkvz.weight"]).unflatten(-1, (heads, -1))
    q, k, v, z = (part.flatten(1) for part in qkvz.split([n, n, r * p, r * p], dim=-1))
    ba = F.linear(hidden_states, weights["in_proj_ba.weight"]).unflatten(-1, (heads, -1))
    b, a = (part.flatten(1) for part in ba.split([r, r], dim=-1))
    mixed, conv_state = causal_convolution(
        torch.cat([q, k, v], dim=-1), weights["conv1d.weight"].squeeze(1), None, conv_state.float()
    )
    q, k, v = mixed.split([heads * n, heads * n, heads * r * p], dim=-1)
    q, k = (
        F.normalize(part.unflatten(-1, (heads, n)), dim=-1).repeat_interleave(r, 1)
        for part in (q, k)
    )
    decay = torch.exp(-weights["A_log"].exp() * F.softplus(a + weights["dt_bias"]))
    y, state = delta_rule(
        q * n**-0.5, k, v.unflatten(-1, (heads * r, p)), decay, b.sigmoid(), state.float()
    )
    y = (
        y
        * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + module.layer_norm_epsilon)
        * weights["norm.weight"]
    )
    y = (y * F.silu(z.unflatten(-1, (heads * r, p)))).flatten(1)
    return F.linear(y, weights["out_proj.weight"]), conv_state, state


def plain(module, hidden_states, before, prefixes):
    """net() as mamba2.judge() asks for it. before: the pool as it was, its states [k * r, n, p]. A
    request without a prefix begins with an empty convolution."""

    def run(i, rows):
        conv = before[0][i + 1] * bool(prefixes[i])
        with torch.no_grad():
            return net(module, hidden_states[rows], conv, before[1][i + 1])

    return run


def delta_rule(q, k, v, decay, beta, state):
    """q, k: [tokens, h, n], v: [tokens, h, p], decay, beta: [tokens, h], state: [h, n, p]."""
    outputs = []
    for t in range(len(q)):
        state = state * decay[t][:, None, None]
        known = (state * k[t][:, :, None]).sum(1)
        state = state + k[t][:, :, None] * (beta[t][:, None] * (v[t] - known))[:, None, :]
        outputs.append((state * q[t][:, :, None]).sum(1))
    return torch.stack(outputs), state
