"""The rows that NemotronH's Mamba2 split op leaves behind the real tokens."""

from types import SimpleNamespace

import pytest
import torch
from host import late
from host.bodies import load_undecorated

with late.modules():
    from sglang.srt.compilation import piecewise_context_manager

pytestmark = pytest.mark.revision(">=0.5.10,<0.5.11")

HIDDEN = 6


@pytest.fixture
def op(monkeypatch):
    return load_undecorated("sglang.srt.models.nemotron_h", monkeypatch).nemotron_mamba2_with_output


def run_op(op, padded_to, prefill_tokens, decodes=0, draft_tokens=0):
    """The op with a layer that adds one, on an output full of NaN, as an allocator may hand it
    out."""
    metadata = SimpleNamespace(
        num_prefill_tokens=prefill_tokens,
        num_decodes=decodes,
        draft_token_num=draft_tokens,
        is_target_verify=bool(draft_tokens),
    )
    batch = SimpleNamespace(
        attn_backend=SimpleNamespace(linear_attn_backend=SimpleNamespace(forward_metadata=metadata))
    )
    layer = SimpleNamespace(_forward_mamba=lambda hidden_states, _: hidden_states + 1)
    hidden_states = torch.arange(padded_to * HIDDEN, dtype=torch.float32)
    hidden_states = hidden_states.view(padded_to, HIDDEN)
    output = torch.full_like(hidden_states, float("nan"))
    with piecewise_context_manager.set_forward_context(batch, [None, layer], None, [], []):
        op(hidden_states, output, 1)
    return hidden_states, output


@pytest.mark.parametrize(
    "counts, real",
    [
        ({"prefill_tokens": 5}, 5),
        ({"prefill_tokens": 3, "decodes": 2}, 5),
        ({"prefill_tokens": 0, "decodes": 2, "draft_tokens": 3}, 6),
    ],
    ids=["prefill", "mixed", "target-verify"],
)
def test_padded_rows_are_zero(op, counts, real):
    """Padded rows kept what the allocator left there, NaN included, and the layers behind the op
    read them."""
    hidden_states, output = run_op(op, padded_to=8, **counts)
    torch.testing.assert_close(output[:real], hidden_states[:real] + 1)
    assert output[real:].eq(0).all(), output[real:]


def test_a_batch_without_padding_keeps_every_row(op):
    hidden_states, output = run_op(op, padded_to=8, prefill_tokens=8)
    torch.testing.assert_close(output, hidden_states + 1)
