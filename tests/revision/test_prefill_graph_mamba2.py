"""NemotronH's Mamba2 split op on padded rows, for every way tokens are counted. The mixer behind it
is beside a plain reference in test_mamba2_scan.py."""

import math
from types import SimpleNamespace

import pytest
import torch
from host import graph, late

with late.modules():
    from sglang.srt.prefill_graph.piecewise import mamba2

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.10")


def metadata(**counts):
    return SimpleNamespace(
        linear_attn_backend=SimpleNamespace(forward_metadata=SimpleNamespace(**counts))
    )


COUNTS = {
    "prefill": (
        dict(num_prefill_tokens=5, num_decodes=0, is_target_verify=False, draft_token_num=1),
        5,
    ),
    "prefill and decode": (
        dict(num_prefill_tokens=3, num_decodes=2, is_target_verify=False, draft_token_num=4),
        5,
    ),
    "verify drafts": (
        dict(num_prefill_tokens=0, num_decodes=2, is_target_verify=True, draft_token_num=3),
        6,
    ),
    "metadata of 0.5.5": (dict(num_prefill_tokens=4, num_decodes=2), 6),
    "no tokens": (dict(num_prefill_tokens=0, num_decodes=0), 0),
}


@pytest.mark.parametrize("case", COUNTS)
def test_the_layer_sees_exactly_the_real_tokens(case):
    """MambaMixer2 asserts that it is given as many rows as the metadata counts."""
    counts, real = COUNTS[case]
    backend, calls = metadata(**counts), []
    layer = SimpleNamespace(mixer="the mixer", layer_id=1)

    def forward(*, mixer, layer_id, hidden_states, output, use_triton_causal_conv):
        calls.append((mixer, layer_id, use_triton_causal_conv, len(hidden_states)))
        output.copy_(hidden_states + 1)

    backend.linear_attn_backend.forward = forward
    hidden_states = torch.randn(8, 6)
    hidden_states[real:] = math.nan
    output = torch.full_like(hidden_states, math.nan)
    with graph.forward_context(SimpleNamespace(attn_backend=backend), [None, layer]):
        mamba2.nemotron_mamba2_with_output(hidden_states, output, 1)
    assert calls == ([("the mixer", 1, True, real)] if real else [])
    torch.testing.assert_close(output[:real], hidden_states[:real] + 1)
    assert output[real:].eq(0).all()
