"""The settings of the gated delta rule's prefill kernels. No GPU."""

import importlib
import unittest
from unittest.mock import patch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.kernels.ops.attention.fla import chunk_delta_h, chunk_fwd, utils

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


def _settings(module, kernel, hopper):
    """The configs of the kernel where its module is imported on such a GPU."""
    with patch.object(utils, "is_nvidia_sm90", hopper, create=True):
        kernel = vars(importlib.reload(module))[kernel]
    while not hasattr(kernel, "configs"):
        kernel = kernel.fn
    return kernel.configs


class TestGatedDeltaSettings(CustomTestCase):
    def test_nothing_is_timed_at_the_first_call_on_hopper_alone(self):
        """A first call has a few tokens; what it chose would hold for all lengths."""
        name = "chunk_gated_delta_rule_fwd_kkt_solve_kernel"
        self.assertEqual(len(_settings(chunk_fwd, name, hopper=True)), 1)
        self.assertEqual(len(_settings(chunk_fwd, name, hopper=False)), 6)

    def test_states_take_three_stages_on_hopper_alone(self):
        name = "chunk_gated_delta_rule_fwd_kernel_h_blockdim64"
        (config,) = _settings(chunk_delta_h, name, hopper=True)
        self.assertEqual(config.num_stages, 3)
        (config,) = _settings(chunk_delta_h, name, hopper=False)
        self.assertEqual(config.num_stages, 2)


if __name__ == "__main__":
    unittest.main()
