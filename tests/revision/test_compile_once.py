"""How often the forward of the piecewise graph is compiled, where fused ops change behind the
compile pass."""

import sys
from types import SimpleNamespace

import pytest
import torch
from host import late

with late.modules():
    from sglang.kernels import fused_op
    from sglang.srt.compilation import compile as compilation

pytestmark = pytest.mark.revision(">=0.5.18,<0.5.22")

SIZES = (64, 32, 16)


@pytest.fixture
def model(monkeypatch):
    """A stack of one fused op, with the release's own dispatch."""
    # cannot be imported without a GPU
    weak_refs = SimpleNamespace(weak_ref_tensors=lambda tensors: tensors)
    monkeypatch.setitem(sys.modules, "sglang.srt.compilation.weak_ref_tensor", weak_refs)

    class Doubled(fused_op.BaseFusedOp):
        op = "doubled"

        def forward_native(self, x):
            return 2 * x

        def forward_cuda(self, x):
            return x + x

    class Stack(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.doubled = Doubled()

        def forward(self, x: torch.Tensor, scale=None):
            doubled = self.doubled(x)
            return doubled if scale is None else doubled * scale

    torch._dynamo.reset()
    yield Stack()
    torch._dynamo.reset()


@pytest.fixture
def compiled(model, monkeypatch):
    """The graphs that the release's set-up compiles of it, behind the compile pass."""
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(compilation, "is_in_tc_piecewise_cuda_graph", lambda: True)
    compilation.install_torch_compiled(model, backend_factory=backend)
    model.doubled._forward_method = model.doubled.forward_cuda  # as chosen on a GPU
    model.doubled.enter_torch_compile(num_tokens=16)
    for size in SIZES:
        model(torch.ones(size, 4))
    model.doubled.leave_torch_compile()
    return graphs


def test_the_capture_compiles_nothing_anew(model, compiled):
    assert len(compiled) == 1, "the compile pass itself takes one compilation for each size"
    for size in SIZES:
        torch.testing.assert_close(model(torch.ones(size, 4)), torch.full((size, 4), 2.0))
    assert len(compiled) == 1


def test_another_kind_of_call_is_still_compiled_for_itself(model, compiled):
    """Guards on the arguments stay: one graph must not serve what it was not traced for."""
    x = torch.ones(16, 4)
    torch.testing.assert_close(model(x, torch.tensor(3.0)), 6 * x)
    torch.testing.assert_close(model(x), 2 * x)
    assert len(compiled) == 2
