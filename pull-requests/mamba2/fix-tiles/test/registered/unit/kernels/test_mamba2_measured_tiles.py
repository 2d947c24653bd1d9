"""The tiles of Mamba2's prefill kernels. No GPU."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.kernels.ops.mamba.triton_ops import (
    ssd_bmm,
    ssd_chunk_scan,
    ssd_chunk_state,
)

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

KERNELS = (
    ssd_bmm._bmm_chunk_fwd_kernel,
    ssd_chunk_scan._chunk_scan_fwd_kernel,
    ssd_chunk_state._chunk_state_fwd_kernel,
    ssd_chunk_state._chunk_state_varlen_kernel,
)
HEADS = ssd_chunk_state._chunk_cumsum_fwd_kernel


def _left(kernel, size, d_state, itemsize=2, capability=(9, 0), chunk=128):
    """The configs that the autotuner would time for such a launch."""
    while not hasattr(kernel, "configs"):
        kernel = kernel.fn
    device = SimpleNamespace(type="cuda")
    data = SimpleNamespace(element_size=lambda: itemsize, device=device)
    words = dict.fromkeys(("a_ptr", "x_ptr", "dt_ptr"), data)
    words |= {"hdim": size, "dstate": d_state, "K": d_state}
    words |= {"chunk_size": chunk, "nheads": 128}
    with (
        patch.object(torch.cuda, "get_device_capability", return_value=capability),
        patch.object(torch.version, "hip", None),
    ):
        return kernel.early_config_prune(kernel.configs, words)


class TestMeasuredTiles(CustomTestCase):
    def test_nothing_is_timed_for_sizes_that_were_measured(self):
        """A first call has a few tokens; what it chose would hold for all lengths."""
        for size, d_state in ((80, 128), (64, 128)):
            for kernel in (*KERNELS, HEADS):
                self.assertEqual(len(_left(kernel, size, d_state)), 1)

    def test_other_sizes_types_and_gpus_are_timed(self):
        for kernel in KERNELS:
            self.assertGreater(len(_left(kernel, 64, 256)), 1)
            self.assertGreater(len(_left(kernel, 80, 128, itemsize=4)), 1)
            self.assertGreater(len(_left(kernel, 80, 128, capability=(8, 0))), 1)
        self.assertGreater(len(_left(HEADS, 80, 128, chunk=256)), 1)


if __name__ == "__main__":
    unittest.main()
