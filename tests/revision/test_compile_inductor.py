"""The inductor compiler of the piecewise graph, with the torch that the release pins."""

import sys
from types import SimpleNamespace

import pytest
import torch
from host import late
from torch._inductor import config

with late.modules():
    from sglang.srt.compilation import backend as compilation_backend
    from sglang.srt.compilation import compilation_config, compiler_interface

pytestmark = pytest.mark.revision(">=0.5.11,<0.5.14")


@pytest.fixture(autouse=True)
def fresh_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_CACHE_DIR", str(tmp_path))
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))  # the adaptor moves them: put them back after
    # Inductor would compile and load a trial for each vector instruction set of this processor.
    # Plain C++ does here.
    monkeypatch.setattr(config.cpp, "vec_isa_ok", False)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def gated(x, weight):
    return torch.sin(x @ weight) * x.sum(-1, keepdim=True)


def test_the_adaptor_compiles_a_graph_for_any_size(tmp_path):
    """`--piecewise-cuda-graph-compiler inductor` died at start-up: no attribute
    'var_to_hint_override'."""
    adaptor = compiler_interface.InductorAdaptor()
    adaptor.initialize_cache(cache_dir=str(tmp_path))
    handles = []

    def backend(graph, example_inputs):
        compiled, handle = adaptor.compile(graph, example_inputs, {}, runtime_shape=None)
        handles.append(handle)
        return compiled

    compiled = torch.compile(gated, fullgraph=True, dynamic=True, backend=backend)
    weight = torch.randn(16, 8)
    for tokens in (4, 7):
        x = torch.randn(tokens, 16)
        torch.testing.assert_close(compiled(x, weight), gated(x, weight))
    ((key, file),) = handles
    assert key and file, "the graph is not in inductor's cache"


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


def test_the_whole_backend_compiles_a_split_graph(monkeypatch):
    """As at start-up: split at an op, then every part through the adaptor."""
    # cannot be imported without a GPU
    weak_refs = SimpleNamespace(weak_ref_tensors=lambda tensors: tensors)
    monkeypatch.setitem(sys.modules, "sglang.srt.compilation.weak_ref_tensor", weak_refs)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda *_: 0)  # names its log files
    config = compilation_config.CompilationConfig([4], compiler="inductor")
    config.split_ops = [str(torch.sin)]
    backend = compilation_backend.SGLangBackend(config, graph_pool=object())
    x, weight = torch.randn(4, 16), torch.randn(16, 8)

    compiled = torch.compile(gated, fullgraph=True, dynamic=True, backend=backend)

    torch.testing.assert_close(compiled(x, weight), gated(x, weight))
    assert len(backend.piecewise_graphs) == 3
    assert len(backend.compiler_manager.cache) == 2
