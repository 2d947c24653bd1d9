"""CPU tests of what is said of memory beside the prefill CUDA graph."""

import logging
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.managers import scheduler

register_cpu_ci(est_time=14, suite="base-a-test-cpu")


@pytest.mark.parametrize(
    "tp_rank, free_gb, warnings", [(0, 0.9, 1), (0, 1.81, 0), (1, 0.9, 0)]
)
def test_little_memory_beside_all_graphs(
    monkeypatch, caplog, tp_rank, free_gb, warnings
):
    parallel = SimpleNamespace(tp_rank=tp_rank)
    monkeypatch.setattr(scheduler, "get_parallel", lambda: parallel)
    monkeypatch.setattr(scheduler, "get_device", Mock())
    monkeypatch.setattr(scheduler, "get_schedule", Mock())
    monkeypatch.setattr(scheduler, "get_available_gpu_memory", lambda *_, **__: free_gb)
    started = Mock(device="cuda")
    started.tp_worker.graph_memory_usage = {"prefill": 1.81, "decode": 0.3}
    with caplog.at_level(logging.WARNING):
        scheduler.Scheduler.log_startup_memory(started)
    assert len(caplog.messages) == warnings
    assert all("took 1.81 GB, and 0.90 GB are left" in m for m in caplog.messages)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-v"]))
