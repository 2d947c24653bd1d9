"""What is said where the prefill graph leaves less memory than it took. No GPU."""

import unittest
from types import SimpleNamespace
from unittest import mock

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.model_executor.model_runner_components import cuda_graph_setup

register_cpu_ci(est_time=12, suite="base-a-test-cpu")


def _on_rank(rank):
    ranks = SimpleNamespace(tp_rank=rank)
    return mock.patch.object(cuda_graph_setup, "get_parallel", lambda: ranks)


class TestLittleMemory(CustomTestCase):
    def test_both_figures_are_told(self):
        with _on_rank(0), self.assertLogs("sglang", "WARNING") as logs:
            cuda_graph_setup.warn_of_little_memory(1.81, 0.9)
        self.assertIn("took 1.81 GB, and 0.90 GB are left", logs.output[-1])

    def test_enough_memory_and_other_ranks_say_nothing(self):
        for rank, free in ((0, 1.81), (0, 40.0), (1, 0.9)):
            with _on_rank(rank), self.assertNoLogs("sglang", "WARNING"):
                cuda_graph_setup.warn_of_little_memory(1.81, free)


if __name__ == "__main__":
    unittest.main()
