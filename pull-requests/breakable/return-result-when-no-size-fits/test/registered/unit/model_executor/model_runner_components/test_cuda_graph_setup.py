"""CPU tests of what the CUDA graph set-up returns."""

import sys
from types import SimpleNamespace

import pytest

from sglang.srt.model_executor.model_runner_components import cuda_graph_setup
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=12, suite="base-a-test-cpu")


def test_prefill_capture_without_a_fitting_size_returns_graph_capture(monkeypatch):
    config = SimpleNamespace(prefill=SimpleNamespace(bs=[64], backend="breakable"))
    execution = SimpleNamespace(graph=SimpleNamespace(cuda_graph_config=config))
    parallel = SimpleNamespace(enable_prefill_cp=False, pp_size=1)
    monkeypatch.setattr(cuda_graph_setup, "check_cuda_graph_backend", lambda *_: False)
    monkeypatch.setattr(cuda_graph_setup, "resolve_language_model", lambda model: model)
    monkeypatch.setattr(cuda_graph_setup, "get_exec", lambda: execution)
    monkeypatch.setattr(cuda_graph_setup, "get_parallel", lambda: parallel)
    model_runner = SimpleNamespace(
        model=None,
        is_draft_worker=False,
        spec_algorithm=SimpleNamespace(is_eagle=lambda: False),
        lora_manager=None,
        model_config=SimpleNamespace(context_len=8),
        req_to_token_pool=SimpleNamespace(size=2),
    )
    eager_runner = object()

    capture = cuda_graph_setup.capture_prefill_graph(
        model_runner=model_runner, eager_runner=eager_runner
    )

    assert isinstance(capture, cuda_graph_setup.GraphCapture)
    assert capture.runner is eager_runner
    assert capture.memory_usage_gb == 0


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-v"]))
