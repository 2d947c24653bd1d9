"""CPU tests of routed experts in a buffer with columns for shared experts."""

import unittest

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.state_capturer.base import BaseDeviceCache

register_cpu_ci(est_time=8, suite="base-a-test-cpu")


class TestRoutedExpertsColumns(CustomTestCase):
    def setUp(self):
        self.cache = BaseDeviceCache(
            max_batch_size=4, num_layers=2, topk_size=3, device="cpu", name="routed"
        )

    def test_a_choice_without_shared_experts_fills_the_first_columns(self):
        chosen = torch.tensor([[5, 1], [0, 7]], dtype=torch.int32)
        self.cache.capture(1, chosen)
        self.assertTrue(self.cache.buffer[:2, 1, :2].equal(chosen))
        self.assertFalse(self.cache.buffer[:, 0].any())

    def test_a_choice_of_all_columns_is_kept_whole(self):
        chosen = torch.arange(12, dtype=torch.int32).view(4, 3)
        self.cache.capture(0, chosen)
        self.assertTrue(self.cache.buffer[:, 0].equal(chosen))


if __name__ == "__main__":
    unittest.main()
