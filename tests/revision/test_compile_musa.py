"""Whether the host has Moore Threads GPUs, asked in a forward that torch.compile traces."""

import pytest
import torch
from host import late

with late.modules():
    from sglang.srt import utils

pytestmark = pytest.mark.revision(">=0.5.20,<0.5.22")


@pytest.fixture
def is_musa():
    return utils.is_musa


def test_a_full_graph_compile_asks_for_musa(is_musa):
    """DeepSeek-V3.2's and Qwen3-Next's layers did, and their servers died at start-up."""

    def forward(x):
        return -x if is_musa() else x + 1

    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")

    torch.testing.assert_close(compiled(torch.zeros(3)), torch.ones(3))


def test_an_eager_forward_still_asks_for_the_package(is_musa, monkeypatch):
    """Without a trace the answer is the release's own: no such package is installed here."""
    monkeypatch.setattr(torch.version, "musa", "4.0", raising=False)
    assert is_musa.__wrapped__() is False
