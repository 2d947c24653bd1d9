"""The piecewise graph's compiler: what it is given to trace, and inductor with the pinned torch."""

import sys
from types import SimpleNamespace

import pytest
import torch
from host import late
from torch._inductor import config as inductor

with late.modules():
    from sglang.srt import utils
    from sglang.srt.compilation import backend as compilation_backend
    from sglang.srt.compilation import compilation_config, compiler_interface

INDUCTOR = pytest.mark.revision(">=0.5.11,<0.5.14")
MUSA = pytest.mark.revision(">=0.5.20,<0.5.22")


@pytest.fixture(autouse=True)
def fresh_compiler(tmp_path, monkeypatch):
    variables = "SGLANG_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
    for variable in variables:
        monkeypatch.setenv(variable, str(tmp_path))  # the adaptor moves them: put them back after
    # Inductor would compile and load a trial for each vector instruction set of this processor.
    # Plain C++ does here.
    monkeypatch.setattr(inductor.cpp, "vec_isa_ok", False)
    monkeypatch.setattr(inductor, "cpp_cache_precompile_headers", False)
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
    """It is compiled after tracing, with real tensors and no shape environment but sglang's own."""
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
    """DeepSeek-V3.2's and Qwen3-Next's layers asked for Moore Threads GPUs: the server died."""
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
