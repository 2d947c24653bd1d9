"""What the prefill graph's set-up returns where every capture size is too large. No GPU."""

import unittest
from types import SimpleNamespace
from unittest import mock

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.model_executor.model_runner_components import cuda_graph_setup

register_cpu_ci(est_time=12, suite="base-a-test-cpu")


def _model():
    inner = torch.nn.Module()
    inner.layers = torch.nn.ModuleList([torch.nn.Identity()])
    model = torch.nn.Module()
    model.model = inner
    return model


class TestNoSizeFits(CustomTestCase):
    def test_the_eager_runner_comes_in_a_result(self):
        """Callers read `.runner` and `.memory_usage_gb` off what they get."""
        config = SimpleNamespace(
            prefill=SimpleNamespace(bs=[64, 128], backend="breakable"),
        )
        runner = SimpleNamespace(
            model=_model(),
            is_draft_worker=False,
            spec_algorithm=SimpleNamespace(is_eagle=lambda: False),
            lora_manager=None,
            model_config=SimpleNamespace(context_len=8),
            req_to_token_pool=SimpleNamespace(size=2),
        )
        ranks = SimpleNamespace(tp_rank=0, pp_size=1, enable_prefill_cp=False)
        execution = SimpleNamespace(graph=SimpleNamespace(cuda_graph_config=config))
        eager = object()
        with (
            mock.patch.object(
                cuda_graph_setup, "check_cuda_graph_backend", lambda *_: False
            ),
            mock.patch.object(cuda_graph_setup, "get_exec", lambda: execution),
            mock.patch.object(cuda_graph_setup, "get_parallel", lambda: ranks),
            self.assertLogs("sglang", "WARNING") as logs,
        ):
            found = cuda_graph_setup.capture_prefill_graph(
                model_runner=runner, eager_runner=eager
            )
        self.assertIs(found.runner, eager)
        self.assertEqual((found.memory_usage_gb, found.capture_time), (0, 0))
        self.assertIn("capture size fits", logs.output[-1])


if __name__ == "__main__":
    unittest.main()
