"""What the set-up of prefill CUDA graphs returns where no size fits. No GPU."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.model_executor.model_runner_components import cuda_graph_setup

register_cpu_ci(est_time=12, suite="base-a-test-cpu")


class TestPrefillCaptureSizes(CustomTestCase):
    def test_a_capture_without_a_fitting_size_returns_graph_capture(self):
        config = SimpleNamespace(prefill=SimpleNamespace(bs=[64], backend="breakable"))
        execution = SimpleNamespace(graph=SimpleNamespace(cuda_graph_config=config))
        parallel = SimpleNamespace(enable_prefill_cp=False, pp_size=1)
        model_runner = SimpleNamespace(
            model=None,
            is_draft_worker=False,
            spec_algorithm=SimpleNamespace(is_eagle=lambda: False),
            lora_manager=None,
            model_config=SimpleNamespace(context_len=8),
            req_to_token_pool=SimpleNamespace(size=2),
        )
        eager_runner = object()
        with patch.multiple(
            cuda_graph_setup,
            check_cuda_graph_backend=lambda *_: False,
            resolve_language_model=lambda model: model,
            get_exec=lambda: execution,
            get_parallel=lambda: parallel,
        ):
            capture = cuda_graph_setup.capture_prefill_graph(
                model_runner=model_runner, eager_runner=eager_runner
            )
        self.assertIsInstance(capture, cuda_graph_setup.GraphCapture)
        self.assertIs(capture.runner, eager_runner)
        self.assertEqual(capture.memory_usage_gb, 0)


if __name__ == "__main__":
    unittest.main()
