"""The settings of the gated delta rule's prefill kernels. No GPU."""

import unittest

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.kernels.ops.attention.fla import chunk_delta_h, chunk_fwd

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


def _settings(kernel):
    while not hasattr(kernel, "configs"):
        kernel = kernel.fn
    return kernel.configs


class TestGatedDeltaSettings(CustomTestCase):
    def test_nothing_is_timed_at_the_first_call(self):
        """A first call has a few tokens; what it chose would hold for all lengths."""
        for kernel in (
            chunk_fwd.chunk_gated_delta_rule_fwd_kkt_solve_kernel,
            chunk_delta_h.chunk_gated_delta_rule_fwd_kernel_h_blockdim64,
        ):
            self.assertEqual(len(_settings(kernel)), 1)


if __name__ == "__main__":
    unittest.main()
