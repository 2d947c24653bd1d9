"""The rows that the piecewise graph's attention op leaves behind the real tokens."""

from types import SimpleNamespace

import pytest
import torch
from host.bodies import load_undecorated

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.11")

HIDDEN = 6


@pytest.fixture
def module(monkeypatch):
    return load_undecorated("sglang.srt.layers.radix_attention", monkeypatch)


class Backend:
    """Computes the real tokens; the rows behind them come from the allocator."""

    def __init__(self, real):
        self.real = real

    def forward(self, query, key, value, layer, forward_batch, save_kv_cache, **kwargs):
        result = torch.full_like(query, float("nan"))
        result[: self.real] = query[: self.real] + 1
        return result


def run_op(module, real, padded_to, monkeypatch):
    batch = SimpleNamespace(attn_backend=Backend(real), extend_num_tokens=real)
    context = SimpleNamespace(forward_batch=batch, attention_layers=[None, "the layer"])
    monkeypatch.setattr(module, "get_forward_context", lambda: context)
    query = torch.arange(padded_to * HIDDEN, dtype=torch.float32).view(padded_to, HIDDEN)
    output = torch.full_like(query, float("nan"))
    module.unified_attention_with_output(query, query, query, output, True, 1)
    return query, output


@pytest.mark.parametrize("real", [1, 5, 7])
def test_padded_rows_are_zero(module, real, monkeypatch):
    """A NaN in them reached real rows in the next attention layer, and the server answered token 0."""
    query, output = run_op(module, real, 8, monkeypatch)
    torch.testing.assert_close(output[:real], query[:real] + 1)
    assert output[real:].eq(0).all(), output[real:]


def test_a_batch_without_padding_keeps_every_row(module, monkeypatch):
    query, output = run_op(module, 8, 8, monkeypatch)
    torch.testing.assert_close(output, query + 1)


def test_a_batch_that_counts_no_tokens_keeps_every_row(module, monkeypatch):
    """Verifying drafts does not count prefill tokens; its rows are real."""
    query, output = run_op(module, None, 8, monkeypatch)
    torch.testing.assert_close(output, query + 1)
