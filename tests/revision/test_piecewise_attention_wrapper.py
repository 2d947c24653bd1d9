"""FlashInfer's attention plans the same wrapper inside the piecewise graph as outside."""

import pytest
from host import flashinfer, late

with late.modules():
    from sglang.srt.compilation import piecewise_context_manager

pytestmark = pytest.mark.revision(">=0.5.10,<0.5.14")


def planned(backend, prefixes):
    """Whether new tokens of a prefill behind `prefixes` go through the ragged wrapper, and whether
    any prefix is cached."""
    backend.init_forward_metadata(flashinfer.batch_of(prefixes, [5] * len(prefixes)))
    made = backend.forward_metadata
    return made.use_ragged, made.extend_no_prefix


@pytest.mark.parametrize("prefixes", [[0, 0], [0, 7]], ids=["cold", "cached beginnings"])
@pytest.mark.parametrize("setting", ["", "enable_deterministic", "is_multimodal"])
def test_the_graph_changes_no_wrapper(monkeypatch, prefixes, setting):
    """Another kernel rounds otherwise, and a router behind it picks other experts."""
    backend = flashinfer.backend(monkeypatch)
    if setting:
        setattr(backend, setting, True)
    eager = planned(backend, prefixes)
    with piecewise_context_manager.enable_piecewise_cuda_graph():
        assert planned(backend, prefixes) == eager
    assert eager[0] == (not setting)
