"""The process-wide flag that says "inside the piecewise graph"."""

from unittest.mock import MagicMock

import pytest
from host import late

with late.modules():
    from sglang.srt.compilation import piecewise_context_manager
    from sglang.srt.model_executor import piecewise_cuda_graph_runner

pytestmark = pytest.mark.revision("<0.5.10")


@pytest.fixture
def context():
    yield piecewise_context_manager
    piecewise_context_manager._in_piecewise_cuda_graph = False


def test_the_flag_goes_down_when_the_body_raises(context):
    """After one failed prefill, every eager forward still took the graph's split ops and failed
    without a context."""
    with pytest.raises(RuntimeError, match="body"), context.enable_piecewise_cuda_graph():
        raise RuntimeError("body")
    assert not context.is_in_piecewise_cuda_graph()


def test_a_failed_replay_leaves_the_mode(context):
    """The same through the runner's own replay."""
    runner = object.__new__(piecewise_cuda_graph_runner.PiecewiseCudaGraphRunner)
    runner.model_runner = MagicMock()
    runner.model_runner.attn_backend.init_forward_metadata.side_effect = MemoryError("metadata")
    with pytest.raises(MemoryError, match="metadata"):
        runner.replay(MagicMock())
    assert not context.is_in_piecewise_cuda_graph()


def test_the_flag_is_up_inside_and_down_after(context):
    assert not context.is_in_piecewise_cuda_graph()
    with context.enable_piecewise_cuda_graph():
        assert context.is_in_piecewise_cuda_graph()
    assert not context.is_in_piecewise_cuda_graph()
