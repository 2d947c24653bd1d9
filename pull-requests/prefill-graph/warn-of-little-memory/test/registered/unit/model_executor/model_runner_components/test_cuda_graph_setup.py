"""CPU tests of what is said of memory beside the prefill CUDA graph."""

import logging
import sys
from types import SimpleNamespace

import pytest

from sglang.srt.model_executor.model_runner_components import cuda_graph_setup
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=12, suite="base-a-test-cpu")


@pytest.mark.parametrize(
    "tp_rank, free_gb, warnings", [(0, 0.9, 1), (0, 1.81, 0), (1, 0.9, 0)]
)
def test_little_memory_beside_the_prefill_graph(
    monkeypatch, caplog, tp_rank, free_gb, warnings
):
    parallel = SimpleNamespace(tp_rank=tp_rank)
    monkeypatch.setattr(cuda_graph_setup, "get_parallel", lambda: parallel)
    with caplog.at_level(logging.WARNING):
        cuda_graph_setup.warn_of_little_memory(1.81, free_gb)
    assert len(caplog.messages) == warnings
    assert all("took 1.81 GB, and 0.90 GB are left" in m for m in caplog.messages)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-v"]))
