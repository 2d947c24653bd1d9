"""The rows that the piecewise graph's attention ops leave behind the real tokens."""

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
    """A NaN in them reached real rows in the next attention layer, and the server answered token
    0."""
    query, output = run_op(module, real, 8, monkeypatch)
    torch.testing.assert_close(output[:real], query[:real] + 1)
    assert output[real:].eq(0).all(), output[real:]


@pytest.mark.parametrize("real", [8, None], ids=["full", "drafts"])
def test_a_batch_without_padding_keeps_every_row(module, real, monkeypatch):
    """Verifying drafts does not count prefill tokens; its rows are real."""
    query, output = run_op(module, real, 8, monkeypatch)
    torch.testing.assert_close(output, query + 1)


HEADS, DIM = 2, 3
GATES = {"as GDN": [(-1, HEADS)] * 2, "as KDA": [(1, -1, HEADS, DIM), (1, -1, HEADS)]}


class LinearBackend:
    """Computes the real tokens; the rows behind them come from the allocator. Gates and queries go
    row by row."""

    def __init__(self, real):
        self.real = real

    def forward(self, *, layer, forward_batch, mixed_qkv, a, b):
        rows = len(mixed_qkv)
        assert a.numel() // HEADS in (rows, rows * DIM) and b.numel() == rows * HEADS
        result = torch.full((1, rows, HEADS, DIM), float("nan"))
        result[:, : self.real] = mixed_qkv[: self.real].view(1, -1, HEADS, DIM) + 1
        return result


@pytest.mark.revision(">=0.5.9,<0.5.11")
@pytest.mark.parametrize("shapes", GATES.values(), ids=GATES)
@pytest.mark.parametrize(
    "real, counted", [(1, 1), (5, 5), (8, 8), (8, None)], ids=["one", "padded", "full", "drafts"]
)
def test_linear_attention_leaves_zero(monkeypatch, real, counted, shapes):
    """Kimi-Linear's rows come from an allocation that nothing fills; the NaN in them went on as
    attention's did."""
    linear = load_undecorated("sglang.srt.layers.radix_linear_attention", monkeypatch)
    batch = SimpleNamespace(attn_backend=LinearBackend(real), extend_num_tokens=counted)
    context = SimpleNamespace(forward_batch=batch, attention_layers=["the layer"])
    monkeypatch.setattr(linear, "get_forward_context", lambda: context)
    qkv = torch.arange(8 * HEADS * DIM, dtype=torch.float32).view(8, HEADS * DIM)
    a, b = (torch.zeros(8, *shape[shape.index(-1) + 1 :]).view(shape) for shape in shapes)
    output = torch.full((1, 8, HEADS, DIM), float("nan"))
    linear.unified_linear_attention_with_output(qkv, a, b, output, 0)
    torch.testing.assert_close(output[0, :real].flatten(1), qkv[:real] + 1)
    assert output[0, real:].eq(0).all(), output[0, real:]
