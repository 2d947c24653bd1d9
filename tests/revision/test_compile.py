"""The compiler of the piecewise graph: what it is given to trace, how often, and inductor with the
torch that a release pins."""

import sys
from types import SimpleNamespace

import pytest
import torch
from host import late
from torch._inductor import config as inductor

with late.modules():
    from sglang.kernels import fused_op
    from sglang.srt import utils
    from sglang.srt.compilation import backend as compilation_backend
    from sglang.srt.compilation import compilation_config, compiler_interface
    from sglang.srt.compilation import compile as compilation

INDUCTOR = pytest.mark.revision(">=0.5.11,<0.5.14")
MUSA = pytest.mark.revision(">=0.5.20,<0.5.22")
FUSED = pytest.mark.revision(">=0.5.18,<0.5.22")  # ops change behind the compile pass
SIZES = (64, 32, 16)


@pytest.fixture(autouse=True)
def fresh_compiler(tmp_path, monkeypatch):
    variables = "SGLANG_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
    for variable in variables:
        monkeypatch.setenv(variable, str(tmp_path))  # the adaptor moves them: put them back after
    # Inductor would compile and load a trial for each vector instruction set of this processor.
    # Plain C++ does here.
    monkeypatch.setattr(inductor.cpp, "vec_isa_ok", False)
    # cannot be imported without a GPU
    weak_refs = SimpleNamespace(weak_ref_tensors=lambda tensors: tensors)
    monkeypatch.setitem(sys.modules, "sglang.srt.compilation.weak_ref_tensor", weak_refs)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def gated(x, weight):
    return torch.sin(x @ weight) * x.sum(-1, keepdim=True)


@INDUCTOR
def test_the_adaptor_compiles_a_graph_for_one_size_outside_of_dynamo(tmp_path):
    """A captured size is compiled after tracing, with real tensors and no shape environment but
    sglang's own."""
    adaptor = compiler_interface.InductorAdaptor()
    adaptor.initialize_cache(cache_dir=str(tmp_path))
    graph = torch.fx.symbolic_trace(lambda x, weight: (gated(x, weight),))
    x, weight = torch.randn(4, 16), torch.randn(16, 8)

    compiled, (key, file) = adaptor.compile(graph, [x, weight], {}, runtime_shape=4)

    torch.testing.assert_close(compiled(x, weight)[0], gated(x, weight))
    assert key and file, "the graph is not in inductor's cache"


@INDUCTOR
def test_the_whole_backend_compiles_a_split_graph(monkeypatch):
    """As at start-up: split at an op, then every part through the adaptor, for any size.
    `--piecewise-cuda-graph-compiler inductor` died there: no attribute 'var_to_hint_override'."""
    monkeypatch.setattr(torch.distributed, "get_rank", lambda *_: 0)  # names its log files
    config = compilation_config.CompilationConfig([4], compiler="inductor")
    config.split_ops = [str(torch.sin)]
    backend = compilation_backend.SGLangBackend(config, graph_pool=object())
    compiled = torch.compile(gated, fullgraph=True, dynamic=True, backend=backend)
    weight = torch.randn(16, 8)
    for tokens in (4, 7):
        x = torch.randn(tokens, 16)
        torch.testing.assert_close(compiled(x, weight), gated(x, weight))
    assert len(backend.piecewise_graphs) == 3
    assert len(backend.compiler_manager.cache) == 2


@MUSA
def test_a_full_graph_compile_asks_for_musa():
    """DeepSeek-V3.2's and Qwen3-Next's layers asked for Moore Threads GPUs, and their servers died
    at start-up."""
    is_musa = utils.is_musa

    def forward(x):
        return -x if is_musa() else x + 1

    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")

    torch.testing.assert_close(compiled(torch.zeros(3)), torch.ones(3))


@MUSA
def test_an_eager_forward_still_asks_for_the_package(monkeypatch):
    """Without a trace the answer is the release's own: no such package is installed here."""
    monkeypatch.setattr(torch.version, "musa", "4.0", raising=False)
    assert utils.is_musa.__wrapped__() is False


@pytest.fixture
def model():
    """A stack of one fused op, with the release's own dispatch."""

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

    return Stack()


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


@FUSED
def test_the_capture_compiles_nothing_anew(model, compiled):
    assert len(compiled) == 1, "the compile pass itself takes one compilation for each size"
    for size in SIZES:
        torch.testing.assert_close(model(torch.ones(size, 4)), torch.full((size, 4), 2.0))
    assert len(compiled) == 1


@FUSED
def test_another_kind_of_call_is_still_compiled_for_itself(model, compiled):
    """Guards on the arguments stay: one graph must not serve what it was not traced for."""
    x = torch.ones(16, 4)
    torch.testing.assert_close(model(x, torch.tensor(3.0)), 6 * x)
    torch.testing.assert_close(model(x), 2 * x)
    assert len(compiled) == 2
