"""The release's kernels on the gates that its own models split off one projection, against the same
gates in tensors of their own."""

from types import SimpleNamespace

import torch
from sglang.srt.layers.attention.fla import fused_gdn_gating, fused_sigmoid_gating_recurrent
from sglang.srt.models import qwen3_5

WIDTH = 16  # of a key head and of a value head


def split(rows, keys, values):
    """mixed qkv, b and a of a layer of Qwen3.5 with these numbers of heads; b and a are views."""
    layer = SimpleNamespace(
        attn_tp_size=1,
        key_dim=keys * WIDTH,
        value_dim=values * WIDTH,
        num_v_heads=values,
        head_v_dim=WIDTH,
    )
    query, key, value, _, b, a = qwen3_5.Qwen3_5GatedDeltaNet.fix_query_key_value_ordering(
        layer, torch.randn(rows, 2 * (keys + values) * WIDTH), torch.randn(rows, 2 * values)
    )
    heads = [part.reshape(1, rows, -1, WIDTH).contiguous() for part in (query, key, value)]
    return heads, a, b


def compare(rows, keys, values, requests):
    """Largest differences of the gates of a prefill, and of the outputs of a step in which each of
    `requests` has rows / requests drafts."""
    torch.manual_seed(3)
    (query, key, value), a, b = split(rows, keys, values)
    assert not a.is_contiguous() and not b.is_contiguous()
    log_decays, bias = torch.randn(values), torch.randn(values)
    states = torch.randn(requests, values, WIDTH, WIDTH)

    def prefill(a, b):
        return torch.cat(fused_gdn_gating.fused_gdn_gating(log_decays, a, b, bias))

    def verify(a, b):
        return fused_sigmoid_gating_recurrent.fused_sigmoid_gating_delta_rule_update(
            A_log=log_decays,
            a=a,
            dt_bias=bias,
            softplus_beta=1.0,
            softplus_threshold=20.0,
            q=query,
            k=key,
            v=value,
            b=b,
            initial_state_source=states.clone(),
            initial_state_indices=torch.arange(requests, dtype=torch.int32),
            use_qk_l2norm_in_kernel=True,
            cu_seqlens=torch.arange(0, rows + 1, rows // requests),
        )

    return {
        step.__name__: float((step(a, b) - step(a.clone(), b.clone())).abs().max())
        for step in (prefill, verify)
    }
