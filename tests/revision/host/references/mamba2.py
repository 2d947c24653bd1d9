"""Mamba2 (Dao and Gu, arXiv 2405.21060), the recurrence as written: one step per token.

For a layer with heads h of size p, groups g (each shared by h / g heads), and state size n.
"""

import torch
import torch.nn.functional as F


def mixer(module, hidden_states, conv_state, ssm_state):
    """The whole mixer on one sequence.

    module: MambaMixer2. hidden_states: [tokens, hidden]. conv_state: [channels, width - 1], the
    last inputs of the convolution, oldest first. ssm_state: [h, p, n]. Returns output [tokens,
    hidden] and the two states after it.
    """
    heads = module.num_heads
    size = module.head_dim
    groups = module.n_groups
    n = module.ssm_state_size
    inner = heads * size
    projected = F.linear(hidden_states, module.in_proj.weight)
    gate, mixed, dt = projected.split([inner, inner + 2 * groups * n, heads], dim=-1)
    mixed, conv_state = causal_convolution(
        mixed, module.conv1d.weight.squeeze(1), module.conv1d.bias, conv_state
    )
    x, b, c = mixed.split([inner, groups * n, groups * n], dim=-1)
    y, ssm_state = scan(
        x.unflatten(-1, (heads, size)),
        F.softplus(dt + module.dt_bias),
        module.A,
        b.unflatten(-1, (groups, n)),
        c.unflatten(-1, (groups, n)),
        module.D,
        ssm_state,
    )
    y = gated_group_norm(
        y.flatten(-2), gate, module.norm.weight, groups, module.norm.variance_epsilon
    )
    return F.linear(y, module.out_proj.weight), conv_state, ssm_state


def plain(module, hidden_states, before, prefixes):
    """mixer() as judge() asks for it. before: the pool as it was, (the convolution's states, the
    SSM's). A request without a prefix begins with zeros."""

    def run(i, rows):
        states = [state[i + 1] if prefixes[i] else torch.zeros_like(state[0]) for state in before]
        with torch.no_grad():
            return mixer(module, hidden_states[rows], *states)

    return run


def apart(found, wanted):
    """The largest difference of each pair of tensors."""
    pairs = zip(found, wanted, strict=True)
    return [(a.float() - b.float()).abs().max().item() for a, b in pairs]


def changed(pool, before, slots):
    """How many states in `slots` are not as they were."""
    pairs = list(zip(pool, before, strict=True))
    return sum(not torch.equal(new[slot], old[slot]) for new, old in pairs for slot in slots)


def judge(plain, output, pool, before, lengths, kept=()):
    """The largest differences of a batch from plain(i, rows): what request i's rows of the batch
    make of its state, an output and new states.

    Request i has slot i + 1. kept: {request: its tokens behind which it leaves a state}, in slot
    count + 1 + i. Returns `own`, of the output and of the states that requests go on with; `left`,
    of the states that they leave, for each that leaves one; and `others`: how many slots that
    nobody writes to have changed.
    """
    count, kept, left, own = len(lengths), dict(kept), {}, []
    for i, length in enumerate(lengths):
        start = sum(lengths[:i])
        rows = slice(start, start + length)
        found = output[rows], *(states[i + 1] for states in pool)
        own.append(apart(found, plain(i, rows)))
        if i in kept:
            _, *wanted = plain(i, slice(start, start + kept[i]))
            left[str(i)] = apart([states[count + 1 + i] for states in pool], wanted)
    written = {*range(1, count + 1), *(count + 1 + i for i in kept)}
    others = changed(pool, before, {*range(len(pool[0]))} - written)
    # where NaN is the largest
    return dict(own=torch.tensor(own).amax(0).tolist(), left=left, others=others)


def unlike(found, wanted):
    """How many values differ. NaN is unlike anything."""
    return sum((a != b).sum().item() for a, b in zip(found, wanted, strict=True))


def causal_convolution(inputs, weight, bias, state):
    """Depthwise, then SiLU: [tokens, channels], [channels, width], and [channels, width - 1]."""
    history = torch.cat([state, inputs.T], dim=1)
    width = weight.shape[1]
    outputs = (
        torch.stack([(history[:, t : t + width] * weight).sum(-1) for t in range(len(inputs))])
        if len(inputs)
        else inputs
    )
    if bias is not None:
        outputs = outputs + bias
    return F.silu(outputs), history[:, history.shape[1] - (width - 1) :]


def scan(x, dt, a, b, c, d, state):
    """x: [tokens, h, p], dt: [tokens, h], a, d: [h], b, c: [tokens, g, n], state: [h, p, n]."""
    per_group = x.shape[1] // b.shape[1]
    outputs = []
    for t in range(len(x)):
        b_t, c_t = b[t].repeat_interleave(per_group, 0), c[t].repeat_interleave(per_group, 0)
        state = (
            state * torch.exp(dt[t] * a)[:, None, None]
            + (dt[t][:, None] * x[t])[:, :, None] * b_t[:, None, :]
        )
        outputs.append((state * c_t[:, None, :]).sum(-1) + d[:, None] * x[t])
    return (torch.stack(outputs) if outputs else x), state


def gated_group_norm(y, gate, weight, groups, eps):
    """RMSNorm over each group of channels, of y times SiLU(gate)."""
    y = (y * F.silu(gate)).unflatten(-1, (groups, -1))
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)).flatten(-2) * weight
