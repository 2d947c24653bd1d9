"""Which way NemotronH's MoE takes while the piecewise graph traces it."""

from types import SimpleNamespace

import pytest
import torch

pytestmark = pytest.mark.revision(">=0.5.18,<0.5.19")


@pytest.fixture
def streams(monkeypatch):
    """How many streams the MoE asks for, on what it takes for CUDA."""
    from sglang.srt.models import nemotron_h

    monkeypatch.setattr(nemotron_h, "_is_cuda", True)
    backend = SimpleNamespace(is_flashinfer=lambda: False)
    monkeypatch.setattr(nemotron_h, "get_moe_a2a_backend", lambda: backend)
    moe = SimpleNamespace(
        _forward_core_shared_routed_overlap=lambda _: 2, _forward_core_normal=lambda _: 1
    )
    return lambda: nemotron_h.NemotronHMoE._forward_core(moe, None)


def test_experts_leave_the_second_stream_alone_while_traced(streams):
    """Inductor does not compile a forward that switches streams: the server died at start."""
    traced = torch.compile(lambda x: x + streams(), backend="eager", fullgraph=True)
    assert traced(torch.zeros(())) == 1


def test_a_forward_that_is_not_traced_keeps_both(streams):
    assert streams() == 2
