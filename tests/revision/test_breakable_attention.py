"""Attention's op under the breakable graph, for every shape in which models hand it their
queries."""

import pytest
import torch
from host import bodies, late, recorded
from host.served import batch_of, served

with late.modules():
    from sglang.srt.layers import radix_attention
    from sglang.srt.prefill_graph.breakable import runner

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.14")
HEADS, DIM = 2, 4


class Backend:
    """Gives every query times two; refuses more of them than there are tokens."""

    def forward(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        rows = q.view(-1, HEADS * DIM)
        assert len(rows) == len(k) == len(v) == forward_batch.extend_num_tokens
        return rows * 2


@pytest.fixture
def layer(monkeypatch):
    body = bodies.load_undecorated(
        "sglang.srt.layers.radix_attention", monkeypatch
    ).unified_attention_with_output
    with recorded.recording(monkeypatch, unified_attention_with_output=body):
        yield radix_attention.RadixAttention(HEADS, DIM, 1.0, num_kv_heads=HEADS, layer_id=0)


@pytest.mark.parametrize(
    "shape",
    [(-1, HEADS * DIM), (-1, HEADS, DIM), (1, -1, HEADS, DIM)],
    ids=["rows", "heads", "a batch of one, as Gemma3"],
)
def test_queries_are_cut_to_the_tokens_of_the_batch(layer, shape):
    backend, own = Backend(), runner.primitive()
    queries, keys = torch.zeros(8, HEADS * DIM), torch.zeros(8, HEADS, DIM)
    graph, placeholder = own.graph(), batch_of(8, backend)
    with own.capturing(), served(placeholder, layer, backend), own.capture(graph, (0, 1), None):
        output = layer((queries * 1).view(shape), keys * 1, keys * 1, placeholder) + 1
    for tokens in (5, 8, 1):
        queries.copy_(torch.randn(8, HEADS * DIM))
        queries[tokens:] = float("nan")
        with own.replaying(), served(batch_of(tokens, backend), layer, backend):
            graph.replay()
        found = output.view(8, HEADS * DIM)
        torch.testing.assert_close(found[:tokens], queries[:tokens] * 2 + 1)
        assert found[tokens:].eq(1).all()  # zero, before the captured addition
