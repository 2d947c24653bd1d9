"""Linear attention under the breakable graph: it runs eagerly, on the tokens of the batch."""

import pytest
import torch
from host import bodies, late, recorded
from host.served import batch_of, served

with late.modules():
    from sglang.srt.layers import radix_linear_attention
    from sglang.srt.prefill_graph.breakable import runner

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.14")
HEADS, DIM = 2, 4
GATES = {"as GDN": [(-1, HEADS)] * 2, "as KDA": [(1, -1, HEADS, DIM), (1, -1, HEADS)]}


class Backend:
    """Gives every token the sum of all tokens before it, of the state it keeps, and of itself."""

    def __init__(self):
        self.rows = []

    def forward(self, *, layer, forward_batch, mixed_qkv, a, b):
        assert a.numel() // HEADS in (
            len(mixed_qkv),
            len(mixed_qkv) * DIM,
        ) and b.numel() // HEADS == len(mixed_qkv)
        self.rows.append(len(mixed_qkv))
        return mixed_qkv.cumsum(0).view(1, -1, HEADS, DIM)


@pytest.fixture
def layer(monkeypatch):
    """A RadixLinearAttention whose op has a kernel on the CPU, in a recorded graph."""
    name = "sglang.srt.layers.radix_linear_attention"
    body = bodies.load_undecorated(name, monkeypatch).unified_linear_attention_with_output
    with recorded.recording(monkeypatch, unified_linear_attention_with_output=body):
        yield radix_linear_attention.RadixLinearAttention(0, HEADS, HEADS, HEADS, DIM, DIM, DIM)


@pytest.mark.parametrize("shapes", GATES.values(), ids=GATES)
def test_a_replay_runs_it_on_the_batch_at_hand(layer, shapes):
    """Captured, it would go on with the capture's own batch: the state slots and lengths of one
    request."""
    backend, own = Backend(), runner.primitive()
    qkv = torch.zeros(8, HEADS * DIM)
    a, b = (torch.zeros(8, *shape[shape.index(-1) + 1 :]).view(shape) for shape in shapes)
    graph, placeholder = own.graph(), batch_of(8, backend)
    with own.capturing(), served(placeholder, layer, backend), own.capture(graph, (0, 1), None):
        output = layer(placeholder, qkv * 1, a * 1, b * 1) + 1
    for tokens in (5, 8, 1):
        qkv.copy_(torch.randn(8, HEADS * DIM))
        qkv[tokens:] = float("nan")
        batch, backend.rows = batch_of(tokens, backend), []
        with own.replaying(), served(batch, layer, backend):
            graph.replay()
        assert backend.rows == [tokens]
        torch.testing.assert_close(
            output[0, :tokens], qkv[:tokens].cumsum(0).view(-1, HEADS, DIM) + 1
        )
        assert output[0, tokens:].eq(1).all()  # zero, before the captured addition
