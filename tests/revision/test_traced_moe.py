"""Which way NemotronH's MoE takes while the piecewise graph traces it."""

from types import SimpleNamespace

import pytest
import torch

pytestmark = pytest.mark.revision(">=0.5.18,<0.5.19")


def on_two_streams(hidden_states):
    """What a trace on a GPU holds of the switch to another stream and back."""
    torch.ops.streams.wait_stream(1, 0)
    result = 2 * hidden_states
    torch.ops.streams.wait_stream(0, 1)
    return result


@pytest.fixture
def moe(monkeypatch):
    """NemotronH's MoE with both of its ways stood in for, on what it takes for CUDA."""
    from sglang.srt.models import nemotron_h

    monkeypatch.setattr(nemotron_h, "_is_cuda", True)
    backend = SimpleNamespace(is_flashinfer=lambda: False)
    monkeypatch.setattr(nemotron_h, "get_moe_a2a_backend", lambda: backend)
    ways = SimpleNamespace(
        _forward_core_shared_routed_overlap=on_two_streams,
        _forward_core_normal=lambda hidden_states: 2 * hidden_states,
    )
    return lambda hidden_states: nemotron_h.NemotronHMoE._forward_core(ways, hidden_states)


def test_a_traced_forward_that_writes_its_input_compiles(moe):
    """The server died at start: "n=copy_, n.args[0]=getitem_8". torch 2.13 hands what is used
    behind a wait through it, and then finds a write to something that is no input."""
    torch._dynamo.reset()
    residual, hidden_states = torch.ones(4), torch.ones(4)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def layer(residual, hidden_states):
        residual.add_(hidden_states)
        return moe(residual)

    torch.testing.assert_close(layer(residual, hidden_states), torch.full((4,), 4.0))
    torch.testing.assert_close(residual, torch.full((4,), 2.0))


def test_a_forward_that_is_not_traced_keeps_both_streams(moe, monkeypatch):
    waits = []
    monkeypatch.setattr(torch.ops.streams, "wait_stream", lambda *streams: waits.append(streams))
    torch.testing.assert_close(moe(torch.ones(4)), torch.full((4,), 2.0))
    assert waits == [(1, 0), (0, 1)]
